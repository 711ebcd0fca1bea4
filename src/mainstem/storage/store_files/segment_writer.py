"""Writes a queue segment: one queue's batches as Kafka keeps them on its disk, and what lies beside them.

Four files of one directory. `.log` has the batches, and nothing else. `.index` and `.timeindex` are Kafka's, entry by
entry what Kafka would have written while it appended the same batches. `.extents` is Mainstem's index of `.log`: the
rows of its extents between two frames, and the index of aborted transactions. The `.log` gets its name last, so where
it is all four are whole.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

import numpy
import numpy.typing

from mainstem.kernel import crc32c
from mainstem.model import Buffer
from mainstem.storage.errors import FormatError
from mainstem.storage.extents.aborted import AbortedRows, no_rows, rows_within, section_of
from mainstem.storage.extents.extent_format import ABORTED_VERSION, FRAME_BYTES, INDEX_MAGIC, FileFrame, name_crc_of
from mainstem.storage.store_files.extents_writer import BATCH_ROW, Array, ExtentsWriter
from mainstem.storage.store_files.run_target import RunTarget
from mainstem.storage.store_files.run_writer import RunSummary
from mainstem.storage.store_files.store_file import EXTENTS_SUFFIX, SEGMENT_SUFFIX

OFFSET_INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"

INDEX_INTERVAL_BYTES = 4096
"""Kafka's `index.interval.bytes`: more than so many bytes lie between batches that have an entry."""

OFFSETS_MAX = (1 << 31) - 1
"""Kafka counts offsets from the segment's first, and bytes from its beginning, in 31 bits."""

OFFSET_ENTRY = numpy.dtype([("offset", ">i4"), ("position", ">i4")])
TIME_ENTRY = numpy.dtype([("timestamp", ">i8"), ("offset", ">i4")])
BATCH_FIELDS = ("position", "length", "base_offset", "last_offset", "max_timestamp", "record_count", "leader_epoch")

Integers = numpy.typing.NDArray[numpy.int64]

OpenSibling = Callable[[str], RunTarget]
"""Opens the file with this suffix, in place of `.log`."""


class SegmentWriter:
    """Writes one segment. Use as a context manager: leaving it without `finish` abandons it."""

    def __init__(self, name: str, base_offset: int, open_sibling: OpenSibling, *, over_gaps: bool = False) -> None:
        """`name`: of the `.log`, as the manifest has it. `base_offset`: of the first batch. `over_gaps`: as
        `ExtentsWriter` has it."""
        self._name = name
        self._open_sibling = open_sibling
        self._target = open_sibling(SEGMENT_SUFFIX)
        self._written = ExtentsWriter(name, self._target, 0, over_gaps=over_gaps)
        self._entries = IndexEntries(base_offset)
        self._finished = False

    def __enter__(self) -> SegmentWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._finished:
            self._target.abandon()

    def append(self, content: Buffer, extents: Array, batches: Integers) -> None:
        """Append whole extents (`EXTENT_ROW`) or batches (`BATCH_ROW`), `content` being their bytes; `batches` has a
        row of `BATCH_FIELDS` for each batch in it. Raises as `ExtentsWriter.append`, and FormatError where the segment
        grows beyond what Kafka can count."""
        assert not self._finished
        at = self._written.batch_bytes
        self._entries.add(batches, at)
        if at + len(content) > OFFSETS_MAX:
            raise FormatError(f"{self._name}: {at + len(content)} bytes are more than a segment can have")
        self._written.append([content], extents, int(batches[:, 4].min()))

    def finish(self, aborted: AbortedRows | None = None) -> RunSummary:
        """Make the four files durable and visible, the `.log` last. `aborted`: as `RunWriter.finish` has it."""
        assert not self._finished, "a segment is finished once"
        written = self._written
        rows = written.rows()
        index = rows.tobytes()
        high = int(rows["max_timestamp"].max()) if len(rows) else -1
        name_crc = name_crc_of(self._name)
        ended = no_rows() if aborted is None else rows_within(aborted, rows)
        section = section_of(ended, FRAME_BYTES + len(index), name_crc)
        frame = FileFrame(
            INDEX_MAGIC,
            crc32c(index),
            FRAME_BYTES,
            len(rows),
            written.batch_bytes,
            written.min_timestamp,
            high,
            name_crc,
            ABORTED_VERSION,
        )
        siblings = {
            EXTENTS_SUFFIX: FileFrame(INDEX_MAGIC, version=ABORTED_VERSION).pack() + index + section + frame.pack(),
            OFFSET_INDEX_SUFFIX: self._entries.offset_index(),
            TIME_INDEX_SUFFIX: self._entries.time_index(),
        }
        for suffix, content in siblings.items():
            target = self._open_sibling(suffix)
            try:
                target.write(content)
                target.finish()
            except BaseException:
                target.abandon()
                raise
        self._target.finish()
        self._finished = True
        return RunSummary(
            name=self._name,
            bytes=written.batch_bytes,
            batch_bytes=written.batch_bytes,
            batch_count=written.batch_count,
            record_count=written.record_count,
            queue_count=written.queue_count,
            min_timestamp=written.min_timestamp,
            max_timestamp=high,
        )


def described(batches: Integers, queue_id: int, flags: numpy.typing.NDArray[numpy.uint32] | None = None) -> Array:
    """Rows of `BATCH_FIELDS` of one queue as rows of `BATCH_ROW`, with the flags of each."""
    rows = numpy.zeros(len(batches), BATCH_ROW)
    rows["queue_id"] = queue_id
    for field in ("base_offset", "last_offset", "max_timestamp", "length", "record_count", "leader_epoch"):
        rows[field] = batches[:, BATCH_FIELDS.index(field)]
    if flags is not None:
        rows["flags"] = flags
    return rows


class IndexEntries:
    """The entries of Kafka's two indexes, as `LogSegment.append` of Kafka makes them of batch after batch.

    A batch that starts more than `INDEX_INTERVAL_BYTES` behind the last one with an entry gets one: its last offset and
    its position. With each goes the largest timestamp so far and the last offset of the batch that brought it, if it is
    larger than the one before; and one such at the end."""

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset
        self._offsets: list[numpy.typing.NDArray[numpy.void]] = []
        self._times: list[numpy.typing.NDArray[numpy.void]] = []
        self._indexed_at = 0
        self._newest = (-1, base_offset)
        """The largest timestamp so far, and its batch's last offset."""
        self._newest_indexed = -1

    def add(self, batches: Integers, at: int) -> None:
        """Rows of `BATCH_FIELDS` whose positions count from `at`. Raises FormatError for an offset too far from the
        segment's first."""
        if not len(batches):
            return
        positions = batches[:, 0] + at
        offsets = batches[:, 3] - self._base_offset
        if int(offsets[-1]) > OFFSETS_MAX:
            raise FormatError(f"offset {batches[-1, 3]} cannot be in the segment that begins with {self._base_offset}")
        times = numpy.concatenate(([self._newest[0]], batches[:, 4]))
        so_far = numpy.maximum.accumulate(times)
        rises = times[1:] > so_far[:-1]
        brought_by = numpy.maximum.accumulate(numpy.where(rises, numpy.arange(len(batches)), -1))
        newest_offsets = numpy.where(brought_by >= 0, batches[brought_by, 3], self._newest[1])
        chosen = self._spaced(positions)
        entries = numpy.empty(len(chosen), OFFSET_ENTRY)
        entries["offset"] = offsets[chosen]
        entries["position"] = positions[chosen]
        self._offsets.append(entries)
        self._add_times(so_far[1:][chosen], newest_offsets[chosen])
        self._newest = int(so_far[-1]), int(newest_offsets[-1])

    def offset_index(self) -> bytes:
        return b"".join(entries.tobytes() for entries in self._offsets)

    def time_index(self) -> bytes:
        """Ends with the largest timestamp of all."""
        self._add_times(numpy.array([self._newest[0]]), numpy.array([self._newest[1]]))
        return b"".join(entries.tobytes() for entries in self._times)

    def _spaced(self, positions: Integers) -> list[int]:
        """The numbers of the batches that get an entry."""
        following = positions.searchsorted(positions + INDEX_INTERVAL_BYTES, side="right").tolist()
        number = int(positions.searchsorted(self._indexed_at + INDEX_INTERVAL_BYTES, side="right"))
        chosen: list[int] = []
        while number < len(following):
            chosen.append(number)
            number = following[number]
        if chosen:
            self._indexed_at = int(positions[chosen[-1]])
        return chosen

    def _add_times(self, times: Integers, offsets: Integers) -> None:
        """Timestamps that do not fall; only those larger than the one before get an entry."""
        larger = numpy.diff(times, prepend=self._newest_indexed) > 0
        if not larger.any():
            return
        entries = numpy.empty(int(larger.sum()), TIME_ENTRY)
        entries["timestamp"] = times[larger]
        entries["offset"] = offsets[larger] - self._base_offset
        self._times.append(entries)
        self._newest_indexed = int(entries["timestamp"][-1])
