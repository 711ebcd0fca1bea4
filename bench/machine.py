"""The machine as far as figures depend on it: cores and how they are shared out, memory, disk, kernel limits.

Limits that many queues need (open files, memory maps) are raised where this user may do so and put back at the end;
what could not be raised is part of the report.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import re
import resource
from collections.abc import Iterator
from pathlib import Path

MAPS_WANTED = 262_144
"""What Kafka's own operations guide asks for: two maps per partition, and the JVM's."""
_MAPS = Path("/proc/sys/vm/max_map_count")
_OPEN_FILES_MOST = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class CpuSets:
    """Which cores serve and which load. `both`: for sessions in which the node's own helpers need a core."""

    broker: tuple[int, ...]
    load: tuple[int, ...]

    @property
    def both(self) -> tuple[int, ...]:
        return tuple(sorted({*self.broker, *self.load}))


def share_cores() -> CpuSets:
    """One core loads (the generator has one thread), the rest serve, at most four of them."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) == 1:
        return CpuSets((cores[0],), (cores[0],))
    return CpuSets(tuple(cores[:-1][:4]), (cores[-1],))


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """Sizes in bytes."""

    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    python: str
    java: str
    disk: str
    dirty_background_bytes: int
    dirty_bytes: int
    open_files_max: int
    maps_max: int
    load_average: float
    """Of one minute, before the first run: what else the machine was doing."""


def read_machine(directory: Path, java: str) -> Machine:
    """`directory`: where the systems will keep their data."""
    memory = _meminfo()
    available = memory["MemAvailable"]
    return Machine(
        cpu=_cpu_name(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=memory["MemTotal"],
        kernel=platform.release(),
        python=platform.python_version(),
        java=java,
        disk=_mount_of(directory),
        dirty_background_bytes=_dirty_threshold("dirty_background", available),
        dirty_bytes=_dirty_threshold("dirty", available),
        open_files_max=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        maps_max=int(_MAPS.read_text()),
        load_average=os.getloadavg()[0],
    )


@contextlib.contextmanager
def raised_limits() -> Iterator[list[str]]:
    """Raise open files and memory maps for this process's children; yields what could not be raised."""
    refused: list[str] = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES_MOST, max(hard, _OPEN_FILES_MOST)))
    except (ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        refused.append(f"open files stay at {hard}, which is the limit of this user")
    maps = int(_MAPS.read_text())
    changed = False
    if maps < MAPS_WANTED:
        try:
            _MAPS.write_text(str(MAPS_WANTED))
            changed = True
        except OSError:
            refused.append(f"vm.max_map_count stays at {maps}; {MAPS_WANTED} was wanted")
    try:
        yield refused
    finally:
        if changed:
            _MAPS.write_text(str(maps))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def _meminfo() -> dict[str, int]:
    rows = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows}


def _dirty_threshold(name: str, available: int) -> int:
    exact = int(Path(f"/proc/sys/vm/{name}_bytes").read_text())
    return exact or available * int(Path(f"/proc/sys/vm/{name}_ratio").read_text()) // 100


def _cpu_name() -> str:
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def _mount_of(directory: Path) -> str:
    device = os.stat(directory).st_dev
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[2] == f"{os.major(device)}:{os.minor(device)}":
            kind, source = fields[fields.index("-") + 1 : fields.index("-") + 3]
            return f"{source} ({kind})"
    return "unknown"
