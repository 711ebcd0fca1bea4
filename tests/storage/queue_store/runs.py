"""Runs and disks for the tests of the queue store: small batches, a disk that is watched, runs on it."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import google_crc32c
import msgspec
import numpy
import pytest
from tests.fakes.files import SimulatedFile, SimulatedFiles

from mainstem.kernel import walk_batches
from mainstem.kernel.batch_header import ATTRIBUTES_AT, TRANSACTIONAL_BIT
from mainstem.model import Buffer
from mainstem.ports import ColdPart, ReadingMode
from mainstem.storage.extents import extent_pages
from mainstem.storage.extents.aborted import AbortedRows, no_rows, section_of
from mainstem.storage.extents.extent_format import (
    ABORTED_VERSION,
    EXTENT_ROW,
    EXTENT_ROW_BYTES,
    FORMAT_VERSION,
    FRAME_BYTES,
    INDEX_MAGIC,
    RUN_MAGIC,
    TRANSACTIONAL,
    FileFrame,
    name_crc_of,
)
from mainstem.storage.queue_store.manifest.manifest_rows import COPY_DIRECTORY
from mainstem.storage.queue_store.manifest.store_mark import MARK_NAME
from mainstem.storage.queue_store.reading import file_summaries
from mainstem.storage.store_files.run_writer import BATCH_ROW, RunSummary, RunWriter
from mainstem.storage.store_files.segment_writer import BATCH_FIELDS, IndexEntries
from mainstem.storage.store_files.store_file import StoreFile, index_path_of, path_of, paths_of


class Batch(NamedTuple):
    """A record batch as far as the queue store looks at it: a true header, any bytes for records."""

    queue_id: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    leader_epoch: int
    data: bytes


def make_batch(
    queue_id: int,
    base_offset: int,
    *,
    records: int = 1,
    size: int = 80,
    timestamp: int = 1000,
    epoch: int = 1,
    seed: int = 0,
) -> Batch:
    body = struct.pack(">hiqqqhii", 0, records - 1, timestamp, timestamp, -1, -1, -1, records)
    body += random.Random(queue_id * 1_000_003 + base_offset * 31 + seed).randbytes(max(0, size - 61))
    head = struct.pack(">qiibI", base_offset, len(body) + 9, epoch, 2, google_crc32c.value(body))
    return Batch(queue_id, base_offset, base_offset + records - 1, timestamp, epoch, head + body)


def describe(batches: Sequence[Batch]) -> numpy.ndarray:
    """Rows of `BATCH_ROW`."""
    rows = numpy.zeros(len(batches), BATCH_ROW)
    for row, batch in zip(rows, batches, strict=True):
        row["queue_id"], row["base_offset"], row["last_offset"] = batch[:3]
        row["max_timestamp"], row["leader_epoch"] = batch.max_timestamp, batch.leader_epoch
        row["length"] = len(batch.data)
        row["record_count"] = batch.last_offset - batch.base_offset + 1
        row["flags"] = TRANSACTIONAL if batch.data[ATTRIBUTES_AT + 1] & TRANSACTIONAL_BIT else 0
    return rows


def in_order(batches: Iterable[Batch]) -> list[Batch]:
    return sorted(batches, key=lambda batch: batch[:2])


def write(
    writer: RunWriter, batches: Iterable[Batch], piece: int = 64, aborted: AbortedRows | None = None
) -> RunSummary:
    """Sort the batches, write them in pieces of so many, finish."""
    batches = in_order(batches)
    with writer:
        for start in range(0, len(batches), piece):
            part = batches[start : start + piece]
            writer.append([b"".join(batch.data for batch in part)], describe(part))
        return writer.finish(aborted)


def extent_rows(*rows: tuple[int, int, int, int, int]) -> numpy.ndarray:
    """Rows of `EXTENT_ROW` from (queue id, base offset, last offset, max timestamp, length)."""
    result = numpy.zeros(len(rows), EXTENT_ROW)
    for row, values in zip(result, rows, strict=True):
        for field, value in zip(
            ("queue_id", "base_offset", "last_offset", "max_timestamp", "length"), values, strict=True
        ):
            row[field] = value
    return result


class WatchedFiles(SimulatedFiles):
    """The simulated disk, which also tells what was read, and can hold reads of runs back."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.reads: list[tuple[str, int, int]] = []
        """(path, position, length) of every read."""
        self.open_count = 0
        self.opened: list[str] = []
        self.together: list[list[ColdPart]] = []
        """The bytes read in one go each time."""
        self.gate: asyncio.Event | None = None
        """While there is one that is not set, reads of runs wait for it."""

    async def open(self, path: str, *, create: bool = False, reading: ReadingMode = ReadingMode.USUAL) -> SimulatedFile:
        file = await super().open(path, create=create)
        self.open_count += 1
        self.opened.append(path)
        return WatchedFile(file, self)

    async def read_parts(self, parts: Sequence[ColdPart]) -> list[bytes | None]:
        self.together.append(list(parts))
        return await super().read_parts(parts)


def store_paths(files: SimulatedFiles) -> set[str]:
    """The files there but the store's mark and the copy of its manifest."""
    return {path for path in files.paths() if path != MARK_NAME and not path.startswith(f"{COPY_DIRECTORY}/")}


class WatchedFile(SimulatedFile):
    def __init__(self, file: SimulatedFile, watched: WatchedFiles) -> None:
        self.__dict__.update(file.__dict__)
        self._watched = watched

    async def read(self, position: int, length: int, *, at_once: bool = False) -> bytes:
        self._watched.reads.append((self._path, position, length))
        if self._watched.gate is not None and self._path.startswith("runs/"):
            await self._watched.gate.wait()
        content = await super().read(position, length, at_once=at_once)
        assert not self._closed, f"{self._path} was closed under a reader"
        return content

    async def close(self) -> None:
        if not self._closed:
            self._watched.open_count -= 1
        await super().close()


@contextmanager
def indexes_in_pages(page_rows: int) -> Iterator[None]:
    """Have the indexes of all runs and packed files be read in pages of so many rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_summaries, "SMALL_QUEUES_BYTES_MIN", 0)
        patch.setattr(extent_pages, "PAGED_BYTES_MIN", 0)
        patch.setattr(extent_pages, "PAGE_ROWS", page_rows)
        patch.setattr(extent_pages, "PAGE_BYTES", page_rows * EXTENT_ROW_BYTES)
        yield


class SimulatedTarget:
    """`RunTarget` onto a simulated disk."""

    def __init__(self, files: SimulatedFiles, name: str) -> None:
        self._files = files
        self._name = name
        self._content = bytearray()

    def write(self, buffer: Buffer) -> None:
        self._content += buffer

    def finish(self) -> None:
        self._files.put(path_of(self._name), bytes(self._content))

    def abandon(self) -> None:
        self._content.clear()


def write_run(
    files: SimulatedFiles,
    name: str,
    batches: Iterable[Batch],
    retention_class: str = "forever",
    version: int = FORMAT_VERSION,
) -> StoreFile:
    """A finished run in memory, described as a split does."""
    summary = write(RunWriter(name, SimulatedTarget(files, name), version), batches)
    return StoreFile(retention_class=retention_class, **summary._asdict())


def write_merged(
    files: SimulatedFiles, name: str, group: int, batches: Iterable[Batch], *, level: int = 1
) -> StoreFile:
    """A packed file or, by its name, a queue segment with its siblings, described as a merge does."""
    batches = in_order(batches)
    file = write_run(files, name, batches, version=ABORTED_VERSION)
    if len(paths_of(name)) > 1:
        content = files.content(path_of(name))
        footer = FileFrame.unpack(content[-FRAME_BYTES:], RUN_MAGIC, name)
        rows = numpy.frombuffer(content, EXTENT_ROW, footer.row_count, footer.rows_position).copy()
        rows["position"] -= FRAME_BYTES
        frame = footer._replace(
            magic=INDEX_MAGIC,
            rows_crc=google_crc32c.value(rows.tobytes()),
            rows_position=FRAME_BYTES,
            name_crc=name_crc_of(name),
        )
        header = FileFrame(INDEX_MAGIC, version=ABORTED_VERSION)
        aborted = section_of(no_rows(), FRAME_BYTES + rows.nbytes, frame.name_crc)
        files.put(index_path_of(name), header.pack() + rows.tobytes() + aborted + frame.pack())
        files.put(path_of(name), content[FRAME_BYTES : footer.rows_position])
        log = files.content(path_of(name))
        fields = numpy.empty((len(batches), len(BATCH_FIELDS)), numpy.int64)
        assert walk_batches(log, fields.data.cast("B")) == len(batches)
        entries = IndexEntries(batches[0].base_offset)
        entries.add(fields, 0)
        for path, content in zip(paths_of(name)[2:], (entries.offset_index(), entries.time_index()), strict=True):
            files.put(path, content)
        file = msgspec.structs.replace(file, bytes=file.batch_bytes)
    return msgspec.structs.replace(
        file,
        level=level,
        group=group,
        first_queue=batches[0].queue_id,
        last_queue=batches[-1].queue_id,
        first_offset=batches[0].base_offset,
    )
