"""Inputs of merges, and their outputs read back from the words of `docs/formats.md`, apart from all that is tested."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import google_crc32c
import numpy
from tests.fakes.splitting.run_reader import batches_in, check_aborted, read_run, rows_and_aborted
from tests.storage.queue_store.runs import Batch, write

from mainstem.model import Buffer
from mainstem.storage.extents.aborted import AbortedRows
from mainstem.storage.extents.extent_format import (
    ABORTED_VERSION,
    EXTENT_ROW,
    FORMAT_VERSION,
    FRAME_BYTES,
    INDEX_MAGIC,
    FileFrame,
)
from mainstem.storage.extents.extent_index import QueueIds
from mainstem.storage.merging.merge_files import merge_files
from mainstem.storage.merging.merge_inputs import InputFile
from mainstem.storage.merging.merge_lines import MergeLines
from mainstem.storage.merging.merge_liveness import NO_END, Liveness, LiveOffsets
from mainstem.storage.merging.merge_measure import Measured, TopicFacts, measure
from mainstem.storage.store_files.run_writer import RunWriter
from mainstem.storage.store_files.store_file import StoreFile, has_index_beside, index_path_of, path_of, paths_of

TOPIC = "orders"
INTERVAL = 4096
GROUP = 3


class PlainTarget:
    """A file that is written as it comes, and there under its name at the end only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content = bytearray()

    def write(self, buffer: Buffer) -> None:
        self._content += memoryview(buffer).cast("B")

    def finish(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        assert not self._path.exists(), f"{self._path} is written twice"
        self._path.write_bytes(self._content)

    def abandon(self) -> None:
        self._content.clear()


class MergeStore:
    """A queue store's directory, its files, and what is live in them."""

    def __init__(
        self, root: Path, starts: Mapping[int, int] | None = None, ends: Mapping[int, int] | None = None
    ) -> None:
        self.root = root
        self.starts = dict(starts or {})
        self.ends = dict(ends or {})
        self.asked: list[int] = []
        self.facts: dict[int, TopicFacts] = {0: TopicFacts(TOPIC, "default", 1 << 30)}

    def run(self, number: int, batches: Sequence[Batch], aborted: AbortedRows | None = None) -> InputFile:
        name = f"{number}.run"
        version = FORMAT_VERSION if aborted is None else ABORTED_VERSION
        write(RunWriter(name, PlainTarget(self.root / path_of(name)), version), batches, aborted=aborted)
        return self.input(name)

    def input(self, name: str) -> InputFile:
        return InputFile(name, str(self.root / path_of(name)), str(self.root / index_path_of(name)))

    def ask(self, queue_ids: QueueIds) -> LiveOffsets:
        self.asked += queue_ids.tolist()
        return LiveOffsets(
            numpy.array([self.starts.get(queue, 0) for queue in queue_ids.tolist()], numpy.int64),
            numpy.array([self.ends.get(queue, NO_END) for queue in queue_ids.tolist()], numpy.int64),
        )

    def measure(self, inputs: Sequence[InputFile], lines: MergeLines) -> Measured:
        return measure(inputs, Liveness(self.ask), self.facts, lines)

    def merge(
        self, inputs: Sequence[InputFile], lines: MergeLines, level: int = 2, *, joined: bool = False
    ) -> list[StoreFile]:
        """Task by task; all files, in the order of their keys."""
        done: list[StoreFile] = []
        for task in self.measure(inputs, lines).tasks:
            done += merge_files(
                task, inputs, Liveness(self.ask), lambda path: PlainTarget(self.root / path), group=GROUP, level=level,
                joined=joined,
            )  # fmt: skip
        return done

    def live(self, batches: Iterable[Batch]) -> dict[int, list[bytes]]:
        """The rows that a merge is to keep of these."""
        kept: dict[int, list[bytes]] = {}
        for batch in sorted(batches, key=lambda batch: (batch.queue_id, batch.base_offset)):
            queue = batch.queue_id
            if batch.last_offset >= self.starts.get(queue, 0) and batch.base_offset < self.ends.get(queue, NO_END):
                kept.setdefault(queue, []).append(batch.data)
        return kept

    def read(self, files: Iterable[StoreFile]) -> dict[int, list[bytes]]:
        """The batches of these files by queue, each file checked against its description and its indexes."""
        found: dict[int, list[bytes]] = {}
        for file in files:
            for queue, batches in self._read(file).items():
                found.setdefault(queue, []).extend(batches)
        return found

    def _read(self, file: StoreFile) -> dict[int, list[bytes]]:
        path = self.root / path_of(file.name)
        assert path.stat().st_size == file.bytes
        found = {file.first_queue: read_segment(self.root, file)} if has_index_beside(file.name) else read_run(path)
        batches = [batch for queue in found.values() for batch in queue]
        assert (min(found), max(found), len(found)) == (file.first_queue, file.last_queue, file.queue_count)
        assert first_offset(found[file.first_queue][0]) == file.first_offset
        assert (len(batches), sum(map(len, batches))) == (file.batch_count, file.batch_bytes)
        assert sum(record_count(batch) for batch in batches) == file.record_count
        times = [max_timestamp(batch) for batch in batches]
        assert (min(times), max(times)) == (file.min_timestamp, file.max_timestamp)
        assert file.group == GROUP
        return found


def first_offset(batch: bytes) -> int:
    return int.from_bytes(batch[:8], "big", signed=True)


def last_offset(batch: bytes) -> int:
    return first_offset(batch) + int.from_bytes(batch[23:27], "big")


def max_timestamp(batch: bytes) -> int:
    return int.from_bytes(batch[35:43], "big", signed=True)


def record_count(batch: bytes) -> int:
    return int.from_bytes(batch[57:61], "big")


def read_segment(root: Path, file: StoreFile) -> list[bytes]:
    log, extents, index, timeindex = (root / path for path in paths_of(file.name))
    content = log.read_bytes()
    batches = batches_in(content)
    assert log.name == f"{file.first_offset:020d}.log"
    check_extents(extents.read_bytes(), content, file)
    assert list(struct.iter_unpack(">ii", index.read_bytes())) == offset_entries(batches)
    assert list(struct.iter_unpack(">qi", timeindex.read_bytes())) == time_entries(batches)
    return batches


def check_extents(data: bytes, content: bytes, file: StoreFile) -> None:
    assert FileFrame.unpack(data[:FRAME_BYTES], INDEX_MAGIC, "header") == FileFrame(INDEX_MAGIC, version=2)
    footer = FileFrame.unpack(data[-FRAME_BYTES:], INDEX_MAGIC, "footer")
    index, behind = rows_and_aborted(data, footer)
    check_aborted(behind, footer, FRAME_BYTES + len(index))
    assert footer.version == 2
    assert google_crc32c.value(index) == footer.rows_crc
    assert google_crc32c.value(file.name.encode()) == footer.name_crc
    assert (footer.rows_position, footer.batch_bytes) == (FRAME_BYTES, len(content))
    assert (footer.min_timestamp, footer.max_timestamp) == (file.min_timestamp, file.max_timestamp)
    position = 0
    for row in numpy.frombuffer(index, EXTENT_ROW, footer.row_count):
        extent = content[position : position + int(row["length"])]
        assert (row["queue_id"], row["position"], row["crc"]) == (
            file.first_queue,
            position,
            google_crc32c.value(extent),
        )
        inside = batches_in(extent)
        assert (row["base_offset"], row["last_offset"]) == (first_offset(inside[0]), last_offset(inside[-1]))
        assert (row["batch_count"], row["record_count"]) == (len(inside), sum(map(record_count, inside)))
        assert row["max_timestamp"] == max(map(max_timestamp, inside))
        position += len(extent)
    assert position == len(content)


def offset_entries(batches: Sequence[bytes]) -> list[tuple[int, int]]:
    """As Kafka's LogSegment writes them while it appends."""
    base, position, since, entries = first_offset(batches[0]), 0, 0, []
    for batch in batches:
        if since > INTERVAL:
            entries.append((last_offset(batch) - base, position))
            since = 0
        position += len(batch)
        since += len(batch)
    return entries


def time_entries(batches: Sequence[bytes]) -> list[tuple[int, int]]:
    base, since = first_offset(batches[0]), 0
    newest, brought_by = -1, base
    entries: list[tuple[int, int]] = []

    def maybe_append() -> None:
        if newest > (entries[-1][0] if entries else -1):
            entries.append((newest, brought_by - base))

    for batch in batches:
        if max_timestamp(batch) > newest:
            newest, brought_by = max_timestamp(batch), last_offset(batch)
        if since > INTERVAL:
            maybe_append()
            since = 0
        since += len(batch)
    maybe_append()
    return entries
