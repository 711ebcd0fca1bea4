"""Watching Mainstem's background split: how far it is behind, and which of its processes took how much CPU time."""

from __future__ import annotations

import dataclasses
import json
import time
import urllib.request
from typing import Any

from bench.errors import BenchError
from bench.process_tree import ProcessTree, command_of, cpu_of

START_SECONDS_MAX = 60.0
"""Until Spark runs: ten seconds on two free cores."""
SLOWEST_BYTES_PER_SECOND = 10e6


def split_seconds_max(size: int) -> float:
    return START_SECONDS_MAX + size / SLOWEST_BYTES_PER_SECOND


def split_view(http: str | None) -> dict[str, Any]:
    assert http is not None, "this system has no split"
    with urllib.request.urlopen(f"http://{http}/v1/split", timeout=10) as answer:
        return dict(json.load(answer))


def lag_bytes(http: str | None) -> int:
    """Committed and not yet split, all write groups together."""
    return sum(group["lag_bytes"] for group in split_view(http)["groups"].values())


def await_first_progress(http: str | None) -> None:
    """Return when Spark has run its first trigger, or has had the time for it."""
    deadline = time.monotonic() + split_seconds_max(0)
    while split_view(http)["last_progress"] is None and time.monotonic() < deadline:
        time.sleep(0.1)


def await_lag(http: str | None, below: int, seconds_max: float) -> float:
    """Seconds until less than `below` bytes are unsplit. Raises BenchError beyond `seconds_max`."""
    begun = time.monotonic()
    while (lag := lag_bytes(http)) >= below:
        if time.monotonic() - begun > seconds_max:
            view = split_view(http)
            raise BenchError(
                f"{lag / 1e6:.0f} MB are unsplit after {seconds_max:.0f} s; "
                f"the splitter is {view['splitter']}, its last error {view['last_error']}"
            )
        time.sleep(0.2)
    return time.monotonic() - begun


@dataclasses.dataclass(frozen=True, slots=True)
class SplitCpu:
    """CPU seconds by kind of process."""

    node: float
    driver: float
    jvm: float
    workers: float

    def since(self, before: SplitCpu) -> SplitCpu:
        return SplitCpu(*(now - then for now, then in zip(_fields(self), _fields(before), strict=True)))


def split_cpu(tree: ProcessTree) -> SplitCpu:
    """Of a node and its splitter: the driver is the Python process that runs the Spark application, workers are
    the Python processes in which the splitting itself is done."""
    seconds = {"node": 0.0, "driver": 0.0, "jvm": 0.0, "workers": 0.0}
    for pid in tree.pids():
        seconds[_kind(pid, tree.roots[0])] += cpu_of(pid)
    return SplitCpu(**seconds)


def _kind(pid: int, root: int) -> str:
    if pid == root:
        return "node"
    command = command_of(pid)
    program = command.split(" ", 1)[0].rpartition("/")[2]
    if program == "java":
        return "jvm"
    return "workers" if "pyspark.daemon" in command or "pyspark/daemon" in command else "driver"


def _fields(cpu: SplitCpu) -> tuple[float, float, float, float]:
    return cpu.node, cpu.driver, cpu.jvm, cpu.workers
