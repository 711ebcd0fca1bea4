"""The split of one slice: its batches, sorted by (queue, offset), in one run per retention class, and per write group
where the node asks for that.

A plain function over bytes, and the whole work of a Spark task. Payload is moved by Arrow's `take` in bounded
steps; the array it takes from has a gap between any two batches as an element of its own, so that its
offsets are those of the contiguous, unfiltered buffer whichever batches are taken.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import msgspec
import numpy
import pyarrow

from mainstem.kernel.batch_header import TRANSACTIONAL_BIT
from mainstem.pipeline.slices.block_walk import Batches, Integers, batches_of
from mainstem.pipeline.slices.journal_slice import Bytes
from mainstem.rpc.messages.split import FileDescription, Slice, WriteGroupRange
from mainstem.storage.extents.extent_format import ABORTED_VERSION, TRANSACTIONAL
from mainstem.storage.journal.encoding.transaction_rows import record_counts, section_rows
from mainstem.storage.store_files.allowance import Allowance, unlimited
from mainstem.storage.store_files.announcement import Announce, unannounced
from mainstem.storage.store_files.extents_writer import CUT_BEFORE
from mainstem.storage.store_files.run_target import RunTarget
from mainstem.storage.store_files.run_writer import BATCH_ROW, RunWriter
from mainstem.storage.store_files.store_file import MANY_GROUPS, RUN_SUFFIX

TAKE_ROWS = 4096
"""Batches gathered at a time: enough to forget the cost of a call…"""
TAKE_BYTES = 1 << 20
"""…and their bytes, unless one batch is larger: the step of the pacing, and in the processor's cache still when it is
checksummed and written."""

COPIED_FIELDS = ("queue_id", "base_offset", "max_timestamp", "length", "leader_epoch")
"""The fields of a batch that a directory row and a row of the run writer share."""

TOPIC_SHIFT = numpy.uint64(32)

CLASS_BITS = 16
"""Retention classes of one slice are counted in so many: a cluster has a few dozen."""

OpenTarget = Callable[[str], RunTarget]
"""Gives the path for a run of this name."""


class SplitSlice(msgspec.Struct, frozen=True, kw_only=True):
    """A task's result: the runs of a slice, not recorded yet."""

    ranges: tuple[WriteGroupRange, ...]
    files: tuple[FileDescription, ...]
    bytes: int
    """Journal bytes of the slice."""
    batches: int
    dropped_batches: int
    """Batches that were not written because their topics are deleted."""
    seconds: float


def split_slice(
    work: Slice,
    buffer: Bytes,
    classes: Mapping[int, str],
    open_target: OpenTarget,
    *,
    announce: Announce = unannounced,
    new_name: Callable[[], str] = lambda: uuid.uuid4().hex,
    allow: Allowance = unlimited,
) -> SplitSlice:
    """Split the slice whose bytes are in `buffer`. `classes`: topic number → retention class; batches of topics that
    are absent are dropped. `allow` is asked before so many bytes are gathered and written. Every run is durable when
    this returns. If runs are to be of one write group each, `announce` is called for all runs of one before any is
    opened.

    Raises `SliceDamaged`, FormatError (batches of a queue that overlap) and OSError; runs begun are then
    removed or, when finished, left for the storage role to clear: no manifest names them. Raises what `announce` and
    `open_target` do."""
    started = time.monotonic()
    batches = batches_of(work, buffer)
    topics, topic_of = numpy.unique(batches.rows["queue_id"] >> TOPIC_SHIFT, return_inverse=True)
    class_of_topic = [classes.get(topic) for topic in topics.tolist()]
    names = sorted({name for name in class_of_topic if name is not None})
    numbers = {name: number for number, name in enumerate(names)}
    class_of = numpy.array([-1 if name is None else numbers[name] for name in class_of_topic], numpy.int64)[topic_of]
    order = numpy.lexsort((batches.rows["base_offset"], batches.rows["queue_id"]))
    first = work.extents[0]
    planned = [
        _PlannedRun(f"{first.sequence:012d}-{first.start:010d}-{new_name()}{RUN_SUFFIX}", names[number], group, chosen)
        for number, group, chosen in _parts(class_of, batches.groups if work.by_write_group else None, order)
    ]
    for group in sorted({run.group for run in planned if run.group != MANY_GROUPS}):
        announce(group, [run.name for run in planned if run.group == group])
    run_format = min(work.run_format, ABORTED_VERSION)  # a node of a later version may allow more
    files = [_write_run(run, batches, buffer, open_target, allow, run_format) for run in planned]
    return SplitSlice(
        ranges=work.ranges,
        files=tuple(files),
        bytes=work.bytes,
        batches=len(batches.rows),
        dropped_batches=int((class_of < 0).sum()),
        seconds=time.monotonic() - started,
    )


class _PlannedRun(NamedTuple):
    name: str
    retention_class: str
    group: int
    """Whose batches alone it has; `MANY_GROUPS`: those of any."""
    order: Integers
    """The numbers of its batches, as they come in the run."""


def _parts(class_of: Integers, groups: Integers | None, order: Integers) -> Iterator[tuple[int, int, Integers]]:
    """The batches of each run, in `order`: the number of its retention class (-1: they are dropped), its write group if
    there are `groups`, and its batches."""
    in_order = class_of[order]
    if groups is None:
        for number in range(int(class_of.max(initial=-1)) + 1):
            yield number, MANY_GROUPS, order[in_order == number]
        return
    kinds_in_order = (groups[order] << CLASS_BITS) | (in_order + 1)
    firsts = numpy.flatnonzero(numpy.diff(kinds_in_order, prepend=-1))  # of neighbours alike, as those of a queue are
    kinds, kind_of = numpy.unique(kinds_in_order[firsts], return_inverse=True)
    kind_of = numpy.repeat(kind_of.astype(numpy.min_scalar_type(len(kinds))), numpy.diff(firsts, append=len(order)))
    by_kind = order[kind_of.argsort(kind="stable")]
    counts = numpy.bincount(kind_of, minlength=len(kinds))  # none at all where the blocks have no batch
    ends = numpy.cumsum(counts)
    for kind, start, end in zip(kinds.tolist(), (ends - counts).tolist(), ends.tolist(), strict=True):
        if number := kind & ((1 << CLASS_BITS) - 1):
            yield number - 1, kind >> CLASS_BITS, by_kind[start:end]


def _write_run(
    run: _PlannedRun, batches: Batches, buffer: Bytes, open_target: OpenTarget, allow: Allowance, run_format: int
) -> FileDescription:
    directory = batches.rows[run.order]
    described = numpy.zeros(len(run.order), BATCH_ROW)
    for field in COPIED_FIELDS:
        described[field] = directory[field]
    described["record_count"] = record_counts(directory)
    described["last_offset"] = directory["base_offset"] + directory["last_offset_delta"]
    described["flags"] = numpy.where(directory["attributes"] & TRANSACTIONAL_BIT, TRANSACTIONAL, 0)
    groups, queue_ids = batches.groups[run.order], directory["queue_id"]
    moved = (groups[1:] != groups[:-1]) & (queue_ids[1:] == queue_ids[:-1])
    described["flags"][1:] |= numpy.where(moved, numpy.uint32(CUT_BEFORE), numpy.uint32(0))
    with RunWriter(run.name, open_target(run.name), run_format) as writer:
        writer.append(gather(batches, buffer, run.order, allow), described)
        summary = writer.finish(section_rows(directory))
    found = FileDescription(retention_class=run.retention_class, **summary._asdict())
    if run.group == MANY_GROUPS:
        return found
    return msgspec.structs.replace(
        found,
        group=run.group,
        first_queue=int(directory["queue_id"][0]),
        last_queue=int(directory["queue_id"][-1]),
        first_offset=int(directory["base_offset"][0]),
    )


def gather(batches: Batches, buffer: Bytes, order: Integers, allow: Allowance = unlimited) -> Iterator[pyarrow.Buffer]:
    """The bytes of the batches in this order, a bounded and paced step at a time."""
    if not len(order):
        return
    count = len(batches.rows)
    bounds = numpy.empty(2 * count, numpy.int64)
    bounds[0::2] = batches.starts
    bounds[1::2] = batches.starts + batches.rows["length"]
    # Element 2i is batch i, element 2i + 1 the gap behind it.
    elements = pyarrow.LargeBinaryArray.from_buffers(
        pyarrow.large_binary(), 2 * count - 1, [None, pyarrow.py_buffer(bounds), pyarrow.py_buffer(buffer)]
    )
    ends = numpy.cumsum(batches.rows["length"][order], dtype=numpy.int64)
    start = 0
    while start < len(order):
        done = int(ends[start - 1]) if start else 0
        stop = int(numpy.searchsorted(ends, done + TAKE_BYTES, side="right"))
        stop = min(max(stop, start + 1), start + TAKE_ROWS)
        allow(int(ends[stop - 1]) - done)
        yield elements.take(pyarrow.array(2 * order[start:stop])).buffers()[2]
        start = stop
