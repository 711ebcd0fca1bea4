"""Views of topics and their partitions."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class TopicSummary(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    topic_id: str
    partitions: int
    internal: bool
    unsplit_bytes: int
    """Live bytes in the journal on disk 1. Batches that are split count until the journal is pruned of
    them."""
    stored_bytes: int
    """Live bytes in the queue store on disk 2."""


class FileView(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the queue store, or of the remote tier, that holds batches of a queue."""

    name: str
    kind: str
    """`run` or `packed file` (many queues), or `queue segment` (this queue only)."""
    file_bytes: int
    queue_bytes: int
    """Bytes of this queue in it."""
    first_offset: int
    last_offset: int
    index_rows: int = 0
    """Entries of this queue in the file's index: one per extent."""
    place: str = "store"
    """`store`: disk 2 of this node; `remote`: the remote tier."""


class SegmentView(msgspec.Struct, frozen=True, kw_only=True):
    """A segment of the journal that holds batches of a queue, whether or not they are split already."""

    name: str
    queue_bytes: int
    first_offset: int
    last_offset: int
    index_rows: int
    """Entries of this queue, one per batch."""
    indexed: bool
    """Whether the index is in a file beside the segment; False: in memory, as the segment is new."""


class MissingView(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets of `__consumer_offsets` that this node, its coordinator, could not read."""

    first_offset: int
    last_offset: int
    fault: str


class StayView(msgspec.Struct, frozen=True, kw_only=True):
    """A write group that has offsets of a queue, from the first one up to where the next one begins."""

    write_group: int
    first_offset: int


class PartitionView(msgspec.Struct, frozen=True, kw_only=True):
    partition: int
    leader: int
    leader_epoch: int
    write_group: int
    log_start: int
    split_end: int
    """Offsets below are in the queue store, or in the remote tier."""
    high_watermark: int
    end: int
    unsplit_bytes: int
    stored_bytes: int
    files: Sequence[FileView] = ()
    """Files of the queue store, in offset order, and behind them those of the remote tier, as far as the object store
    gave their indexes in time."""
    segments: Sequence[SegmentView] = ()
    """Segments of the journal, in offset order."""
    missing: Sequence[MissingView] = ()
    """The offsets missing from the log of committed offsets."""
    stays: Sequence[StayView] = []
    """The write groups that have records of the queue, oldest first, if it has moved between them; else empty."""


class TopicView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    topic_id: str
    internal: bool
    configs: dict[str, str]
    """Explicit overrides only."""
    partitions: Sequence[PartitionView]
