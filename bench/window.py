"""The time over which something is measured: what the node's CPU time was, and how much others took of its cores.

A shared machine makes figures worse, not wrong; but the reader must be able to see it. The time of others is the busy
time of the bench's cores less the node's, the loads' and the bench's own. The kernel's threads are in it: writing back
what a system left dirty is done by them."""

from __future__ import annotations

import resource
import time
from pathlib import Path

from bench.machine import CpuSets
from bench.process_tree import TICKS, ProcessTree


class Window:
    """Begins when it is made. Loads must have ended when it is asked."""

    def __init__(self, node: ProcessTree, cpus: CpuSets, running: ProcessTree | None = None) -> None:
        """`running`: a load that was begun before; what it has spent until now is not the window's."""
        self._node = node
        self._cores = cpus.both
        self._begun = time.perf_counter()
        self._busy_begun = _busy_seconds(self._cores)
        self._bench_begun = _bench_seconds() + (running.cpu_seconds() if running is not None else 0.0)
        self._node_begun = node.cpu_seconds()

    def node_cpu_seconds(self) -> float:
        return self._node.cpu_seconds() - self._node_begun

    def bench_cpu_seconds(self) -> float:
        """The processor time that the bench and its loads have spent in it."""
        return _bench_seconds() - self._bench_begun

    def others_cores(self) -> float:
        """Cores that were busy for nobody of the bench, on average."""
        ours = self.node_cpu_seconds() + self.bench_cpu_seconds()
        busy = _busy_seconds(self._cores) - self._busy_begun
        return max(0.0, busy - ours) / (time.perf_counter() - self._begun)


def _bench_seconds() -> float:
    """Of this process and of its children that have ended: loads, not the node."""
    own, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime


def _busy_seconds(cores: tuple[int, ...]) -> float:
    """User, nice, system, irq and softirq time of the cores."""
    ticks = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            user, nice, system, _idle, _iowait, irq, softirq = map(int, fields[:7])
            ticks += user + nice + system + irq + softirq
    return ticks / TICKS
