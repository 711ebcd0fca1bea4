"""Processor time that a virtual machine was to have and did not get: its host gave the processor to others.

A host that has other work, or that has promised the machine less than it shows, takes a processor away for up to a
tenth of a second at a time, from whatever runs there. No program of the machine can tell that from its own slowness;
its kernel can, and counts it as stolen.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from bench.process_tree import TICKS

_STOLEN = 7
"""The place of the stolen time among the figures of a processor."""


class StolenTime:
    """Begins when it is made."""

    def __init__(self, cores: Collection[int], stat: Path = Path("/proc/stat")) -> None:
        self._cores = cores
        self._stat = stat
        self._begun = self._seconds()

    def most_seconds(self) -> float:
        """Of the processor that was taken away for longest; 0 where the system does not count that. It counts in
        hundredths of a second."""
        now = self._seconds()
        return max((now[core] - before for core, before in self._begun.items() if core in now), default=0.0)

    def _seconds(self) -> dict[int, float]:
        found = {}
        for line in self._stat.read_text().splitlines():
            name, *fields = line.split()
            if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in self._cores and len(fields) > _STOLEN:
                found[int(name[3:])] = int(fields[_STOLEN]) / TICKS
        return found
