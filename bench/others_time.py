"""Processor time that other programs than the node took of the node's cores: shells, compilers, other people's tests.

A program in the middle of a system call keeps a core for milliseconds, whatever the rank of who waits for it. Such
times are the latency of one request in a hundred as soon as they are a hundredth of a window.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path

from bench.process_tree import TICKS, ProcessTree

_IDLE, _WAITS_FOR_DISK, _STOLEN = 3, 4, 7
"""The places of these times among the figures of a processor."""


class OthersTime:
    """Begins when it is made. The node's processes run on these cores alone."""

    def __init__(self, cores: Collection[int], node: ProcessTree) -> None:
        self._cores, self._node = cores, node
        self._began = time.monotonic()
        self._unused = self._unused_seconds()
        self._own = self._own_seconds()

    def seconds(self) -> float:
        """The system counts what nobody uses in hundredths of a second."""
        elapsed = len(self._cores) * (time.monotonic() - self._began)
        unused, own = self._unused_seconds() - self._unused, self._own_seconds() - self._own
        return max(0.0, elapsed - unused - own)

    def _unused_seconds(self) -> float:
        ticks = 0
        for line in Path("/proc/stat").read_text().splitlines():
            name, *fields = line.split()
            if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in self._cores:
                ticks += sum(int(fields[place]) for place in (_IDLE, _WAITS_FOR_DISK, _STOLEN))
        return ticks / TICKS

    def _own_seconds(self) -> float:
        return sum(_ran_seconds(pid) for pid in self._node.pids())


def _ran_seconds(pid: int) -> float:
    """Of the threads that live."""
    ran = 0
    for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            ran += int(thread.read_text().split()[0])
        except OSError:
            continue  # it has just ended
    return ran / 1e9
