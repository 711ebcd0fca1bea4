"""Writes a run, or a packed file: sorted batches in, one finished file and its summary out.

Synchronous, made for an executor of the pipeline that does nothing else meanwhile. The bytes go to a `RunTarget`, which
states when they are durable; `extents_writer.py` cuts the extents.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import NamedTuple

from mainstem.kernel import crc32c
from mainstem.model import Buffer
from mainstem.storage.extents.aborted import AbortedRows, no_rows, rows_within, section_of
from mainstem.storage.extents.extent_format import (
    ABORTED_VERSION,
    FORMAT_VERSION,
    FRAME_BYTES,
    RUN_MAGIC,
    FileFrame,
    name_crc_of,
)
from mainstem.storage.store_files.extents_writer import BATCH_ROW, Array, ExtentsWriter
from mainstem.storage.store_files.run_target import RunTarget

__all__ = ["BATCH_ROW", "RunSummary", "RunWriter"]


class RunSummary(NamedTuple):
    """A finished run. Timestamps are the smallest and largest `max_timestamp` of its batches (ms; -1 when
    it is empty)."""

    name: str
    bytes: int
    batch_bytes: int
    batch_count: int
    record_count: int
    queue_count: int
    min_timestamp: int
    max_timestamp: int


class RunWriter:
    """Writes one run. Use as a context manager: leaving it without `finish` abandons the run."""

    def __init__(self, name: str, target: RunTarget, version: int = FORMAT_VERSION, *, over_gaps: bool = False) -> None:
        """`version`: of the format; `ABORTED_VERSION` adds an index of aborted transactions. `over_gaps`: as
        `ExtentsWriter` has it."""
        assert version in (FORMAT_VERSION, ABORTED_VERSION), version
        self._name = name
        self._version = version
        self._target = target
        self._written = ExtentsWriter(name, target, FRAME_BYTES, over_gaps=over_gaps)
        self._finished = False
        target.write(FileFrame(RUN_MAGIC, version=version).pack())

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._finished:
            self._target.abandon()

    def append(self, pieces: Iterable[Buffer], batches: Array, min_timestamp: int | None = None) -> None:
        """Append batches, or whole extents. Takes and raises what `ExtentsWriter.append` does."""
        assert not self._finished
        self._written.append(pieces, batches, min_timestamp)

    def finish(self, aborted: AbortedRows | None = None) -> RunSummary:
        """Write index and footer, then make the run durable and visible under its name. `aborted`: rows of the index of
        aborted transactions; those are left out whose marker is not in the run."""
        assert not self._finished, "a run is finished once"
        written = self._written
        rows = written.rows()
        high = int(rows["max_timestamp"].max()) if len(rows) else -1
        index = rows.tobytes()
        name_crc = name_crc_of(self._name)
        rows_position = FRAME_BYTES + written.batch_bytes
        ended = no_rows() if aborted is None else rows_within(aborted, rows)
        assert self._version == ABORTED_VERSION or not len(ended), "runs of format 1 have no transactions"
        section = b""
        if self._version == ABORTED_VERSION:
            section = section_of(ended, rows_position + len(index), name_crc)
        footer = FileFrame(
            RUN_MAGIC,
            crc32c(index),
            rows_position,
            len(rows),
            written.batch_bytes,
            written.min_timestamp,
            high,
            name_crc,
            self._version,
        )
        self._target.write(index)
        self._target.write(section)
        self._target.write(footer.pack())
        self._target.finish()
        self._finished = True
        return RunSummary(
            name=self._name,
            bytes=2 * FRAME_BYTES + written.batch_bytes + len(index) + len(section),
            batch_bytes=written.batch_bytes,
            batch_count=written.batch_count,
            record_count=written.record_count,
            queue_count=written.queue_count,
            min_timestamp=written.min_timestamp,
            max_timestamp=high,
        )
