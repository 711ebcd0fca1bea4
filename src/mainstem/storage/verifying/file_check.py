"""Reads every byte of one store file, and compares all that says something about it.

A file's description in the manifest, its index, and its batches each say the same in their own words. The index is
checked as readers check it (`open_files`). The batches are read a window at a time: each extent against its CRC, each
batch against its own, the rows of the index against the headers of the batches. Of a queue segment, the entries of
Kafka's two indexes are made again from the batches and compared byte by byte.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, overload

import numpy
import numpy.typing

from mainstem.kernel import checksum_pieces, first_damaged, walk_batches
from mainstem.model import Buffer, partition_of
from mainstem.ports import ReadingMode
from mainstem.storage.errors import OutOfReach, StorageError
from mainstem.storage.extents.extent_index import ExtentIndex, Rows
from mainstem.storage.queue_store.reading.open_files import load_index
from mainstem.storage.queue_store.reading.stored_files import check_content
from mainstem.storage.store_files.segment_writer import (
    BATCH_FIELDS,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    IndexEntries,
)
from mainstem.storage.store_files.store_file import (
    SEGMENT_SUFFIX,
    FileKind,
    StoreFile,
    has_index_beside,
    index_path_of,
    kind_of,
    path_of,
    segment_key,
)
from mainstem.storage.verifying.findings import (
    FINDINGS_PER_FILE_MAX,
    KAFKA_INDEX_ADVICE,
    Affected,
    Finding,
    extents_advice,
    file_advice,
)

WINDOW_BYTES = 8 << 20
"""Bytes read at a time, unless one extent is larger."""

BYTES_PER_BATCH_MIN = 61
"""A batch has a header at least."""

Integers = numpy.typing.NDArray[numpy.int64]

Progress = Callable[[int], None]
"""Is told of bytes that were read."""


class Opened(Protocol):
    """A file that a check reads; as `ports.File`."""

    @overload
    async def read(self, position: int, length: int) -> bytes: ...

    @overload
    async def read(self, position: int, length: int, *, at_once: bool) -> Buffer: ...

    async def size(self) -> int: ...

    async def close(self) -> None: ...


class Opens(Protocol):
    """The files that a check reads; as `ports.Files`."""

    async def open(self, path: str, *, reading: ReadingMode = ...) -> Opened: ...


async def check_file(
    files: Opens, name: str, file: StoreFile | None = None, progress: Progress = lambda size: None
) -> list[Finding]:
    """The damage of a store file and of the files beside it, at most `FINDINGS_PER_FILE_MAX` findings. `file` is what
    the manifest says of it; None: it is checked by what it says of itself. Raises `StorageError` for what cannot be a
    file's name, and `OutOfReach` where the store of the file is out or refuses."""
    check = _FileCheck(files, name, file, progress)
    await check.run()
    return check.found


class _FileCheck:
    def __init__(self, files: Opens, name: str, file: StoreFile | None, progress: Progress) -> None:
        self._files = files
        self._name = name
        self._file = file
        self._progress = progress
        self._path = path_of(name)
        self._is_segment = kind_of(name) is FileKind.SEGMENT
        self._is_beside = has_index_beside(name)
        self._times: list[int] = []
        """Smallest and largest `max_timestamp` of each window's batches."""
        self.found: list[Finding] = []

    async def run(self) -> None:
        opened = await self._opened(self._path, file_advice(self._path))
        if opened is None:
            return
        try:
            size = await opened.size()
            if self._file is not None and size != self._file.bytes:
                self._note(None, f"has {size} bytes; the manifest says {self._file.bytes}", file_advice(self._path))
            index = await self._index(opened, size)
            if index is not None:
                self._check_described(index)
                await self._check_batches(opened, index)
        finally:
            await opened.close()

    def _note(
        self, position: int | None, what: str, advice: str, path: str = "", affected: Sequence[Affected] = ()
    ) -> None:
        if len(self.found) < FINDINGS_PER_FILE_MAX:
            path = path or self._path
            self.found.append(
                Finding(path=path, position=position, what=what, advice=advice, name=self._name, affected=affected)
            )

    async def _opened(self, path: str, advice: str) -> Opened | None:
        try:
            return await self._files.open(path, reading=ReadingMode.COLD)
        except FileNotFoundError:
            self._note(None, "is missing", advice, path)
        except OSError as error:
            self._note(None, f"cannot be opened: {error.strerror or error}", advice, path)
        return None

    async def _index(self, opened: Opened, size: int) -> ExtentIndex | None:
        path = index_path_of(self._name)
        advice = extents_advice(self._name, path)
        beside = await self._opened(path, advice) if self._is_beside else opened
        if beside is None:
            return None
        try:
            self._progress(await beside.size() if self._is_beside else 0)
            return await load_index(beside, path, self._name, size if self._is_beside else None)
        except OutOfReach:
            raise
        except (StorageError, OSError) as error:
            what = str(error).removeprefix(f"{path}: ")
            self._note(_place_in(what), what, advice, path)
            return None
        finally:
            if self._is_beside:
                await beside.close()

    def _check_described(self, index: ExtentIndex) -> None:
        """Note where the index does not fit the manifest or the file's name."""
        advice = extents_advice(self._name, index_path_of(self._name))
        if self._file is not None:
            try:
                check_content(index, self._file)
            except StorageError as error:
                self._note(None, str(error).removeprefix(f"{self._name}: "), advice)
        if self._is_segment and len(index):
            _topic, partition, base_offset = segment_key(self._name)
            queues, _firsts = index.queues()
            first = int(index.rows["base_offset"][0])
            if len(queues) != 1 or partition_of(int(queues[0])) != partition:
                self._note(None, f"its index is not of partition {partition} alone", advice, index_path_of(self._name))
            if first != base_offset:
                self._note(None, f"begins with offset {first}, which its name does not say", advice)

    async def _check_batches(self, opened: Opened, index: ExtentIndex) -> None:
        rows = index.rows
        entries: IndexEntries | None = None
        if self._is_beside:
            entries = IndexEntries(int(rows["base_offset"][0]) if len(rows) else 0)
        whole = True
        for chosen in _windows(rows):
            part = rows[chosen]
            position, size = int(part["position"][0]), int(part["length"].sum(dtype=numpy.int64))
            try:
                content = await opened.read(position, size, at_once=True)
            except OSError as error:
                whole = False
                what = f"{size} bytes cannot be read: {error.strerror or error}"
                self._note(position, what, file_advice(self._path), affected=affected_by(part))
                continue
            self._progress(len(content))
            seen = await asyncio.to_thread(_check_window, content, part)
            for number, place, what in seen.faults:
                row = part[number]
                self._note(
                    int(row["position"]) + place,
                    f"{what}, in the extent at {row['position']} with offsets {row['base_offset']} to "
                    f"{row['last_offset']} of partition {partition_of(int(row['queue_id']))} of topic number "
                    f"{int(row['queue_id']) >> 32}",
                    file_advice(self._path),
                    affected=affected_by(part[number : number + 1]),
                )
            whole = whole and not seen.faults
            if not seen.faults and len(seen.batches):
                self._times += [int(seen.batches[:, 4].min()), int(seen.batches[:, 4].max())]
                if entries is not None:
                    entries.add(seen.batches, position)
            if len(self.found) >= FINDINGS_PER_FILE_MAX:
                return
        if whole:
            self._check_times()
            if entries is not None:
                stem = self._path.removesuffix(SEGMENT_SUFFIX)
                await self._compare(stem + OFFSET_INDEX_SUFFIX, entries.offset_index())
                await self._compare(stem + TIME_INDEX_SUFFIX, entries.time_index())

    def _check_times(self) -> None:
        if self._file is None:
            return
        found = (min(self._times, default=-1), max(self._times, default=-1))
        said = (self._file.min_timestamp, self._file.max_timestamp)
        if found != said:
            self._note(
                None,
                f"its timestamps are from {found[0]} to {found[1]}; the manifest says {said[0]} to {said[1]}",
                file_advice(self._path),
            )

    async def _compare(self, path: str, right: bytes) -> None:
        """One of Kafka's indexes with what it should be."""
        opened = await self._opened(path, KAFKA_INDEX_ADVICE)
        if opened is None:
            return
        try:
            size = await opened.size()
            content = await opened.read(0, size)
        except OSError as error:
            self._note(None, f"cannot be read: {error.strerror or error}", KAFKA_INDEX_ADVICE, path)
            return
        finally:
            await opened.close()
        self._progress(len(content))
        if content != right:
            place = next(
                (at for at, (one, other) in enumerate(zip(content, right, strict=False)) if one != other), None
            )
            shorter = min(len(content), len(right))
            self._note(
                shorter if place is None else place,
                f"is not what the batches make of it ({len(content)} bytes, of which {len(right)} are due)",
                KAFKA_INDEX_ADVICE,
                path,
            )


def affected_by(rows: Rows) -> list[Affected]:
    """The offsets in extents that lie beside each other in an index, one stretch per queue."""
    if not len(rows):
        return []
    begins = numpy.flatnonzero(numpy.diff(rows["queue_id"], prepend=~rows["queue_id"][0]) != 0)
    ends = numpy.append(begins[1:], len(rows)) - 1
    return [
        Affected(int(rows["queue_id"][begin]), int(rows["base_offset"][begin]), int(rows["last_offset"][end]))
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
    ]


def _place_in(what: str) -> int | None:
    """The position that an error of an index names."""
    named = re.search(r"(?:footer|index) at (\d+)", what)
    if named is not None:
        return int(named[1])
    return 0 if what.startswith("header") else None


class _Window(NamedTuple):
    faults: list[tuple[int, int, str]]
    """Number of the row, position in its extent, and what is wrong."""
    batches: Integers
    """Rows of `BATCH_FIELDS`, where there are no faults."""


def _windows(rows: Rows) -> Iterator[slice]:
    """Neighbouring rows, in order, about `WINDOW_BYTES` at a time."""
    ends = numpy.cumsum(rows["length"], dtype=numpy.int64)
    first = 0
    while first < len(rows):
        before = int(ends[first - 1]) if first else 0
        end = max(first + 1, int(ends.searchsorted(before + WINDOW_BYTES, side="right")))
        yield slice(first, end)
        first = end


def _check_window(content: Buffer, rows: Rows) -> _Window:
    """Compare the bytes of neighbouring extents with their rows. Made for a thread."""
    lengths = rows["length"].astype(numpy.int64)
    view = memoryview(content).cast("B")
    if len(view) != int(lengths.sum()):
        return _Window([(0, len(view), "the file ends here")], _none())
    found = numpy.empty(len(rows), numpy.int64)
    checksum_pieces(view, lengths.data, found.data)
    if (found == rows["crc"]).all():
        window = _compared(view, rows)
        if not window.faults or len(rows) == 1:
            return window
    starts = numpy.cumsum(lengths) - lengths
    faults: list[tuple[int, int, str]] = []
    for number in range(len(rows)):
        extent = view[int(starts[number]) : int(starts[number] + lengths[number])]
        if found[number] == rows["crc"][number]:
            faults += [(number, place, what) for _, place, what in _compared(extent, rows[number : number + 1]).faults]
        else:
            place = _place_of_damage(extent)
            faults.append((number, place or 0, "fails its CRC" if place is None else "a batch fails its CRC"))
        if len(faults) >= FINDINGS_PER_FILE_MAX:
            break
    return _Window(faults, _none())


def _compared(view: memoryview, rows: Rows) -> _Window:
    """Compare batches with the rows of the extents that they are in. A fault names the first row; of several, call it
    for each."""
    room = numpy.empty((len(view) // BYTES_PER_BATCH_MIN + 1, len(BATCH_FIELDS)), numpy.int64)
    count = walk_batches(view, room.data.cast("B"))
    if count < 0:
        return _Window([(0, -1 - count, "this is no batch")], _none())
    batches = room[:count]
    position, length, base, last, times, records, epochs = (numpy.ascontiguousarray(batches[:, at]) for at in range(7))
    damaged = first_damaged(view, position.data, length.data, base.data, epochs.data)
    if damaged >= 0:
        return _Window([(0, int(position[damaged]), "a batch fails its CRC")], _none())
    lengths = rows["length"].astype(numpy.int64)
    starts = numpy.cumsum(lengths) - lengths
    firsts = position.searchsorted(starts)
    ends = numpy.append(firsts[1:], count)
    if (firsts >= count).any() or (position[numpy.minimum(firsts, count - 1)] != starts).any():
        return _Window([(0, 0, "no batch begins with the extent")], _none())
    rises = base[1:] > last[:-1]
    rises[firsts[1:] - 1] = True  # where the next extent begins; the index is in order
    pairs = (
        ("batches", ends - firsts, rows["batch_count"]),
        ("first offset", base[firsts], rows["base_offset"]),
        ("last offset", last[ends - 1], rows["last_offset"]),
        ("largest timestamp", numpy.maximum.reduceat(times, firsts), rows["max_timestamp"]),
        ("records", numpy.add.reduceat(records, firsts), rows["record_count"]),
        ("leader epoch", epochs[ends - 1], rows["leader_epoch"]),
    )
    for what, has, said in pairs:
        if (has != said).any():
            return _Window([(0, 0, f"{what}: {has[0]} in the batches, {said[0]} in the index")], _none())
    if not rises.all():
        return _Window([(0, int(position[int(rises.argmin()) + 1]), "a batch is not behind the one before")], _none())
    return _Window([], batches)


def _place_of_damage(extent: memoryview) -> int | None:
    """The position of the first wrong batch in a damaged extent; None: all batches look whole, so it is in their
    offsets or leader epochs, which their own CRCs do not cover."""
    room = numpy.empty((len(extent) // BYTES_PER_BATCH_MIN + 1, len(BATCH_FIELDS)), numpy.int64)
    count = walk_batches(extent, room.data.cast("B"))
    if count < 0:
        return -1 - count
    position, length, base, _last, _time, _records, epoch = (
        numpy.ascontiguousarray(room[:count, at]) for at in range(7)
    )
    damaged = first_damaged(extent, position.data, length.data, base.data, epoch.data)
    return int(position[damaged]) if damaged >= 0 else None


def _none() -> Integers:
    return numpy.empty((0, len(BATCH_FIELDS)), numpy.int64)
