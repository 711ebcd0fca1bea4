"""Files of producer states on disk 1: what a node knows of idempotent producers beyond what it holds in memory.

A file `producers/<number, 20 digits>.producers` has states of producers of one write group, sorted by queue and
producer, and never changes. What is newer lies in later files, or in memory.

    header, a page · rows, 26 to a page of 4 KiB · names, 16 bytes each

The header says how many there are, and has a checksum of its own and of the names; each page of rows ends with its own,
so that a flipped bit costs the producers of one page. The names are what memory keeps of a file: whether it has a
producer, and where. A checkpoint says which files count; the others are removed once it is saved.

As in a log-structured merge tree a producer may be in several files. The newest state is whole, unless it is marked
`partial`: then it goes on where an older file ends. `merged` reads files side by side and puts that together.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.kernel import crc32c
from mainstem.kernel.pure.producer_states import KEY, PARTIAL_AT, joined, row_of, states_of
from mainstem.ports import File, Files
from mainstem.storage.errors import FormatError

log = logging.getLogger(__name__)

DIRECTORY = "producers"
SUFFIX = ".producers"
TEMPORARY = ".tmp"
MAGIC = b"MSPRODU1"

HEADER = struct.Struct("<8sQQI")
"""Magic, write group, count, CRC32C of the names; CRC32C of all that follows."""
CRC = struct.Struct("<I")

STATE = numpy.dtype([
    ("queue_id", "<u8"), ("producer_id", "<i8"), ("last_timestamp_ms", "<i8"), ("epoch", "<i2"), ("count", "u1"),
    ("zeros", "V3"), ("partial", "u1"), ("zero", "V1"),
    ("batches", [
        ("base_sequence", "<i4"), ("last_sequence", "<i4"), ("base_offset", "<i8"), ("block_index", "<i8"),
    ], 5),
])  # fmt: skip
"""As `ProducerStates.image` and `ProducerStates.changed` have them."""
assert STATE.fields is not None
assert STATE.fields["partial"][1] == PARTIAL_AT

NAME = numpy.dtype([("queue_id", "<u8"), ("producer_id", "<i8")])
assert NAME.itemsize == KEY.size

PAGE_BYTES = 4096
ROWS_PER_PAGE = 26
ROWS_BYTES = ROWS_PER_PAGE * STATE.itemsize
assert ROWS_BYTES + CRC.size <= PAGE_BYTES

PAGES_AT_ONCE = 64
"""256 KiB with 1,664 producers: read, looked at or written in one turn of the event loop, a millisecond."""

SYNC_PAGES = 1024
"""4 MiB are synced at a time, as the pieces of a checkpoint are: a large sync makes the journal's own wait."""

States = numpy.typing.NDArray[numpy.void]


class SavedFile(NamedTuple):
    """What a checkpoint says of a file."""

    name: str
    states: int


class ProducerFile(NamedTuple):
    """A file that counts. Its names: `NAME`s, sorted."""

    name: str
    states: int
    names: bytes

    def place_of(self, queue_id: int, producer_id: int) -> int:
        """Which row is this producer's; -1: none."""
        low, high = 0, self.states
        while low < high:
            middle = (low + high) // 2
            found = KEY.unpack_from(self.names, middle * KEY.size)
            if found == (queue_id, producer_id):
                return middle
            if found < (queue_id, producer_id):
                low = middle + 1
            else:
                high = middle
        return -1

    def saved(self) -> SavedFile:
        return SavedFile(self.name, self.states)


def path_of(name: str) -> str:
    return f"{DIRECTORY}/{name}"


# --- writing ----------------------------------------------------------------------------------------------


async def write(files: Files, number: int, group: int, pieces: AsyncIterator[States]) -> ProducerFile | None:
    """Write a file of states that come sorted; durable when it returns. None: there were none, and there is no file."""
    name = f"{number:020d}{SUFFIX}"
    temporary = path_of(name) + TEMPORARY
    names: list[bytes] = []
    pages = 0
    left = numpy.zeros(0, STATE)
    file = await files.open(temporary, create=True)
    try:
        async for piece in pieces:
            rows = numpy.concatenate([left, piece]) if len(left) else piece
            whole = len(rows) - len(rows) % ROWS_PER_PAGE
            pages = await _write_pages(file, pages, rows[:whole], names)
            left = rows[whole:].copy()
        pages = await _write_pages(file, pages, left, names)
        content = b"".join(names)
        count = len(content) // KEY.size
        header = HEADER.pack(MAGIC, group, count, crc32c(content))
        await file.write((1 + pages) * PAGE_BYTES, [content], sync=True)
        await file.write(0, [header, CRC.pack(crc32c(header))], sync=True)
    finally:
        await file.close()
    if not count:
        await files.remove(temporary)
        return None
    await files.rename(temporary, path_of(name))
    return ProducerFile(name, count, content)


async def _write_pages(file: File, pages: int, rows: States, names: list[bytes]) -> int:
    """Write these rows behind `pages` of them; how many pages there are then."""
    step = PAGES_AT_ONCE * ROWS_PER_PAGE
    for first in range(0, len(rows), step):
        part = rows[first : first + step]
        name = numpy.empty(len(part), NAME)
        name["queue_id"], name["producer_id"] = part["queue_id"], part["producer_id"]
        names.append(name.tobytes())
        content = part.tobytes()
        page: list[bytes] = []
        for at in range(0, len(content), ROWS_BYTES):
            body = content[at : at + ROWS_BYTES].ljust(PAGE_BYTES - CRC.size, b"\0")
            page += (body, CRC.pack(crc32c(body)))
        synced = pages // SYNC_PAGES != (pages + len(page) // 2) // SYNC_PAGES
        await file.write((1 + pages) * PAGE_BYTES, page, sync=synced)
        pages += len(page) // 2
    return pages


# --- reading ----------------------------------------------------------------------------------------------


async def open_named(files: Files, saved: SavedFile, group: int) -> ProducerFile:
    """A file that a checkpoint names. Where its names are damaged they are made from the rows. Raises `FormatError`
    naming the file and what to do."""
    path = path_of(saved.name)
    try:
        file = await files.open(path)
    except FileNotFoundError:
        raise FormatError(
            f"{path}: is missing, and the checkpoint says that it counts; restore write_dir as a whole, or have the "
            "node replaced"
        ) from None
    try:
        content = await file.read(0, HEADER.size + CRC.size)
        pages = -(-saved.states // ROWS_PER_PAGE)
        names = await file.read((1 + pages) * PAGE_BYTES, saved.states * KEY.size)
    finally:
        await file.close()
    if len(content) == HEADER.size + CRC.size:
        magic, of_group, count, names_crc = HEADER.unpack_from(content)
        sound = CRC.unpack_from(content, HEADER.size)[0] == crc32c(content[: HEADER.size])
        if sound and (magic, of_group, count) != (MAGIC, group, saved.states):
            raise FormatError(
                f"{path}: has {count} producers of write group {of_group}, not {saved.states} of {group} as the "
                "checkpoint says; restore write_dir as a whole, or have the node replaced"
            )
        if sound and len(names) == saved.states * KEY.size and crc32c(names) == names_crc:
            return ProducerFile(saved.name, saved.states, names)
    log.error("%s: header or names are damaged; the names are made anew from the rows", path)
    return await _named_by_rows(files, saved)


async def _named_by_rows(files: Files, saved: SavedFile) -> ProducerFile:
    """Those in damaged pages are left out: they get the name before them, which comes to the same row."""
    reading = Reading(ProducerFile(saved.name, saved.states, b""), files)
    names = numpy.zeros(saved.states, NAME)
    try:
        for first in range(0, saved.states, ROWS_PER_PAGE):
            end = min(first + ROWS_PER_PAGE, saved.states)
            try:
                rows = await reading.rows(first, end)
            except FormatError as error:
                log.error("%s; its producers are forgotten", error)
                names[first:end] = names[first - 1] if first else 0
                continue
            names["queue_id"][first:end], names["producer_id"][first:end] = rows["queue_id"], rows["producer_id"]
    finally:
        await reading.close()
    return ProducerFile(saved.name, saved.states, names.tobytes())


class Reading:
    """A file that is read, a page or some of them at a time."""

    def __init__(self, file: ProducerFile, files: Files) -> None:
        self.file = file
        self._files = files
        self._open: File | None = None

    async def rows(self, first: int, end: int) -> States:
        """Rows `first` … `end` - 1. Raises `FormatError` naming the page whose checksum is wrong."""
        if self._open is None:
            self._open = await self._files.open(path_of(self.file.name))
        page, pages = first // ROWS_PER_PAGE, -(-end // ROWS_PER_PAGE)
        content = await self._open.read((1 + page) * PAGE_BYTES, (pages - page) * PAGE_BYTES)
        rows = []
        for number in range(pages - page):
            one = content[number * PAGE_BYTES : (number + 1) * PAGE_BYTES]
            body = one[: -CRC.size]
            if len(one) < PAGE_BYTES or CRC.unpack_from(one, len(body))[0] != crc32c(body):
                raise FormatError(
                    f"{path_of(self.file.name)}: the page of producers at byte {(1 + page + number) * PAGE_BYTES} is "
                    "damaged"
                )
            rows.append(body[:ROWS_BYTES])
        found: States = numpy.frombuffer(b"".join(rows), STATE)
        return found[first - page * ROWS_PER_PAGE : end - page * ROWS_PER_PAGE]

    async def close(self) -> None:
        if self._open is not None:
            await self._open.close()


# --- several files ----------------------------------------------------------------------------------------


async def merged(files: Files, sources: Sequence[ProducerFile], lost: list[str]) -> AsyncIterator[States]:
    """All producers of these files, oldest file first, sorted, each once. What cannot be read is left out, and said in
    `lost`."""
    step = PAGES_AT_ONCE * ROWS_PER_PAGE
    readings = [Reading(file, files) for file in sources]
    nexts = [0] * len(sources)
    held: list[States] = [numpy.zeros(0, STATE)] * len(sources)
    try:
        while True:
            for number, reading in enumerate(readings):
                while not len(held[number]) and nexts[number] < reading.file.states:
                    first, end = nexts[number], min(nexts[number] + step, reading.file.states)
                    held[number] = await _readable(reading, first, end, lost)
                    nexts[number] = end
            lasts = [
                (int(rows[-1]["queue_id"]), int(rows[-1]["producer_id"]))
                for rows, reading, at in zip(held, readings, nexts, strict=True)
                if len(rows) and at < reading.file.states
            ]
            taken = []
            for number, rows in enumerate(held):
                count = _up_to(rows, *min(lasts)) if lasts else len(rows)
                taken.append(rows[:count])
                held[number] = rows[count:]
            if any(map(len, taken)):
                yield joined_states(taken)
            elif not lasts:
                return
            await asyncio.sleep(0)
    finally:
        for reading in readings:
            await reading.close()


async def _readable(reading: Reading, first: int, end: int, lost: list[str]) -> States:
    try:
        return await reading.rows(first, end)
    except FormatError:
        pages = []
        for page in range(first, end, ROWS_PER_PAGE):
            try:
                pages.append(await reading.rows(page, min(page + ROWS_PER_PAGE, end)))
            except FormatError as error:
                lost.append(str(error))
        return numpy.concatenate([*pages, numpy.zeros(0, STATE)])


def _up_to(rows: States, queue_id: int, producer_id: int) -> int:
    """How many of these sorted rows are at or before a producer."""
    queues = rows["queue_id"]
    return int(((queues < queue_id) | ((queues == queue_id) & (rows["producer_id"] <= producer_id))).sum())


def sorted_states(rows: States) -> States:
    order = numpy.lexsort((rows["producer_id"], rows["queue_id"]))
    found: States = rows[order]
    return found


def joined_states(parts: Sequence[States]) -> States:
    """Of each producer in sorted parts, oldest first, the one state that all of them come to, sorted."""
    rows = numpy.concatenate(parts)
    order = numpy.lexsort((rows["producer_id"], rows["queue_id"]))  # stable: of one producer the oldest comes first
    rows = rows[order]
    again = (rows["queue_id"][1:] == rows["queue_id"][:-1]) & (rows["producer_id"][1:] == rows["producer_id"][:-1])
    last = numpy.append(~again, True) if len(rows) else numpy.zeros(0, bool)
    kept: States = rows[last]
    firsts = numpy.flatnonzero(numpy.insert(~again, 0, True)) if len(rows) else numpy.zeros(0, int)
    lasts = numpy.flatnonzero(last)
    for number in numpy.flatnonzero((kept["partial"] != 0) & (firsts < lasts)).tolist():
        kept[number] = _whole(rows[firsts[number] : lasts[number] + 1])
    return kept


def _whole(rows: States) -> numpy.void:
    """The states of one producer put together, oldest first; partial as far as the oldest that counts is."""
    states = [state for *_key, state in states_of(rows.tobytes())]
    partial = [bool(flag) for flag in rows["partial"].tolist()]
    first = max((place for place, flag in enumerate(partial) if not flag), default=0)
    state = states[first]
    for newer in states[first + 1 :]:
        state = joined(state, newer)
    made = numpy.frombuffer(row_of(int(rows[0]["queue_id"]), int(rows[0]["producer_id"]), state), STATE).copy()
    made["partial"] = partial[first]
    one: numpy.void = made[0]
    return one
