"""Files of producer states on disk 1 hold the idempotent producers that a node does not keep in memory.

A file `producers/<number, 20 digits>.producers` has states of producers of one write group, sorted by queue and
producer, and never changes. Newer states lie in later files, or in memory.

    header, a page · rows, 26 to a page of 4 KiB · names, 16 bytes each

The header says how many there are, and has a checksum of its own and of the names; each page of rows ends with its own,
so that a flipped bit costs the producers of one page. The names are what memory keeps of a file: whether it has a
producer, and where. A checkpoint says which files count; the others are removed once it is saved.

As in a log-structured merge tree a producer may be in several files. The newest state is whole, unless it is marked
`partial`: then it goes on where an older file ends. `merged` reads files side by side and puts that together. A whole
state without a batch says that what was known of a producer is lost.

A damaged page is never skipped silently: `merged` reads on behind it, to find all damaged pages, and raises
`ProducersDamaged` in the end; `pieces_of` says which of the requested producers need the page. Only settled pages are
skipped (`producer_damage.py`): their producers lie whole in a newer file, or are lost for good.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.kernel import crc32c
from mainstem.kernel.pure.producer_states import KEY
from mainstem.ports import File, Files
from mainstem.storage.errors import FormatError, StorageError
from mainstem.storage.state.producers.producer_rows import STATE, Name, States, joined_states, up_to

log = logging.getLogger(__name__)

DIRECTORY = "producers"
SUFFIX = ".producers"
TEMPORARY = ".tmp"
MAGIC = b"MSPRODU1"

HEADER = struct.Struct("<8sQQI")
"""Magic, write group, count, CRC32C of the names; CRC32C of all that follows."""
CRC = struct.Struct("<I")

NAME = numpy.dtype([("queue_id", "<u8"), ("producer_id", "<i8")])
assert NAME.itemsize == KEY.size

PAGE_BYTES = 4096
ROWS_PER_PAGE = 26
ROWS_BYTES = ROWS_PER_PAGE * STATE.itemsize
assert ROWS_BYTES + CRC.size <= PAGE_BYTES

PAGES_AT_ONCE = 64
"""256 KiB with 1,664 producers: read, looked at or written in one turn of the event loop, a millisecond."""
PAGES_OF_EACH_MIN = 8
"""Read of a file at a time where several are read side by side, which share what is looked at in one turn."""

SYNC_PAGES = 1024
"""4 MiB are synced at a time, as the pieces of a checkpoint are: a large sync makes the journal's own wait."""

SEARCHES_PER_TURN = 512
"""Searches for names in a file made in one turn of the event loop: some milliseconds."""


class PageDamaged(FormatError):
    """A page of a file is not what was written; the message says where it is."""

    def __init__(self, message: str, file: str, page: int) -> None:
        """`page`: of those with rows, from 0."""
        super().__init__(message)
        self.file = file
        self.page = page


class ProducersDamaged(StorageError):
    """Some pages of these files cannot be read."""

    def __init__(self, pages: Sequence[PageDamaged]) -> None:
        super().__init__(f"{pages[0]}" + (f", and {len(pages) - 1} more pages" if len(pages) > 1 else ""))
        self.pages = pages


IsSettled = Callable[[str, int], bool]
"""Tells whether a damaged page of a file is settled, so that readers may skip it."""


class SavedFile(NamedTuple):
    """A file as a checkpoint names it."""

    name: str
    states: int


class ProducerFile(NamedTuple):
    """A file that counts. Its names: `NAME`s, sorted."""

    name: str
    states: int
    names: bytes

    def place_of(self, queue_id: int, producer_id: int) -> int:
        """The row of this producer; -1: none."""
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

    def names_of(self, page: int) -> list[Name]:
        """The names of the producers in a page."""
        content = self.names[page * ROWS_PER_PAGE * KEY.size : (page + 1) * ROWS_PER_PAGE * KEY.size]
        return list(dict.fromkeys(KEY.iter_unpack(content)))

    def saved(self) -> SavedFile:
        return SavedFile(self.name, self.states)


def path_of(name: str) -> str:
    return f"{DIRECTORY}/{name}"


# --- writing ----------------------------------------------------------------------------------------------


async def write(files: Files, number: int, group: int, pieces: AsyncIterator[States]) -> ProducerFile | None:
    """Write a file of states that come sorted; durable when it returns. None: there were none, and there is no file.
    Raises `ProducersDamaged` where the pieces do, and there is none either."""
    name = f"{number:020d}{SUFFIX}"
    temporary = path_of(name) + TEMPORARY
    try:
        content = await _write_all(files, temporary, group, pieces)
    except ProducersDamaged:
        await files.remove(temporary)
        raise
    if not content:
        await files.remove(temporary)
        return None
    await files.rename(temporary, path_of(name))
    return ProducerFile(name, len(content) // KEY.size, content)


async def _write_all(files: Files, path: str, group: int, pieces: AsyncIterator[States]) -> bytes:
    """Write a whole file; the names in it."""
    names: list[bytes] = []
    pages = 0
    left = numpy.zeros(0, STATE)
    file = await files.open(path, create=True)
    try:
        async for piece in pieces:
            rows = numpy.concatenate([left, piece]) if len(left) else piece
            whole = len(rows) - len(rows) % ROWS_PER_PAGE
            pages = await _write_pages(file, pages, rows[:whole], names)
            left = rows[whole:].copy()
        pages = await _write_pages(file, pages, left, names)
        content = b"".join(names)
        header = HEADER.pack(MAGIC, group, len(content) // KEY.size, crc32c(content))
        await file.write((1 + pages) * PAGE_BYTES, [content], sync=True)
        await file.write(0, [header, CRC.pack(crc32c(header))], sync=True)
    finally:
        await file.close()
    return content


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
        await asyncio.sleep(0)  # what is not synced may be written without a pause
    return pages


# --- reading ----------------------------------------------------------------------------------------------


async def open_named(files: Files, saved: SavedFile, group: int) -> ProducerFile:
    """A file that a checkpoint names. If its names are damaged they are made from the rows. Raises `FormatError` naming
    the file and what to do."""
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
    return await _named_by_rows(files, saved, names)


async def _named_by_rows(files: Files, saved: SavedFile, damaged: bytes) -> ProducerFile:
    """Of a damaged page each name is what the `damaged` names or its row say, whichever fits between its neighbours. If
    neither does, the row gets the name before it, which comes to the same row."""
    reading = ProducerFileReading(ProducerFile(saved.name, saved.states, b""), files)
    names: list[Name | None] = []
    unsure: dict[int, list[Name]] = {}
    try:
        for first in range(0, saved.states, ROWS_PER_PAGE):
            end = min(first + ROWS_PER_PAGE, saved.states)
            try:
                names += _names_in(await reading.rows(first, end))
                continue
            except PageDamaged as error:
                log.error("%s, and so may be the names of its producers", error)
            names += [None] * (end - first)
            rows = _names_in(await reading.unchecked(first, end))
            for place in range(first, end):
                told = [*KEY.iter_unpack(damaged[place * KEY.size : (place + 1) * KEY.size].ljust(KEY.size, b"\0"))]
                unsure[place] = [*told, *rows[place - first : place - first + 1]]
    finally:
        await reading.close()
    forgotten = 0
    for place, told in unsure.items():
        before = names[place - 1] if place else None
        behind = next((name for name in names[place + 1 :] if name is not None), None)
        agreed = told[:1] if len(set(told)) == 1 else told
        fits = [name for name in agreed if (not before or before < name) and (not behind or name < behind)]
        forgotten += not fits
        names[place] = fits[0] if fits else before or (0, 0)
    if forgotten:
        log.error("%s: the names of %d producers cannot be told; they are forgotten", path_of(saved.name), forgotten)
    return ProducerFile(saved.name, saved.states, b"".join(KEY.pack(*name) for name in names if name is not None))


def _names_in(rows: States) -> list[Name]:
    return list(zip(rows["queue_id"].tolist(), rows["producer_id"].tolist(), strict=True))


class ProducerFileReading:
    """A file that is read, a page or some of them at a time."""

    def __init__(self, file: ProducerFile, files: Files) -> None:
        self.file = file
        self._files = files
        self._open: File | None = None
        self._page = -1
        self._rows: States = numpy.zeros(0, STATE)
        """The rows of that page, the last that was read by itself."""

    async def rows(self, first: int, end: int) -> States:
        """Rows `first` … `end` - 1. Raises `PageDamaged` naming the page whose checksum is wrong."""
        page, pages = first // ROWS_PER_PAGE, -(-end // ROWS_PER_PAGE)
        content = await self._read(page, pages)
        rows = []
        for number in range(page, pages):
            one = content[(number - page) * PAGE_BYTES : (number - page + 1) * PAGE_BYTES]
            body = one[: -CRC.size]
            if len(one) < PAGE_BYTES or CRC.unpack_from(one, len(body))[0] != crc32c(body):
                raise self.damaged(number)
            rows.append(body[:ROWS_BYTES])
        found: States = numpy.frombuffer(b"".join(rows), STATE)
        return found[first - page * ROWS_PER_PAGE : end - page * ROWS_PER_PAGE]

    async def row(self, place: int, name: Name) -> numpy.void:
        """The row of a producer. Raises `PageDamaged`, also where another one's lies there."""
        page = place // ROWS_PER_PAGE
        if page != self._page:
            first = page * ROWS_PER_PAGE
            self._rows = await self.rows(first, min(first + ROWS_PER_PAGE, self.file.states))
            self._page = page
        row: numpy.void = self._rows[place % ROWS_PER_PAGE]
        if (int(row["queue_id"]), int(row["producer_id"])) != name:
            raise self.damaged(page)
        return row

    async def sound(self, first: int, end: int, damaged: list[PageDamaged]) -> States:
        """The readable rows among these; damaged pages are added to `damaged`."""
        try:
            return await self.rows(first, end)
        except PageDamaged:
            pages = []
            for page in range(first, end, ROWS_PER_PAGE):
                try:
                    pages.append(await self.rows(page, min(page + ROWS_PER_PAGE, end)))
                except PageDamaged as error:
                    damaged.append(error)
            return numpy.concatenate([*pages, numpy.zeros(0, STATE)])

    async def unchecked(self, first: int, end: int) -> States:
        """The bytes of one page as rows, unchecked; none if the page is cut short."""
        body = (await self._read(first // ROWS_PER_PAGE, first // ROWS_PER_PAGE + 1))[:ROWS_BYTES]
        found: States = numpy.frombuffer(body if len(body) == ROWS_BYTES else b"", STATE)
        return found[: end - first]

    async def _read(self, page: int, end: int) -> bytes:
        if self._open is None:
            self._open = await self._files.open(path_of(self.file.name))
        return await self._open.read((1 + page) * PAGE_BYTES, (end - page) * PAGE_BYTES)

    def damaged(self, page: int) -> PageDamaged:
        return PageDamaged(
            f"{path_of(self.file.name)}: the page of producers at byte {(1 + page) * PAGE_BYTES} is damaged",
            self.file.name,
            page,
        )

    async def close(self) -> None:
        if self._open is not None:
            await self._open.close()


# --- several files ----------------------------------------------------------------------------------------


async def merged(files: Files, sources: Sequence[ProducerFile], is_settled: IsSettled) -> AsyncIterator[States]:
    """All producers of these files, oldest file first, sorted, each once. Raises `ProducersDamaged` behind the last of
    them when there were pages that cannot be read and are not settled: then some are not what they should be."""
    step = max(PAGES_OF_EACH_MIN, PAGES_AT_ONCE // max(1, len(sources))) * ROWS_PER_PAGE
    readings = [ProducerFileReading(file, files) for file in sources]
    nexts = [0] * len(sources)
    held: list[States] = [numpy.zeros(0, STATE)] * len(sources)
    damaged: list[PageDamaged] = []
    try:
        while True:
            for number, reading in enumerate(readings):
                while not len(held[number]) and nexts[number] < reading.file.states:
                    first, end = nexts[number], min(nexts[number] + step, reading.file.states)
                    held[number] = await reading.sound(first, end, damaged)
                    nexts[number] = end
            lasts = [
                (int(rows[-1]["queue_id"]), int(rows[-1]["producer_id"]))
                for rows, reading, at in zip(held, readings, nexts, strict=True)
                if len(rows) and at < reading.file.states
            ]
            taken = []
            for number, rows in enumerate(held):
                count = up_to(rows, *min(lasts)) if lasts else len(rows)
                taken.append(rows[:count])
                held[number] = rows[count:]
            if any(map(len, taken)):
                yield await joined_states(taken)
            elif not lasts:
                break
            await asyncio.sleep(0)
    finally:
        for reading in readings:
            await reading.close()
    unsettled = [error for error in damaged if not is_settled(error.file, error.page)]
    if unsettled:
        raise ProducersDamaged(unsettled)


async def damaged_pages(files: Files, sources: Sequence[ProducerFile], is_settled: IsSettled) -> list[PageDamaged]:
    """The pages of these files that cannot be read and are not settled."""
    step = PAGES_AT_ONCE * ROWS_PER_PAGE
    damaged: list[PageDamaged] = []
    for file in sources:
        reading = ProducerFileReading(file, files)
        try:
            for first in range(0, file.states, step):
                await reading.sound(first, min(first + step, file.states), damaged)
                await asyncio.sleep(0)
        finally:
            await reading.close()
    return [error for error in damaged if not is_settled(error.file, error.page)]


class Pieces(NamedTuple):
    """The states of some producers in files."""

    rows: dict[Name, list[numpy.void]]
    """The newest whole state, and what partial ones there are behind it, oldest first."""
    damaged: dict[Name, PageDamaged]
    """Producers whose whole state lies behind a damaged page, and the first such page."""
    unread: dict[Name, OSError]
    """Producers for which a file cannot be read now."""


async def pieces_of(files: Files, sources: Sequence[ProducerFile], names: Iterable[Name]) -> Pieces:
    """The states of these producers in these files, newest file first; files behind a whole state are not read."""
    found = Pieces({}, {}, {})
    wanted = sorted(names)
    for source in reversed(sources):
        places = []
        for count, name in enumerate(wanted, 1):
            place = source.place_of(*name)
            if place >= 0:
                places.append((place, name))
            if count % SEARCHES_PER_TURN == 0:
                await asyncio.sleep(0)
        if places:
            done = await _add_pieces(files, source, places, found)
            wanted = [name for name in wanted if name not in done]
    return found


async def _add_pieces(
    files: Files, source: ProducerFile, places: Sequence[tuple[int, Name]], found: Pieces
) -> set[Name]:
    """Put what one file has before what newer ones have; those of whom older ones need not be asked."""
    done: set[Name] = set()
    reading = ProducerFileReading(source, files)
    try:
        for place, name in places:
            try:
                row = await reading.row(place, name)
            except PageDamaged as error:
                found.damaged[name] = error
                done.add(name)
                continue
            found.rows.setdefault(name, []).insert(0, row)
            if not row["partial"]:
                done.add(name)
    except OSError as error:
        unread = dict.fromkeys((name for _place, name in places if name not in done), error)
        found.unread.update(unread)
        done |= unread.keys()
    finally:
        await reading.close()
    return done
