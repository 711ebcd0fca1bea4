"""A process and its descendants: what CPU time and memory they took, from /proc, so that any system is counted alike.

CPU time of a child that has ended is in its parent's account once it was waited for. Memory is the proportional set
size (pages shared by n processes count 1/n in each), which adds up where resident set sizes do not.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Collection, Iterator
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
"""Of CPU time, in a second."""


_SCHEDULED = 2
"""The clock of a process that counts all its time on processors; clock_getcpuclockid(3) has no other name for it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Memory:
    """In bytes."""

    proportional: int
    resident: int


class ProcessTree:
    """Roots need not live any more: without one the tree is empty. A cluster's processes are one tree of several
    roots."""

    def __init__(self, root: int, *roots: int) -> None:
        self.roots = (root, *roots)

    def pids(self) -> list[int]:
        """The roots first, then their descendants."""
        children: dict[int, list[int]] = {}
        for pid, fields in _all_stats():
            children.setdefault(int(fields[1]), []).append(pid)
        found = [root for root in self.roots if Path(f"/proc/{root}").exists()]
        for pid in found:
            found.extend(children.get(pid, ()))
        return found

    def cpu_seconds(self) -> float:
        """User and system time of every thread, of live processes and of ended children."""
        return sum(cpu_of(pid) for pid in self.pids())

    def memory(self) -> Memory:
        proportional = resident = 0
        for pid in self.pids():
            try:
                rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
            except OSError:
                continue  # it has just ended
            sizes = {row.split()[0]: int(row.split()[1]) * 1024 for row in rows}
            proportional += sizes.get("Pss:", 0)
            resident += sizes.get("Rss:", 0)
        return Memory(proportional, resident)

    def pin(self, cores: Collection[int]) -> None:
        """Bind every thread to `cores`; those they start later inherit it. Twice, for threads born meanwhile."""
        for _ in range(2):
            for pid in self.pids():
                for thread in _threads(pid):
                    try:
                        os.sched_setaffinity(thread, cores)
                    except ProcessLookupError:
                        pass

    def signal_descendants(self, number: signal.Signals) -> None:
        """To every process but the roots; twice, for those born meanwhile."""
        for _ in range(2):
            for pid in self.pids():
                if pid not in self.roots:
                    try:
                        os.kill(pid, number)
                    except ProcessLookupError:
                        pass

    def kill(self) -> None:
        """End every process of the tree at once and wait until they are gone (10 s at the most)."""
        pids = self.pids()
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        deadline = time.monotonic() + 10
        while any(_alive(pid) for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.01)


def cpu_of(pid: int) -> float:
    """CPU seconds of one process, its threads and its waited-for children; 0 once it is gone. The clock of a process
    counts nanoseconds, and threads that have ended too; what /proc says is cut to hundredths of a second."""
    fields = _stat(pid)
    if not fields:
        return 0.0
    children = sum(int(field) for field in fields[13:15]) / TICKS
    try:
        return time.clock_gettime(~pid << 3 | _SCHEDULED) + children
    except OSError:  # it has ended, and nobody has waited for it yet
        return sum(int(field) for field in fields[11:13]) / TICKS + children


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _alive(pid: int) -> bool:
    fields = _stat(pid)
    return bool(fields) and fields[0] != "Z"


def _stat(pid: int) -> list[str]:
    """The fields after the command's name: state, parent, … utime at 11, stime, cutime, cstime."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _all_stats() -> Iterator[tuple[int, list[str]]]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = _stat(int(name))
            if fields:
                yield int(name), fields
