"""Writes a queue segment that is one file, as object stores have it: laid out as a packed file, of one queue.

Each object takes requests of its own, to write it, to look it up and to delete it, whatever it has. So what lies
beside a segment on a disk lies behind its batches here: the rows of its extents, and the index of aborted transactions.
Kafka's two indexes are left out: no node reads them, and whoever exports a segment makes them of its batches.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from mainstem.model import Buffer
from mainstem.storage.extents.aborted import AbortedRows
from mainstem.storage.extents.extent_format import ABORTED_VERSION
from mainstem.storage.store_files.extents_writer import Array
from mainstem.storage.store_files.run_target import RunTarget
from mainstem.storage.store_files.run_writer import RunSummary, RunWriter
from mainstem.storage.store_files.segment_writer import Integers, SegmentWriter
from mainstem.storage.store_files.store_file import SEGMENT_SUFFIX, has_index_beside, path_of, segment_key


class JoinedSegmentWriter:
    """Writes one segment as one file. Used as a `SegmentWriter` is."""

    def __init__(self, name: str, target: RunTarget, *, over_gaps: bool = False) -> None:
        self._writer = RunWriter(name, target, ABORTED_VERSION, over_gaps=over_gaps)

    def __enter__(self) -> JoinedSegmentWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._writer.__exit__(kind, error, traceback)

    def append(self, content: Buffer, extents: Array, batches: Integers) -> None:
        """As `SegmentWriter.append`, but for what Kafka can count."""
        self._writer.append([content], extents, int(batches[:, 4].min()))

    def finish(self, aborted: AbortedRows | None = None) -> RunSummary:
        """Make the file durable and visible. `aborted`: as `RunWriter.finish` has it."""
        return self._writer.finish(aborted)


def open_segment(
    name: str, open_file: Callable[[str], RunTarget], *, over_gaps: bool = False
) -> SegmentWriter | JoinedSegmentWriter:
    """The writer of a queue segment of this name, joined or not. `open_file` opens a file at a path below the root of
    the store. `over_gaps`: as `ExtentsWriter` has it."""
    path = path_of(name)
    if not has_index_beside(name):
        return JoinedSegmentWriter(name, open_file(path), over_gaps=over_gaps)
    stem = path.removesuffix(SEGMENT_SUFFIX)
    _topic, _partition, base_offset = segment_key(name)
    return SegmentWriter(name, base_offset, lambda suffix: open_file(stem + suffix), over_gaps=over_gaps)
