"""Mainstem: `mainstem serve` from this tree, all roles in one process.

Defaults except where a row says otherwise: the durability, and the background split, which is off unless a session
is about it (Kafka has no counterpart, and its cost is measured in sessions of its own).
"""

from __future__ import annotations

import os
import sys
import time

from bench.systems.system import Durability, Node, Setup, free_ports, launch

_DURABILITIES = {Durability.SYNC: "sync", Durability.ASYNC: "async"}


RESERVES = (".free", ".new")
"""The journal's pool of files to write to."""


class Mainstem:
    name = "mainstem"

    def prepare(self) -> None:
        """There is nothing to fetch: the bench runs in Mainstem's own environment."""

    def version(self) -> str:
        import mainstem

        return f"Mainstem {mainstem.__version__}"

    def start(self, setup: Setup) -> Node:
        kafka, http, rpc = free_ports(3)
        settings = {
            "journal.durability": _DURABILITIES[setup.durability],
            "pipeline.mode": "embedded" if setup.splitter else "off",
            **{key: value for key, value in setup.settings.items() if not key.startswith("kafka.")},
        }
        command = [
            sys.executable, "-m", "mainstem.cli.main", "serve",
            "--listen", f"127.0.0.1:{kafka}", "--http", f"127.0.0.1:{http}", "--rpc", f"127.0.0.1:{rpc}",
            "--write-dir", str(setup.directory / "write"), "--store-dir", str(setup.directory / "store"),
        ]  # fmt: skip
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("MAINSTEM_")}
        begun = time.perf_counter()
        node = Node(
            setup, launch(setup, command, environment), f"127.0.0.1:{kafka}", f"127.0.0.1:{http}", RESERVES
        )
        try:
            node.await_ready(begun)
        except BaseException:
            node.kill()
            raise
        return node
