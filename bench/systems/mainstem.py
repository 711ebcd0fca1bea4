"""Mainstem: `mainstem serve` from this tree, all roles in one process.

Several nodes are the three-node cluster of the documentation: every write group has a replica on each. Defaults
except where a row says otherwise: the durability, and the background split, which is off unless a session is about it
(Kafka has no counterpart, and its cost is measured in sessions of its own).
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.errors import SystemFailed
from bench.systems.system import Durability, Node, Setup, free_ports, launch
from mainstem.console.token_file import read_token

_DURABILITIES = {Durability.SYNC: "sync", Durability.ASYNC: "async"}

RESERVES = (".free", ".new")
"""The journal's pool of files to write to."""
MERGE_SCALE = "bench.merge_scale"
"""A setting of the bench's own: the node is `bench.nodes.scaled_node` with this scale."""
TURNS_TOLD = "bench.turns_told"
"""Another: each node is `bench.nodes.turning_node`, with the socket `TURNS_SOCKET` in its directory."""
TURNS_SOCKET = "turns"
LEADERS_SECONDS_MAX = 60.0
_POLL_SECONDS = 0.3


class Mainstem:
    name = "mainstem"

    def prepare(self) -> None:
        """There is nothing to fetch: the bench runs in Mainstem's own environment."""

    def version(self) -> str:
        import mainstem

        return f"Mainstem {mainstem.__version__}"

    def environment(self) -> Mapping[str, str]:
        """Of its processes: nobody's settings but the bench's."""
        return {key: value for key, value in os.environ.items() if not key.startswith("MAINSTEM_")}

    def start(self, setup: Setup) -> Node:
        count = setup.nodes
        *ports, guarded_port = free_ports(3 * count + 1)
        kafka, http, rpc = ([f"127.0.0.1:{port}" for port in ports[kind::3]] for kind in range(3))
        kafka = [f"127.0.0.1:{port}" for port in setup.ports] or kafka
        guarded = f"127.0.0.1:{guarded_port}" if setup.guard is not None else None
        settings = {
            "journal.durability": _DURABILITIES[setup.durability],
            "pipeline.mode": "embedded" if setup.splitter else "off",
            **{key: value for key, value in setup.settings.items() if not key.startswith(("kafka.", "bench."))},
        }
        if setup.guard is not None and guarded is not None:
            settings |= setup.guard.of_mainstem(guarded)
        scale = setup.settings.get(MERGE_SCALE)
        plain = ["mainstem.cli.main"] if scale is None else ["bench.nodes.scaled_node", scale]
        commands = []
        for at in range(count):
            directory = setup.directory if count == 1 else setup.directory / f"node-{at + 1}"
            program = plain
            if TURNS_TOLD in setup.settings:
                directory.mkdir(parents=True, exist_ok=True)
                program = ["bench.nodes.turning_node", str(directory / TURNS_SOCKET)]
            command = [
                sys.executable, "-m", *program, "serve",
                "--listen", kafka[at], "--http", http[at], "--rpc", rpc[at],
                "--write-dir", str(directory / "write"), "--store-dir", str(directory / "store"),
            ]  # fmt: skip
            if count > 1:
                command += ["--config", str(_peers(directory, at + 1, rpc))]
            if setup.advertised:
                command += ["--set", f"server.advertise={setup.advertised[at]}"]
            for key, value in settings.items():
                command += ["--set", f"{key}={setup.setting(value, at + 1)}"]
            commands.append(command)
        environment = self.environment()
        begun = time.perf_counter()
        processes = [launch(setup, command, environment) for command in commands]
        node = Node(setup, processes, kafka, http[0], RESERVES, guarded)
        try:
            node.await_ready(begun)
            if count > 1:
                _await_leaders(http)
        except BaseException:
            node.kill()
            raise
        return node


def _peers(directory: Path, node_id: int, rpc: Sequence[str]) -> Path:
    """A node's configuration file, which tells it of the others."""
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "mainstem.toml"
    peers = "".join(f'{number} = "{address}"\n' for number, address in enumerate(rpc, 1))
    file.write_text(f"node_id = {node_id}\n\n[nameserver.peers]\n{peers}")
    return file


def _await_leaders(http: Sequence[str]) -> None:
    """Have every write group led by the node that placement prefers, as it is after some time anyway. Raises
    SystemFailed."""
    deadline = time.monotonic() + LEADERS_SECONDS_MAX
    while True:
        with urllib.request.urlopen(f"http://{http[0]}/v1/cluster", timeout=10) as answer:
            groups = json.load(answer)["write_groups"]
        elsewhere = [group for group in groups if group["leader"] != group["preferred_leader"]]
        if groups and not elsewhere:
            return
        if time.monotonic() > deadline:
            raise SystemFailed(f"write groups {[group['group'] for group in elsewhere]} are not led where they should")
        for group in elsewhere:
            if group["leader"] > 0:
                _ask_to_lead(http[group["leader"] - 1], group["group"], group["preferred_leader"])
        time.sleep(_POLL_SECONDS)


def _ask_to_lead(leader: str, group: int, node_id: int) -> None:
    """Refusals pass: a leader that has just changed, a node that is behind."""
    with urllib.request.urlopen(f"http://{leader}/v1/cluster", timeout=10) as answer:
        token = read_token(Path(json.load(answer)["write_disk"]["path"]))
    request = urllib.request.Request(
        f"http://{leader}/v1/cluster/transfer-leader",
        json.dumps({"group": group, "to": node_id}).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {token}"},
        method="POST",
    )
    try:
        urllib.request.urlopen(request, timeout=10).close()
    except urllib.error.HTTPError:
        pass
