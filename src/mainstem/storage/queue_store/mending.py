"""Making damaged runs whole again, as far as this node's disks and manifest go; where the bytes come from is the
caller's matter (`storage.run_repair`).

    an extent    its bytes are known by their length and CRC32C, which the index has: they are written in its place.
                 A crash in the middle of that leaves an extent that is damaged, as it was before.
    a run        what it held is known by what the other runs of its write groups lack. New runs, a few megabytes each,
                 are written beside it and take its place in the manifest in one step; the file becomes an orphan.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy

from mainstem.kernel import crc32c
from mainstem.model import Buffer
from mainstem.ports import Files
from mainstem.protocol.records import BatchHeader, verify_checksum, walk_batches
from mainstem.rpc.split import RunFile
from mainstem.storage.errors import FormatError, StorageError
from mainstem.storage.queue_store.extent_index import ExtentIndex
from mainstem.storage.queue_store.manifest import FileRange, Manifest
from mainstem.storage.queue_store.run_copy import copy_run
from mainstem.storage.queue_store.run_reader import RUNS_DIRECTORY, RunFiles
from mainstem.storage.queue_store.run_search import RunSearch
from mainstem.storage.queue_store.run_target import RUN_SUFFIX
from mainstem.storage.queue_store.run_writer import BATCH_ROW, RunWriter

NEW_RUN_BYTES_MAX = 8 << 20
"""Of batches in a run that is made here: it is put together in memory."""

PIECE_BYTES = 256 << 10
"""Written and synced at a time: commits share the disk."""


class Lost(NamedTuple):
    """Offsets of a queue that no run of this node has: from `first`, up to but without `end`."""

    queue_id: int
    first: int
    end: int


class Found(NamedTuple):
    """What is left of a run."""

    extents: ExtentIndex | None
    """None: nobody can tell what was in it."""
    bad_rows: list[int]


class Owner(Protocol):
    """The queue store, as far as mending changes it."""

    def met(self, name: str, error: Exception) -> None:
        """A run is damaged."""
        ...

    async def renewed(self, name: str, how: str) -> None:
        """A run's file has other bytes."""
        ...

    async def replaced(self, name: str, by: Mapping[int, Sequence[RunFile]]) -> None:
        """Let these runs stand in a run's place, for each group it counts for. Raises `StorageError`."""
        ...

    def hold(self, name: str) -> None: ...

    def let_go(self, name: str) -> None: ...


class Mending:
    """Of one queue store."""

    def __init__(
        self, files: Files, manifest: Manifest, search: RunSearch, run_files: RunFiles, owner: Owner
    ) -> None:
        self._files = files
        self._manifest = manifest
        self._search = search
        self._run_files = run_files
        self._owner = owner

    async def examine(self, name: str, pace: Callable[[int], Awaitable[object]] | None = None) -> Found:
        """Look at every byte of a run. `pace` is awaited before so many bytes are read."""
        await self._run_files.renewed(name)  # the file as it is now, not as it was when it was opened
        run = self._search.run(name)
        try:
            index = await self._run_files.index(run, keep=False)
        except (StorageError, OSError):
            return Found(None, [])
        bad: list[int] = []
        async with self._run_files.opened(run) as file:
            for row, extent in enumerate(index.rows):
                length = int(extent["length"])
                if pace is not None:
                    await pace(length)
                try:
                    data = await file.read(int(extent["position"]), length)
                except OSError:
                    data = b""
                if len(data) != length or crc32c(data) != int(extent["crc"]):
                    bad.append(row)
        if bad:
            place = int(index.rows["position"][bad[0]])
            self._owner.met(name, FormatError(f"{name}: {len(bad)} extents fail their checks, the first at {place}"))
        return Found(index, bad)

    async def patch(self, name: str, extent: numpy.void, data: Buffer) -> None:
        """Put an extent's bytes in their place. Raises `StorageError` unless they are its bytes, and OSError."""
        if len(data) != int(extent["length"]) or crc32c(data) != int(extent["crc"]):
            raise StorageError(f"{name}: what came for the extent at {int(extent['position'])} is not what was there")
        file = await self._files.open(f"{RUNS_DIRECTORY}/{name}")
        try:
            await file.write(int(extent["position"]), [data], sync=True)
        finally:
            await file.close()

    async def whole_again(self, name: str, how: str) -> None:
        await self._owner.renewed(name, how)

    def ranges(self, name: str) -> dict[int, tuple[int, int]]:
        """Per group that the run counts for, the blocks (after, upto] it is of."""
        found: dict[int, tuple[int, int]] = {}
        for group in self._manifest.counts_for(name):
            mine = [entry for entry in self._manifest.ranges(group) if entry.name == name]
            found[group] = mine[0].after, mine[-1].upto
        return found

    async def lost(
        self, name: str, group: int, candidates: Iterable[tuple[int, int, int]], unreadable: Collection[str]
    ) -> list[Lost]:
        """Of stretches of a group's queues, as (queue id, first offset, end), what no run of the group has that can be
        read, and would have to be in this one: it lies behind what older runs have and before what newer ones have.
        Raises `StorageError`, OSError."""
        runs: list[FileRange] = []
        mine = 0
        for entry in self._manifest.ranges(group):
            if entry.name == name:
                mine = len(runs)
            elif entry.name not in unreadable:
                runs.append(entry)
        found: list[Lost] = []
        for queue_id, first, end in candidates:
            position, older = first, True
            while position < end:
                place = await self._search.find(queue_id, runs, position)
                start = end if place is None else int(place.extents.rows["base_offset"][place.row])
                newer = place is None or place.at >= mine
                if start > position and older and newer:
                    found.append(Lost(queue_id, position, min(start, end)))
                if place is None:
                    break
                older = place.at < mine
                position = int(place.extents.rows["last_offset"][place.row]) + 1
        return found

    async def write(self, like: RunFile, batches: Sequence[tuple[int, Buffer]]) -> RunFile:
        """A new run of batches, as (queue id, one batch or more), in the order of queues and offsets; whole and durable
        when this returns, and held. Raises `StorageError`, `ProtocolError` for what is no batch, and OSError."""
        name = f"mended-{uuid.uuid4().hex}{RUN_SUFFIX}"
        target = _InMemory()
        with RunWriter(name, target) as writer:
            for queue_id, data in batches:
                headers = []
                for at, header in walk_batches(data):
                    verify_checksum(memoryview(data)[at : at + header.size_bytes], header)
                    headers.append(header)
                writer.append([data], _rows(queue_id, headers))
            summary = writer.finish()
        file = RunFile(retention_class=like.retention_class, **summary._asdict())
        self._owner.hold(name)
        try:
            await copy_run(self._files, file, target.pieces())
        except BaseException:
            self._owner.let_go(name)
            raise
        return file

    async def replace(self, name: str, by: Mapping[int, Sequence[RunFile]]) -> None:
        """Let runs that were written here stand in a run's place; they are let go, whatever comes of it."""
        try:
            await self._owner.replaced(name, by)
        finally:
            for file in {file.name: file for files in by.values() for file in files}:
                self._owner.let_go(file)

    async def stretches(
        self, group: int, after: int, upto: int, queues_of: Callable[[ExtentIndex], numpy.ndarray]
    ) -> tuple[int, list[numpy.ndarray]]:
        """What the group's runs have that have blocks of (after, upto]: the last block they reach to, and per run an
        array of `STRETCH`. `queues_of` says of an index which rows are the group's. Raises `StorageError` when one of
        them cannot be read: what it held would be taken for nothing."""
        reached = upto
        found: list[numpy.ndarray] = []
        for entry in self._manifest.ranges(group):
            if entry.upto <= after or entry.after >= upto:
                continue
            reached = max(reached, entry.upto)
            try:
                index = await self._run_files.index(self._search.run(entry.name), keep=False)
            except OSError as error:
                raise FormatError(f"{entry.name}: {error}") from error
            found.append(stretches_of(index.rows[queues_of(index)]))
            await asyncio.sleep(0)
        return reached, found


STRETCH = numpy.dtype([("queue_id", "<u8"), ("first", "<i8"), ("end", "<i8")])


def stretches_of(rows: numpy.ndarray) -> numpy.ndarray:
    """Neighbouring extents of a queue in one."""
    if not len(rows):
        return numpy.zeros(0, STRETCH)
    begins = numpy.ones(len(rows), numpy.bool_)
    same = rows["queue_id"][1:] == rows["queue_id"][:-1]
    begins[1:] = ~(same & (rows["base_offset"][1:] == rows["last_offset"][:-1] + 1))
    firsts = numpy.flatnonzero(begins)
    lasts = numpy.append(firsts[1:], len(rows)) - 1
    found = numpy.zeros(len(firsts), STRETCH)
    found["queue_id"] = rows["queue_id"][firsts]
    found["first"] = rows["base_offset"][firsts]
    found["end"] = rows["last_offset"][lasts] + 1
    return found


def _rows(queue_id: int, headers: Sequence[BatchHeader]) -> numpy.ndarray:
    rows = numpy.zeros(len(headers), BATCH_ROW)
    for row, header in zip(rows, headers, strict=True):
        row["queue_id"] = queue_id
        row["base_offset"] = header.base_offset
        row["last_offset"] = header.next_offset - 1
        row["max_timestamp"] = header.max_timestamp
        row["length"] = header.size_bytes
        row["record_count"] = header.record_count
        row["leader_epoch"] = header.leader_epoch
    return rows


class _InMemory:
    """`RunTarget` whose bytes are written elsewhere once the run is finished."""

    def __init__(self) -> None:
        self._content = bytearray()

    def write(self, buffer: Buffer) -> None:
        self._content += buffer

    def finish(self) -> None:
        pass

    def abandon(self) -> None:
        self._content.clear()

    async def pieces(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._content), PIECE_BYTES):
            yield bytes(self._content[start : start + PIECE_BYTES])
