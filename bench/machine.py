"""The machine as far as figures depend on it: cores and how they are shared out, memory, disk, kernel limits.

Limits that many queues need (open files, memory maps) are raised, and a disk's outsized read-ahead is lowered, where
this user may do so; both are put back at the end, and what was changed or could not be is part of the report.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import platform
import re
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.errors import BenchError

MAPS_WANTED = 262_144
"""The limit that Kafka's own operations guide asks for: two maps per partition, and the JVM's."""
READ_AHEAD_KB = 128
"""Linux's own. A disk set to megabytes makes Kafka read that much of each index around its first entry: figures of
thousands of partitions would be the setting's."""
LOCK_SECONDS_MAX = 1_800.0
"""Three short forms."""
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
    read_ahead_kb: int
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
        read_ahead_kb=_number(_read_ahead(directory)) or 0,
        load_average=os.getloadavg()[0],
    )


@contextlib.contextmanager
def alone(lock: Path, tell: Callable[[str], None], seconds_max: float = LOCK_SECONDS_MAX) -> Iterator[None]:
    """Waits until no other bench holds `lock`: two at a time would measure each other, and the first to end would put
    the kernel's settings back under the other. Raises BenchError after `seconds_max`."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + seconds_max
    told = False
    with lock.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    tell("waiting for another bench on this machine to end")
                    told = True
                if time.monotonic() > deadline:
                    raise BenchError(f"another bench has held {lock} for {seconds_max:.0f} s") from None
                time.sleep(1.0)
        yield


@contextlib.contextmanager
def tuned(directory: Path) -> Iterator[list[str]]:
    """For this process's children: many open files, many memory maps, and on the disk of `directory` the read-ahead
    that Linux comes with. Put back at the end; yields what was changed and what could not be."""
    notes: list[str] = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES_MOST, max(hard, _OPEN_FILES_MOST)))
    except (ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        notes.append(f"open files stay at {hard}, which is the limit of this user")
    read_ahead = _read_ahead(directory)
    with (
        _setting(_MAPS, MAPS_WANTED, lambda now: now < MAPS_WANTED, notes),
        _setting(read_ahead, READ_AHEAD_KB, lambda now: now > READ_AHEAD_KB, notes),
    ):
        try:
            yield notes
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


@contextlib.contextmanager
def _setting(path: Path, wanted: int, unfit: Callable[[int], bool], notes: list[str]) -> Iterator[None]:
    """Changes a number that the kernel keeps in `path` if it is unfit, where that exists and may be done."""
    found = _number(path)
    if found is None or not unfit(found):
        yield
        return
    try:
        path.write_text(str(wanted))
    except OSError:
        notes.append(f"{path} stays at {found}; {wanted} was wanted")
        yield
        return
    notes.append(f"{path} was {wanted} during the runs, in place of {found}")
    try:
        yield
    finally:
        path.write_text(str(found))


def _read_ahead(directory: Path) -> Path:
    device = os.stat(directory).st_dev
    return Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")


def _number(path: Path) -> int | None:
    return int(path.read_text()) if path.exists() else None


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
