"""Measures how loaded this node is: rates per write group, its share of the processors, how long disk 1 takes.

Counters that the node has anyway are read when somebody asks, at most once a second; nothing is counted for the measure
alone. Bytes and batches that come in are counted per write group. Reads are counted per node, so they are divided over
the write groups that the node serves as the bytes that come in are: most readers follow the ends of the queues.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from msgspec import structs

from mainstem.rpc.messages.loads import WRITE_GROUPS_TOLD_MAX, ToldLoad, ToldQueuePart, ToldWriteGroupLoad
from mainstem.storage.role import Storage

SMOOTHED_SECONDS = 30.0
"""The time constant of the smoothing: a burst of some seconds does not look like a load, a minute of it does."""

LOOK_SECONDS_MIN = 1.0
"""Counters are read at most so often; who asks sooner gets the last measure."""

ROOM_SECONDS = 10.0
"""Between two looks at the room on the disks, which are system calls."""


GROUPS_WITH_QUEUES_MAX = 8
"""Write groups of which a node tells the busiest queues: the busiest ones, since no other is why it is too busy."""


class WriteGroupTotals(NamedTuple):
    """The counters of a write group that the node serves, since it started."""

    group: int
    appended_bytes: int
    appended_batches: int


class MeasuredStorage(Protocol):
    """The counters of a storage role."""

    def served(self) -> Sequence[WriteGroupTotals]:
        """Of the write groups that this node takes batches for."""
        ...

    def read_bytes(self) -> int: ...

    def reads(self) -> int:
        """Reads of a queue that returned batches."""
        ...

    def sync_seconds(self) -> float:
        """The time that disk 1 has taken to make things durable."""
        ...

    def look_at_queues(self, now: float) -> None:
        """Go on sampling queues; called about once a second."""
        ...

    def busiest(self, group: int) -> Sequence[ToldQueuePart]:
        """The queues that bring much of what a write group takes in, the busiest first, as far as samples tell."""
        ...


class StorageCounters:
    """Implements `MeasuredStorage` over a node's storage role."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def served(self) -> Sequence[WriteGroupTotals]:
        return [
            WriteGroupTotals(it.group, it.log.appended_bytes, it.log.appended_batches)
            for it in self._storage.groups
            if it.serving
        ]

    def read_bytes(self) -> int:
        return sum(self._storage.read_path.served_bytes.values())

    def reads(self) -> int:
        return sum(self._storage.read_path.served.values())

    def sync_seconds(self) -> float:
        return self._storage.journal.sync_seconds()

    def look_at_queues(self, now: float) -> None:
        self._storage.state.busy_queues.look(now)

    def busiest(self, group: int) -> Sequence[ToldQueuePart]:
        return [ToldQueuePart(*it) for it in self._storage.state.busy_queues.busiest(group)]


class DiskRoom(NamedTuple):
    free_bytes: int
    total_bytes: int


class SmoothedRate:
    """A counter's rate per second: recent seconds weigh more than older ones, by `SMOOTHED_SECONDS`."""

    def __init__(self, total: float, now: float) -> None:
        self._total = total
        self._at = self._began = now
        self._sum = 0.0

    def look(self, total: float, now: float) -> None:
        """The counter is at `total`."""
        elapsed = now - self._at
        if elapsed <= 0:
            return
        kept = math.exp(-elapsed / SMOOTHED_SECONDS)
        self._sum = self._sum * kept + max(0.0, total - self._total) / elapsed * (1 - kept)
        self._total, self._at = total, now

    @property
    def seconds(self) -> float:
        """How long it has been measured."""
        return self._at - self._began

    @property
    def per_second(self) -> float:
        """Of a young measure: the mean since it began."""
        weight = 1 - math.exp(-self.seconds / SMOOTHED_SECONDS)
        return self._sum / weight if weight > 0 else 0.0


class LoadMeter:
    """Measures one node; `measured` is asked before each heartbeat."""

    def __init__(
        self,
        storage: MeasuredStorage | None,
        monotonic: Callable[[], float],
        cpu_seconds: Callable[[], float] = time.process_time,
        processors: int = 1,
        write_room: Callable[[], DiskRoom] | None = None,
        store_room: Callable[[], DiskRoom] | None = None,
    ) -> None:
        """`storage` None: the node has none. `processors`: how many the process may use."""
        self._storage = storage
        self._monotonic = monotonic
        self._cpu_seconds = cpu_seconds
        self._processors = processors
        self._rooms = (write_room, store_room)
        now = monotonic()
        self._cpu = SmoothedRate(cpu_seconds(), now)
        self._synced = SmoothedRate(storage.sync_seconds() if storage is not None else 0.0, now)
        self._read_bytes = SmoothedRate(storage.read_bytes() if storage is not None else 0, now)
        self._reads = SmoothedRate(storage.reads() if storage is not None else 0, now)
        self._write_groups: dict[int, tuple[SmoothedRate, SmoothedRate]] = {}
        """Bytes and batches in, of the write groups that were served at the last look."""
        self._looked_at = now
        self._roomed_at = -math.inf
        self._room = (DiskRoom(0, 0), DiskRoom(0, 0))
        self._last = ToldLoad()

    def measured(self) -> ToldLoad:
        now = self._monotonic()
        if now - self._looked_at >= LOOK_SECONDS_MIN:
            self._looked_at = now
            self._last = self._look(now)
        return self._last

    def _look(self, now: float) -> ToldLoad:
        self._cpu.look(self._cpu_seconds(), now)
        write_groups: list[ToldWriteGroupLoad] = []
        if self._storage is not None:
            self._synced.look(self._storage.sync_seconds(), now)
            self._read_bytes.look(self._storage.read_bytes(), now)
            self._reads.look(self._storage.reads(), now)
            self._storage.look_at_queues(now)
            write_groups = self._with_queues(self._of_write_groups(self._storage.served(), now), self._storage)
        if now - self._roomed_at >= ROOM_SECONDS:
            self._roomed_at = now
            write, store = (room() if room is not None else DiskRoom(0, 0) for room in self._rooms)
            self._room = (write, store)
        (write_free, write_total), (store_free, store_total) = self._room
        return ToldLoad(
            write_groups=write_groups,
            cpu_share=min(1.0, self._cpu.per_second / self._processors),
            sync_share=min(1.0, self._synced.per_second),
            write_free_bytes=write_free,
            write_total_bytes=write_total,
            store_free_bytes=store_free,
            store_total_bytes=store_total,
        )

    def _of_write_groups(self, served: Sequence[WriteGroupTotals], now: float) -> list[ToldWriteGroupLoad]:
        known, self._write_groups = self._write_groups, {}
        for it in served:
            rates = known.get(it.group) or (
                SmoothedRate(it.appended_bytes, now),
                SmoothedRate(it.appended_batches, now),
            )
            rates[0].look(it.appended_bytes, now)
            rates[1].look(it.appended_batches, now)
            self._write_groups[it.group] = rates
        whole = sum(size.per_second for size, _ in self._write_groups.values())
        loads = []
        for group, (size, batches) in self._write_groups.items():
            part = size.per_second / whole if whole > 0 else 1 / len(served)
            bytes_out, reads = self._read_bytes.per_second * part, self._reads.per_second * part
            loads.append(
                ToldWriteGroupLoad(group, size.per_second, bytes_out, batches.per_second + reads, size.seconds)
            )
        loads.sort(key=lambda it: -(it.bytes_in + it.bytes_out))
        return loads[:WRITE_GROUPS_TOLD_MAX]

    @staticmethod
    def _with_queues(loads: list[ToldWriteGroupLoad], storage: MeasuredStorage) -> list[ToldWriteGroupLoad]:
        """With the busiest queues of the first ones, which are the busiest write groups."""
        first, rest = loads[:GROUPS_WITH_QUEUES_MAX], loads[GROUPS_WITH_QUEUES_MAX:]
        return [structs.replace(it, busiest=list(storage.busiest(it.group))) for it in first] + rest


def usable_processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def room_at(path: Path) -> DiskRoom:
    """The room on the disk that a directory lies on; none of a directory that is gone."""
    try:
        stat = os.statvfs(path)
    except OSError:
        return DiskRoom(0, 0)
    return DiskRoom(stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize)
