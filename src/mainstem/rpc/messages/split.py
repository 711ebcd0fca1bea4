"""The split service's messages: a splitter on any host works with them on a node's journal.

Positions are block indexes of write groups; a range is (after, upto]. All write groups of a node share one journal in
arrival order, so a slice is a contiguous piece of the journal (`extents`) with the ranges of every write group in it
(`ranges`): a reader walks the extents and keeps the blocks that lie in the ranges.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from mainstem.rpc.errors import Refused
from mainstem.rpc.wire.method import Method, Nothing


class LeaseHeld(Refused):
    """Another splitter holds the lease; the message names it."""

    kind = "lease held"


class LeaseLost(Refused):
    """The lease ran out, was taken over, or is from before the node's last start. Nothing was changed."""

    kind = "lease lost"


class RangeGone(Refused):
    """The journal segment was recycled: all that it held has been split, or is dead."""

    kind = "range gone"


class EarlierSplitter(Refused):
    """The splitter is of an earlier version, and cannot do what there is to do; the message says what helps. One that
    does not know this refusal has its message all the same."""

    kind = "earlier splitter"


class WriteGroupPositions(msgspec.Struct, frozen=True, kw_only=True):
    """The positions of one write group, as block indexes; `pruned` <= `split` <= `committed`."""

    group: int
    committed: int
    durable: int
    """The highest committed index known to be on disk (on a majority): a split may go no further."""
    split: int
    """All blocks up to here are in the manifest."""
    pruned: int
    """All blocks up to here are gone from the journal."""
    unsplit_bytes: int
    """Journal bytes of data blocks above `split`. Control blocks do not count: recording a split writes one,
    and a splitter that took it for work would never rest."""
    oldest_unsplit_ms: int
    """When the oldest data block above `split` was written (ms since the epoch); -1: there is none."""
    files: int = 0
    """Runs in the manifest that hold blocks of this write group."""


class WriteGroupRange(msgspec.Struct, frozen=True, order=True):
    """Blocks of one write group: indexes after `after`, up to and including `upto`."""

    group: int
    after: int
    upto: int


class SegmentExtent(msgspec.Struct, frozen=True):
    """Bytes [start, end) of a journal segment, whole blocks; `path` is absolute on the node's host."""

    sequence: int
    start: int
    end: int
    path: str


class Slice(msgspec.Struct, frozen=True):
    """The work of one split task, in journal order; the slices of an answer are in journal order, too."""

    ranges: tuple[WriteGroupRange, ...]
    extents: tuple[SegmentExtent, ...]
    bytes: int
    run_format: int = 1
    """The newest format version of runs that the cluster's feature level allows."""
    by_write_group: bool = False
    """Each run is to have the batches of one write group alone, as runs of a shared store do. Nodes of earlier versions
    do not say it."""


class FileDescription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A finished file of the queue store. Fields that runs do not have are left out of messages, as older versions had
    it."""

    name: str
    retention_class: str
    bytes: int
    """Size of the file."""
    batch_bytes: int
    batch_count: int
    record_count: int
    queue_count: int
    min_timestamp: int
    max_timestamp: int
    level: int = 0
    group: int = -1
    """The only write group whose queues it has; -1: it is a run, and the next three fields say nothing. Runs of a
    shared store are handed in with theirs (`Slice.by_write_group`)."""
    first_queue: int = 0
    last_queue: int = 0
    first_offset: int = -1
    clean_ms: int = -1
    """When the compaction began that wrote it; -1: none did."""
    horizon_ms: int = -1
    """When the first of its tombstones may go; -1: none has a time."""


class SplitProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the last completed trigger: Spark's StreamingQueryProgress and the splitter's counts."""

    batch_id: int
    timestamp: str
    """When the trigger started, ISO 8601, by Spark's clock."""
    duration_ms: dict[str, int]
    """Milliseconds per phase, by Spark's names (triggerExecution, latestOffset, addBatch…)."""
    slices: int
    bytes: int
    batches: int
    dropped_batches: int = 0
    """Batches of topics that no longer exist."""
    split_bytes_total: int = 0
    """Since the splitter started."""
    spark: str = ""
    """Spark's master and application id."""


class WaitsFor(NamedTuple):
    """A damaged block before which the split of its write group waits."""

    group: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls
    fault: str
    """The block's place, its fault, and the remedy."""
    since_ms: int


class SplitLag(NamedTuple):
    """The work that waits for a splitter, for the supervisor that decides when to run one."""

    unsplit_bytes: int
    oldest_seconds: float
    """Age of the oldest unsplit data block; 0 when there is none."""
    holder: str
    """The holder of the lease; empty: no splitter holds it."""
    merging: bool = False
    """The holder merges files of the queue store."""


class MergeWaits(NamedTuple):
    """The merge that waits for a splitter, for the supervisor, too."""

    bytes: int
    """Of batches that the next merge would take; 0: none is worth it."""
    more: bool = False
    """Files were left that could not be looked at in time."""


# --- requests and replies -------------------------------------------------------------------------------


class PositionsReply(msgspec.Struct, frozen=True, kw_only=True):
    groups: list[WriteGroupPositions]
    now_ms: int
    """The node's clock, from which ages are computed."""


class AcquireLease(msgspec.Struct, frozen=True, kw_only=True):
    holder: str
    """The caller, for people: kind, host, process."""
    wait_seconds: float = 0.0
    """How long to wait while another splitter holds the lease."""
    yields: bool = False
    """The holder gives way when another splitter waits (the embedded one does)."""


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """`lease_id` proves it, `epoch` orders it: a later lease has a larger one, also over restarts."""

    lease_id: str
    epoch: int
    seconds: float
    """The lease ends this long after it was granted or last renewed."""


class HeldLease(msgspec.Struct, frozen=True):
    """Names the lease a splitter believes it holds."""

    lease_id: str
    epoch: int


class RenewReply(msgspec.Struct, frozen=True, kw_only=True):
    wanted_by: str = ""
    """Another splitter waits: a holder that yields should finish and release."""


class Limit(msgspec.Struct, frozen=True):
    after: dict[int, int]
    bytes_max: int


class LimitReply(msgspec.Struct, frozen=True):
    upto: dict[int, int]


class PlanSlices(msgspec.Struct, frozen=True):
    after: dict[int, int]
    upto: dict[int, int]
    bytes_max: int
    """Per slice, about."""


class PlannedSlices(msgspec.Struct, frozen=True, kw_only=True):
    slices: list[Slice]
    host: str
    """`host_identity()` of the node: where it is the same, `SegmentExtent.path` names the same file."""


class ReadExtent(msgspec.Struct, frozen=True):
    sequence: int
    start: int
    end: int


class DamageMet(msgspec.Struct, frozen=True):
    """Reports that the bytes at this place of a segment are not those that were written there."""

    sequence: int
    offset: int


class DamageReply(msgspec.Struct, frozen=True):
    sound: bool
    """Whether the block was made whole, or was never wrong on the disk: read it again. If not, its write
    group waits before it."""


class SplitPace(msgspec.Struct, frozen=True):
    bytes: int
    """Bytes that a task is about to work on."""
    upkeep: bool = False
    """The bytes are of files that are merged, compacted or uploaded; else of the journal, which is split."""


class RetentionClasses(msgspec.Struct, frozen=True):
    classes: dict[int, str]
    """Topic number → retention class. A topic that is absent is deleted."""


class RecordSplit(msgspec.Struct, frozen=True):
    """Asks to record the runs that hold the batches of these ranges, all of one slice."""

    lease: HeldLease
    ranges: tuple[WriteGroupRange, ...]
    files: tuple[FileDescription, ...]


PASSED_OVER = "passed over"
"""Of a write group with a shared store that another node leads by now, or this one in a later term: what was split is
split again."""


class RecordSplitReply(msgspec.Struct, frozen=True):
    outcomes: list[str]
    """Per range: 'committed' (recorded, as version 0.1 says it), 'replayed', `PASSED_OVER` and why, or 'refused: …'."""


class ReportProgress(msgspec.Struct, frozen=True, kw_only=True):
    lease: HeldLease
    progress: SplitProgress | None = None
    error: str = ""


POSITIONS = Method(16, "split.positions", Nothing, PositionsReply)
ACQUIRE = Method(17, "split.acquire", AcquireLease, Lease, (LeaseHeld,))
RENEW = Method(18, "split.renew", HeldLease, RenewReply, (LeaseLost,))
RELEASE = Method(19, "split.release", HeldLease, Nothing)
LIMIT = Method(20, "split.limit", Limit, LimitReply)
SLICES = Method(21, "split.slices", PlanSlices, PlannedSlices)
READ = Method(22, "split.read", ReadExtent, Nothing, (RangeGone,), streams=True)
"""The extent's bytes as attachments, in order."""
RETENTION_CLASSES = Method(23, "split.retention_classes", Nothing, RetentionClasses)
RECORD_SPLIT = Method(24, "split.commit", RecordSplit, RecordSplitReply, (LeaseLost,))
"""Its name on the wire is that of version 0.1, so that nodes and splitters of both work together."""
PROGRESS = Method(25, "split.progress", ReportProgress, Nothing, (LeaseLost,))
PACE = Method(26, "split.pace", SplitPace, Nothing)
"""Answered when so many bytes may be split without slowing down publishers, after some seconds at the
most."""
DAMAGED = Method(27, "split.damaged", DamageMet, DamageReply)
"""Answered when the node has checked the block there and, if it can, made it whole."""
