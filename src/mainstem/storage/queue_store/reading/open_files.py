"""Open files of the queue store: their descriptors and their indexes, both bounded.

A file is checked as a whole when its index is loaded: header, footer, and an index whose extents cover the batches
without a gap. The index is at the end of runs and packed files, and beside queue segments. Readers check the extents
they read. When a file's index is evicted, a summary stays in memory (`file_summaries`). Of a large index look-ups read
pages; those that were read last are kept.

A dropped file leaves the directory at once; a reader that has it pinned finishes on the open descriptor.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol, TypeVar

import numpy

from mainstem.lru import Lru
from mainstem.model import Buffer
from mainstem.ports import ColdPart, File, Files, ReadingMode, ReadsParts
from mainstem.storage.disks.single_flight import SingleFlight
from mainstem.storage.errors import FormatError, StorageError
from mainstem.storage.extents import extent_pages
from mainstem.storage.extents.aborted import (
    ABORTED_ROW_BYTES,
    AbortedRows,
    check_section,
    checked_rows,
    fits,
    no_rows,
)
from mainstem.storage.extents.extent_format import (
    EXTENT_ROW_BYTES,
    FRAME_BYTES,
    INDEX_MAGIC,
    RUN_MAGIC,
    FileFrame,
    name_crc_of,
)
from mainstem.storage.extents.extent_index import ExtentIndex
from mainstem.storage.extents.extent_pages import ExtentPages
from mainstem.storage.queue_store.reading.file_summaries import FileSummaries, summary_of
from mainstem.storage.store_files.store_file import has_index_beside, index_path_of, path_of, paths_of

Result = TypeVar("Result")

INLINE_INDEX_BYTES_MAX = 128 * 1024
"""A larger index is checked in a thread: its checks would take the event loop more than about 0.2 ms."""


ABORTED_SHARE = 4
"""Indexes of aborted transactions are kept in this part of what indexes may have, beside them. A transactional queue
has a row in each file, at 40 bytes, and one more for each transaction that was aborted."""

ABORTED_KEPT_BYTES = 256
"""Memory that one of them takes besides its rows."""

PAGES_SHARE = 8
"""Pages that were read are kept in this part of what indexes may have, beside them: 400 with the default."""


TOGETHER_BYTES_MAX = 1 << 20
"""Of pages that are read in one go: as long as the disk takes for it other reads wait, as for a chunk."""

KEPT_PER_BYTE = 1.25
"""Memory that a byte of a page takes: `ExtentIndex` has two of its columns a second time."""


class FileGone(StorageError):
    """The file was dropped or replaced during the read; search those that count now."""


class Readable(Protocol):
    """A file, or a part of one, from which an index is read."""

    async def read(self, position: int, length: int) -> bytes: ...

    async def size(self) -> int: ...


async def load_index(file: Readable, where: str, name: str, segment_bytes: int | None = None) -> ExtentIndex:
    """The index in `file`, after checking everything but the batches: of the file of this name, which ends with it, or
    of a queue segment of so many bytes beside which it lies. Raises `FormatError` naming `where`."""
    magic = RUN_MAGIC if segment_bytes is None else INDEX_MAGIC
    size = await file.size()
    if size < 2 * FRAME_BYTES:
        raise FormatError(f"{where}: {size} bytes have no room for header and footer")
    header = FileFrame.unpack(await file.read(0, FRAME_BYTES), magic, f"{where}: header")
    if header != FileFrame(magic, version=header.version):
        raise FormatError(f"{where}: header describes what only a footer can")
    footer_position = size - FRAME_BYTES
    tail = await file.read(footer_position - FRAME_BYTES, 2 * FRAME_BYTES)
    frame = FileFrame.unpack(tail[FRAME_BYTES:], magic, f"{where}: footer at {footer_position}")
    if frame.name_crc != name_crc_of(name) and (frame.name_crc or segment_bytes is not None):
        raise FormatError(f"{where}: this is another file's")
    rows_bytes = frame.row_count * EXTENT_ROW_BYTES
    rows_position = FRAME_BYTES + (frame.batch_bytes if segment_bytes is None else 0)
    rows_end = rows_position + rows_bytes
    behind_rows = footer_position - rows_end
    if frame.rows_position != rows_position or not fits(frame, behind_rows):
        raise FormatError(
            f"{where}: {frame.batch_bytes} bytes of batches and {frame.row_count} index rows do not make up "
            f"its {size} bytes"
        )
    if header.version != frame.version:
        raise FormatError(f"{where}: its header is of format {header.version}, its footer of format {frame.version}")
    if behind_rows:
        await _section_rows(file, check_section(tail[:FRAME_BYTES], frame, rows_end, behind_rows, where), where)
    if segment_bytes is not None and segment_bytes != frame.batch_bytes:
        raise FormatError(f"{where}: it describes a segment of {frame.batch_bytes} bytes, this has {segment_bytes}")
    first = FRAME_BYTES if segment_bytes is None else 0
    content = await file.read(frame.rows_position, rows_bytes)
    if rows_bytes > INLINE_INDEX_BYTES_MAX:
        return await asyncio.to_thread(_checked_index, frame, content, where, first)
    return _checked_index(frame, content, where, first)


async def load_aborted(file: Readable, where: str, name: str, *, beside: bool) -> AbortedRows:
    """The index of aborted transactions in `file`, which is the file of this name, or lies `beside` a queue segment.
    Raises `FormatError` naming `where`."""
    size = await file.size()
    if size < 2 * FRAME_BYTES:
        raise FormatError(f"{where}: {size} bytes have no room for header and footer")
    tail = await file.read(size - 2 * FRAME_BYTES, 2 * FRAME_BYTES)
    frame = FileFrame.unpack(tail[FRAME_BYTES:], INDEX_MAGIC if beside else RUN_MAGIC, f"{where}: footer")
    if frame.name_crc != name_crc_of(name) and (frame.name_crc or beside):
        raise FormatError(f"{where}: this is another file's")
    rows_end = frame.rows_position + frame.row_count * EXTENT_ROW_BYTES
    behind_rows = size - FRAME_BYTES - rows_end
    if behind_rows < 0 or not fits(frame, behind_rows):
        raise FormatError(f"{where}: {frame.row_count} index rows do not fit its {size} bytes")
    if not behind_rows:
        return no_rows()
    return await _section_rows(file, check_section(tail[:FRAME_BYTES], frame, rows_end, behind_rows, where), where)


async def _section_rows(file: Readable, section: FileFrame, where: str) -> AbortedRows:
    if not section.row_count:
        return checked_rows(section, b"", where)
    return checked_rows(
        section, bytes(await file.read(section.rows_position, section.row_count * ABORTED_ROW_BYTES)), where
    )


def _checked_index(frame: FileFrame, content: bytes, where: str, first: int) -> ExtentIndex:
    """`first`: where the first batch lies."""
    index = ExtentIndex.load(frame, content, where)
    positions = index.rows["position"]
    edges = numpy.concatenate((numpy.array([first], numpy.uint64), positions + index.rows["length"]))
    if not numpy.array_equal(positions, edges[:-1]) or int(edges[-1]) != first + frame.batch_bytes:
        raise FormatError(f"{where}: the extents of its index do not cover its batches")
    return index


async def _beside_the_loop(index: ExtentIndex, work: Callable[[], Result]) -> Result:
    """The result of work that grows with the rows of an index: in a thread where these are many."""
    if index.rows.nbytes > INLINE_INDEX_BYTES_MAX:
        return await asyncio.to_thread(work)
    return work()


class KnownFile:
    """The facts that memory keeps of a file in the manifest, however long nobody reads it."""

    __slots__ = ("dropped", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.dropped = False


class _PageRows(NamedTuple):
    """The rows of neighbouring pages, which were read and checked. They stand for their file as long as `pages` do."""

    pages: ExtentPages
    rows: ExtentIndex


class _Opened:
    __slots__ = ("closed", "file", "pins")

    def __init__(self, file: File) -> None:
        self.file = file
        self.pins = 0
        self.closed = False

    async def close_if_idle(self) -> None:
        if self.pins == 0 and not self.closed:
            self.closed = True
            await self.file.close()


class _Pinned:
    """A file that stays open inside the `async with`: a read of old data has one, and a generator would cost more."""

    __slots__ = ("_known", "_open_files", "_opened")

    def __init__(self, open_files: OpenFiles, known: KnownFile) -> None:
        self._open_files = open_files
        self._known = known
        self._opened: _Opened

    async def __aenter__(self) -> File:
        self._opened = await self._open_files.pin(self._known)
        return self._opened.file

    async def __aexit__(self, *_raised: object) -> None:
        await self._open_files.unpin(self._known, self._opened)


class FileSource:
    """A file as the read cache sees it."""

    def __init__(self, open_files: OpenFiles, known: KnownFile) -> None:
        self._open_files = open_files
        self.known = known
        self.name = known.name

    async def read(self, position: int, length: int, *, at_once: bool) -> Buffer:
        async with self._open_files.opened(self.known) as file:
            return await file.read(position, length, at_once=at_once)


class OpenFiles:
    """Descriptors and indexes of files."""

    def __init__(
        self,
        files: Files,
        *,
        index_bytes_max: int,
        open_files_max: int,
        check: Callable[[str, ExtentIndex], None] = lambda name, index: None,
        damaged: Callable[[str, Exception], None] = lambda name, error: None,
    ) -> None:
        """`check` raises `StorageError` for an index that is not what a file of that name has; `damaged` is called for
        every file that cannot be read, except dropped ones."""
        self._check = check
        self._files = files
        self._together = files if isinstance(files, ReadsParts) else None
        self._damaged = damaged
        self._open_files_max = open_files_max
        self._opened: OrderedDict[str, _Opened] = OrderedDict()
        self._opens: SingleFlight[str, _Opened] = SingleFlight()
        self._indexes: Lru[str, ExtentIndex] = Lru(index_bytes_max, lambda index: index.memory_bytes)
        self._page_bytes_max = index_bytes_max // PAGES_SHARE
        self._page_rows: Lru[tuple[str, int, int], _PageRows] = Lru(
            self._page_bytes_max, lambda held: held.rows.memory_bytes
        )
        """By file, first page and the page behind the last."""
        self._aborted: Lru[str, AbortedRows] = Lru(
            index_bytes_max // ABORTED_SHARE, lambda rows: rows.nbytes + ABORTED_KEPT_BYTES
        )
        self._aborted_loads: SingleFlight[str, AbortedRows] = SingleFlight()
        self._brought: SingleFlight[tuple[str, int], None] = SingleFlight()
        """Pages that are read together, by the first file and the queue."""
        self._index_loads: SingleFlight[str, ExtentIndex] = SingleFlight()
        self.summaries = FileSummaries()
        self.index_loads = 0

    @property
    def index_bytes(self) -> int:
        return self._indexes.held + self.summaries.held_bytes

    @property
    def page_bytes(self) -> int:
        """Of the pages that were read, beside `index_bytes`."""
        return self._page_rows.held

    @property
    def open_count(self) -> int:
        return len(self._opened)

    async def index(self, known: KnownFile, *, keep: bool = True) -> ExtentIndex:
        """The file's index. `keep`: keep it in memory, in place of indexes that were not used for longer. Raises
        `FormatError` when the file is damaged, `FileGone` when it was dropped, `StorageError` when it is missing,
        OSError."""
        index = self._indexes.get(known.name) if keep else self._indexes.peek(known.name)
        if index is not None:
            return index
        with self._noting(known):
            if not keep:
                return await self._look_at_index(known)
            index = await self._index_loads.run(known.name, lambda: self._look_at_index(known))
        if not known.dropped:
            self._indexes.put(known.name, index)
        return index

    def reads_pages(self, known: KnownFile) -> bool:
        """Whether a look-up reads pages of a file's index, which memory has not as a whole."""
        return known.name not in self._indexes and self.summaries.pages(known.name) is not None

    def has_rows(self, known: KnownFile, queue_id: int) -> bool:
        """Whether `rows_with` needs no read of the file, or one is under way."""
        return known.name in self._index_loads or self.held_rows(known, queue_id) is not None

    async def rows_with(self, known: KnownFile, queue_id: int) -> ExtentIndex:
        """As `index`, but perhaps only some rows of it: all those of this queue, and neighbours."""
        index = self._indexes.get(known.name)
        if index is not None:
            return index
        pages = self.summaries.pages(known.name)
        if pages is not None:
            wanted = pages.of_queue(queue_id)
            if len(wanted) > extent_pages.PAGES_AT_ONCE_MAX or pages.are_worth_the_whole:
                pages.reads = 0
                return await self.index(known)
            try:
                return await self._rows_of_pages(known, pages, wanted)
            except FormatError:  # the file is damaged, or another was put in its place: the whole index tells
                self.summaries.pop(known.name)
        with self._noting(known):
            index = await self._index_loads.run(known.name, lambda: self._look_at_index(known))
        pages = self.summaries.pages(known.name)
        is_kept = pages is None or len(pages.of_queue(queue_id)) > extent_pages.PAGES_AT_ONCE_MAX
        if is_kept and not known.dropped:
            self._indexes.put(known.name, index)
        return index

    async def aborted(self, known: KnownFile) -> AbortedRows:
        """The file's index of aborted transactions. Raises as `index`."""
        rows = self._aborted.get(known.name)
        if rows is not None:
            return rows
        with self._noting(known):
            rows = await self._aborted_loads.run(known.name, lambda: self._look_at_aborted(known))
        if not known.dropped:
            self._aborted.put(known.name, rows)
        return rows

    def held_aborted(self, known: KnownFile) -> AbortedRows | None:
        """The result of `aborted`, if memory has it."""
        return self._aborted.peek(known.name)

    # --- many files together ------------------------------------------------------------------------------

    def has_small_queues(self, known: KnownFile) -> bool:
        """Whether a file has so many queues that pages of its index are read, as far as memory knows."""
        return self._together is not None and self.summaries.pages(known.name) is not None

    def held_index(self, known: KnownFile) -> ExtentIndex | None:
        """The result of `index`, if memory has it."""
        return self._indexes.get(known.name)

    def held_rows(self, known: KnownFile, queue_id: int) -> ExtentIndex | None:
        """The result of `rows_with`, if memory has it."""
        index = self._indexes.get(known.name)
        pages = self.summaries.pages(known.name)
        if index is not None or pages is None:
            return index
        wanted = pages.of_queue(queue_id)
        held = self._page_rows.get((known.name, wanted.start, wanted.stop))
        return held.rows if held is not None and held.pages is pages else None

    async def bring_pages(
        self, queue_id: int, files: Iterable[KnownFile]
    ) -> list[tuple[KnownFile, ExtentIndex | None]]:
        """Read in one go the pages with rows of a queue that memory lacks, of those of these files whose indexes are
        read in pages. Returns the files, each with what memory has then. A page that cannot be read so is left to the
        look-up that needs it, which reports what is wrong."""
        found = [(known, self.held_rows(known, queue_id)) for known in files]
        wanted: list[tuple[KnownFile, ExtentPages, range]] = []
        room = min(TOGETHER_BYTES_MAX, self._page_bytes_max / KEPT_PER_BYTE)
        for known, held in found:
            pages = None if held is not None else self.summaries.pages(known.name)
            if pages is None or pages.are_worth_the_whole:
                continue
            numbers = pages.of_queue(queue_id)
            room -= pages.place(numbers)[1]
            if room < 0:
                break
            wanted.append((known, pages, numbers))
        if not wanted:
            return found
        await self._brought.run((wanted[0][0].name, queue_id), lambda: self._read_pages_together(wanted))
        return [(known, self.held_rows(known, queue_id) if held is None else held) for known, held in found]

    async def read_together(self, parts: Sequence[tuple[str, int, int]]) -> list[bytes | None]:
        """Bytes of files, by name, position and length; None for what cannot be read so."""
        if self._together is None:
            return [None] * len(parts)
        return await self._together.read_parts(
            [ColdPart(path_of(name), position, length) for name, position, length in parts]
        )

    async def _read_pages_together(self, wanted: Sequence[tuple[KnownFile, ExtentPages, range]]) -> None:
        contents = await self.read_together([(known.name, *pages.place(numbers)) for known, pages, numbers in wanted])
        for (known, pages, numbers), content in zip(wanted, contents, strict=True):
            if content is None:
                continue
            try:
                rows = pages.checked(numbers, content)
            except FormatError:  # the look-up meets it again
                continue
            pages.reads += 1
            self._page_rows.put((known.name, numbers.start, numbers.stop), _PageRows(pages, rows))

    # --- descriptors --------------------------------------------------------------------------------------

    async def _rows_of_pages(self, known: KnownFile, pages: ExtentPages, wanted: range) -> ExtentIndex:
        key = (known.name, wanted.start, wanted.stop)
        held = self._page_rows.get(key)
        if held is not None and held.pages is pages:
            return held.rows
        rows = await self._read_pages(known, pages, wanted)
        pages.reads += 1
        self._page_rows.put(key, _PageRows(pages, rows))
        return rows

    async def _read_pages(self, known: KnownFile, pages: ExtentPages, wanted: range) -> ExtentIndex:
        with self._noting(known, but=FormatError):
            async with self.opened(known) as file:
                return pages.checked(wanted, bytes(await file.read(*pages.place(wanted), at_once=True)))

    @contextmanager
    def _noting(self, known: KnownFile, but: type[StorageError] = FileGone) -> Iterator[None]:
        """Report what keeps a file from being read, unless the file was dropped, or the error is of the kind `but`."""
        try:
            yield
        except (FileGone, but):
            raise
        except (StorageError, OSError) as error:
            self._damaged(known.name, error)
            raise

    def opened(self, known: KnownFile) -> _Pinned:
        """The open file in an `async with`, in which it stays open even if it is dropped from the manifest. Raises as
        `index`."""
        return _Pinned(self, known)

    async def pin(self, known: KnownFile) -> _Opened:
        """The open file, which its user gives back with `unpin`. Raises as `index`."""
        opened = self._opened.get(known.name)
        while opened is None or opened.closed:  # closed by another task before this one pinned it
            opened = await self._opens.run(known.name, lambda: self._open(known))
        opened.pins += 1
        if known.name in self._opened:
            self._opened.move_to_end(known.name)
        return opened

    async def unpin(self, known: KnownFile, opened: _Opened) -> None:
        opened.pins -= 1
        if self._opened.get(known.name) is not opened:
            await opened.close_if_idle()

    async def remove(self, known: KnownFile) -> None:
        """Delete the file; the manifest has forgotten it. It may be there again after a loss of power, and is an orphan
        then: a sync for each file of a merge would have commits wait for the disk as often."""
        known.dropped = True
        self._indexes.pop(known.name)
        self._aborted.pop(known.name)
        self.summaries.pop(known.name)
        opened = self._opened.pop(known.name, None)
        own, *beside = paths_of(known.name)
        for path in reversed(beside):
            await self._files.remove(path)
        await self._files.remove(own, durable=False)  # last: what is left of it is found by its name
        if opened is not None:
            await opened.close_if_idle()

    async def close(self) -> None:
        while self._opened:
            _name, opened = self._opened.popitem()
            await opened.close_if_idle()

    async def renewed(self, name: str) -> None:
        """Drop descriptor and index of a file, because it or its bytes were replaced."""
        self._indexes.pop(name)
        self._aborted.pop(name)
        self.summaries.pop(name)
        opened = self._opened.pop(name, None)
        if opened is not None:
            await opened.close_if_idle()

    async def _look_at_index(self, known: KnownFile) -> ExtentIndex:
        self.index_loads += 1
        async with self.opened(known) as file:
            if has_index_beside(known.name):
                index = await self._look_beside(known, await file.size())
            else:
                index = await load_index(file, path_of(known.name), known.name)
        await _beside_the_loop(index, lambda: self._check(known.name, index))
        if not known.dropped and self.summaries.lacks(known.name, index):
            summary = await _beside_the_loop(index, lambda: summary_of(known.name, index))
            if not known.dropped:
                self.summaries.keep(known.name, summary)
        return index

    async def _look_at_aborted(self, known: KnownFile) -> AbortedRows:
        path = index_path_of(known.name)
        if not has_index_beside(known.name):
            async with self.opened(known) as file:
                return await load_aborted(file, path, known.name, beside=False)
        try:
            beside = await self._files.open(path, reading=ReadingMode.COLD)
        except FileNotFoundError as error:
            raise self._missing(known, path) from error
        try:
            return await load_aborted(beside, path, known.name, beside=True)
        finally:
            await beside.close()

    async def _look_beside(self, known: KnownFile, segment_bytes: int) -> ExtentIndex:
        path = index_path_of(known.name)
        try:
            beside = await self._files.open(path, reading=ReadingMode.COLD)
        except FileNotFoundError as error:
            raise self._missing(known, path) from error
        try:
            return await load_index(beside, path, known.name, segment_bytes)
        finally:
            await beside.close()

    def _missing(self, known: KnownFile, path: str) -> StorageError:
        if known.dropped:
            return FileGone(f"{path}: dropped")
        return StorageError(
            f"{path}: the manifest names this file, but it is not there; restore it from a copy or a replica"
        )

    async def _open(self, known: KnownFile) -> _Opened:
        path = path_of(known.name)
        try:
            file = await self._files.open(path, reading=ReadingMode.COLD)
        except FileNotFoundError as error:
            raise self._missing(known, path) from error
        opened = _Opened(file)
        await self._close_surplus()
        if not known.dropped:
            self._opened[known.name] = opened
        return opened

    async def _close_surplus(self) -> None:
        """Make room for one more descriptor, as far as there are idle ones."""
        surplus = len(self._opened) + 1 - self._open_files_max
        idle = [name for name, opened in self._opened.items() if opened.pins == 0]
        for name in idle[: max(surplus, 0)]:
            opened = self._opened.get(name)
            if opened is not None and opened.pins == 0:
                del self._opened[name]
                await opened.close_if_idle()
