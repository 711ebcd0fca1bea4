"""`mainstem dev cluster`: real nodes from one command, one of which is killed, and all of which end with it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.harness.free_port import free_ports
from tests.harness.patience import PATIENCE_SECONDS

DEV_CLUSTER_PORTS = [kind + node_id for kind in (0, 100, 200) for node_id in (1, 2)]
"""Of two nodes, counted from `--port`."""
MAINSTEM = [sys.executable, "-m", "mainstem.cli.main"]


@contextmanager
def dev_cluster(directory: Path, port: int, nodes: int, *more: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*MAINSTEM, "dev", "cluster", str(nodes), "--dir", str(directory), "--port", str(port),
         "--set", "pipeline.mode=off", "--set", "journal.segment_bytes=4194304", *more],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_SECONDS)


def lines_until(process: subprocess.Popen[str], pattern: str) -> list[str]:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip())
        if re.search(pattern, line):
            return lines
    raise AssertionError(f"ended without {pattern!r}: {lines}")


def test_two_nodes_from_one_command_one_killed_and_all_ended(tmp_path: Path) -> None:
    port = free_ports(DEV_CLUSTER_PORTS)
    with dev_cluster(tmp_path / "cluster", port, 2) as cluster:
        started = lines_until(cluster, r"kill -9")
        pids = {int(line.split()[1].rstrip(":")): int(re.findall(r"pid (\d+)", line)[0])
                for line in started if "pid " in line}  # fmt: skip
        assert pids.keys() == {1, 2}
        status = subprocess.run(
            [*MAINSTEM, "cluster", "status", "--json", "--http", f"127.0.0.1:{port + 101}"],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        view = json.loads(status.stdout)
        assert [node["node_id"] for node in sorted(view["nodes"], key=lambda node: node["node_id"])] == [1, 2]
        assert {len(group["replicas"]) for group in view["write_groups"]} == {2}
        os.kill(pids[2], signal.SIGKILL)
        told = lines_until(cluster, r"node 2 ended")[-1]
        assert "SIGKILL" in told
        assert "node-2/mainstem.toml" in told
        cluster.terminate()
        assert cluster.wait(PATIENCE_SECONDS) == 0
        with pytest.raises(ProcessLookupError):
            os.kill(pids[1], 0)


def test_all_nodes_share_one_store(tmp_path: Path) -> None:
    port = free_ports(DEV_CLUSTER_PORTS)
    shared = tmp_path / "a store"
    with dev_cluster(tmp_path / "cluster", port, 2, "--store-dir", str(shared)) as cluster:
        lines_until(cluster, r"kill -9")
        for node_id in (1, 2):
            status = subprocess.run(
                [*MAINSTEM, "cluster", "status", "--json", "--http", f"127.0.0.1:{port + 100 + node_id}"],
                check=True, capture_output=True, text=True,
            )  # fmt: skip
            assert json.loads(status.stdout)["shared_store"] == str(shared)
        assert shared.is_dir(), "it is made"


def test_brokers_stand_behind_the_nodes_that_store(tmp_path: Path) -> None:
    port = free_ports(DEV_CLUSTER_PORTS)
    with dev_cluster(tmp_path / "cluster", port, 1, "--brokers", "1") as cluster:
        started = "\n".join(lines_until(cluster, r"kill -9"))
        assert "node 1: kafka none" in started
        assert f"node 2: kafka 127.0.0.1:{port + 2}" in started
        made = subprocess.run(
            [*MAINSTEM, "topic", "create", "hello", "--bootstrap", f"127.0.0.1:{port + 2}"],
            check=False, capture_output=True, text=True,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        status = subprocess.run(
            [*MAINSTEM, "cluster", "status", "--json", "--http", f"127.0.0.1:{port + 102}"],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        roles = {node["node_id"]: node["roles"] for node in json.loads(status.stdout)["nodes"]}
        assert roles == {1: ["storage", "nameserver"], 2: ["broker"]}


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    port = free_ports(DEV_CLUSTER_PORTS)
    with socket.create_server(("127.0.0.1", port + 1)):
        outcome = subprocess.run(
            [*MAINSTEM, "dev", "cluster", "1", "--dir", str(tmp_path), "--port", str(port)],
            capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip
    assert outcome.returncode == 1
    assert f"127.0.0.1:{port + 1}" in outcome.stderr
    assert "Traceback" not in outcome.stderr
