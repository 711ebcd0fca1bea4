"""Views of the queue store: levels, merges, compactions, the remote tier, how much topics take."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mainstem.console.views.of_cluster import DiskView
from mainstem.console.views.of_split import DamagedFileView


class LevelView(msgspec.Struct, frozen=True, kw_only=True):
    """Files of the queue store of one level and kind."""

    level: int
    kind: str
    """run, packed file, queue segment"""
    files: int
    bytes: int
    batch_bytes: int


class StoreWriteGroupView(msgspec.Struct, frozen=True, kw_only=True):
    levels: Sequence[LevelView]
    """A run that counts for several write groups is in each."""


class MergeView(msgspec.Struct, frozen=True, kw_only=True):
    """A merge under way, or the last one that was recorded."""

    group: int
    level: int
    """Of the outputs."""
    inputs: int
    """Files."""
    outputs: int | None
    """Files; None: not known yet."""
    bytes: int
    """Of batches: of the inputs while it is under way, then of the outputs."""
    seconds: float
    """How long it has been under way, or how long ago it was recorded."""


class MergesView(msgspec.Struct, frozen=True, kw_only=True):
    enabled: bool
    """This node's splitter merges (`pipeline.merge`)."""
    allowed: bool
    """The cluster's feature level lets files be merged."""
    waiting_bytes: int
    """Of batches that the next merge would take; 0: none is worth it."""
    unfinished: bool
    """Some files could not be looked at in time: another look finds more."""
    under_way: Sequence[MergeView]
    last: MergeView | None
    """None: none since the node started."""
    merged_files: int
    """Inputs of all merges since the node started."""
    merged_bytes: int


class CompactionView(msgspec.Struct, frozen=True, kw_only=True):
    """A compaction under way, or the last one that was recorded."""

    group: int
    inputs: int
    """Files."""
    outputs: int | None
    """Files; None: not known yet."""
    bytes: int
    """Of batches in the inputs."""
    bytes_left: int | None
    """Of batches in the outputs; None: not known yet."""
    seconds: float
    """How long it has been under way, or how long ago it was recorded."""


class CompactionsView(msgspec.Struct, frozen=True, kw_only=True):
    under_way: Sequence[CompactionView]
    last: CompactionView | None
    """None: none since the node started."""
    passes: int
    """Recorded since the node started…"""
    removed_bytes: int
    """…and bytes of batches that these removed."""


class RemoteWriteGroupView(msgspec.Struct, frozen=True, kw_only=True):
    """A write group's part of the remote tier, by its log as this node knows it."""

    changes: int
    """In all."""
    considered: int
    """Block index: what the tier takes of the blocks up to here is in the store."""
    levels: Sequence[LevelView]
    waiting_files: int
    """Files that are to move there, and have not; each of this node's copies."""
    waiting_bytes: int
    """Of batches in them."""
    uploading_files: int
    """Names that were announced for an upload and have not come to count: under way, or left by one that failed."""
    leaving_files: int
    """Files that do not count any more, and that the store may still have."""


class GivenUpFileView(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was lost, and that an operator gave up."""

    name: str
    group: int
    after: int
    upto: int
    """Its records were in blocks (after, upto] of the write group."""
    record_count: int
    batch_bytes: int
    at_ms: int
    by: str
    fault: str


class RetainedView(msgspec.Struct, frozen=True, kw_only=True):
    """The files that went while a node applied retention."""

    files: int
    """Of disk 2."""
    bytes: int
    remote_files: int
    """Of the object store, of write groups that the node leads."""
    remote_bytes: int


class GiveUpView(msgspec.Struct, frozen=True, kw_only=True):
    """The files that were given up, or would be."""

    files: Sequence[GivenUpFileView]


class RemoteView(msgspec.Struct, frozen=True, kw_only=True):
    """The remote tier, or the shared store: files in the object store. They are the cluster's, the same on every
    node."""

    url: str | None
    """None: this node is given no store, and cannot read what is there."""
    fault: str
    """The reason that keeps the store from answering; empty: it did answer when it was last asked, or was not asked
    yet."""
    levels: Sequence[LevelView]
    groups: dict[str, RemoteWriteGroupView]
    """By the write group's number."""
    waiting_files: int
    waiting_bytes: int
    """Of all write groups."""
    uploaded_files: int
    """Since this node started, by splitters that it gave them to…"""
    uploaded_bytes: int
    last_upload_seconds: float | None
    """…and how long ago the last one came to count; None: none has."""
    upload_failures: int
    """Since this node started."""
    last_upload_failure: str
    """Empty: there was none."""
    damaged_files: Sequence[DamagedFileView]
    """Files of which an object is lost, or is not what it was, as far as readers have met them."""
    given_up: Sequence[GivenUpFileView] = ()
    """Files that were lost, and that readers pass over: the newest of each write group."""
    given_up_count: int = 0
    """All there are."""


class StoreView(msgspec.Struct, frozen=True, kw_only=True):
    """The queue store of this node, by levels."""

    levels: Sequence[LevelView]
    groups: dict[str, StoreWriteGroupView]
    """By the write group's number."""
    merges: MergesView
    compactions: CompactionsView
    damaged_files: Sequence[DamagedFileView]
    """Not mended yet."""
    store_disk: DiskView | None
    """None where the store is shared."""
    remote: RemoteView | None = None
    """None: the cluster has no remote tier, and no shared store."""
    shared_store: str | None = None
    """As in `ClusterView`. Files of a shared store are in `remote`; `levels` and `groups` are those of disk 2, where
    there is none then."""
    given_up: Sequence[GivenUpFileView] = []
    """Files of disk 2 that were lost and given up, each for the write groups that it had; the newest hundred, the
    oldest of these first."""
    given_up_count: int = 0


class UsageLevelView(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes that a topic has on one level of the queue store."""

    level: int
    kind: str
    """run, packed file, queue segment"""
    files: int
    """Files that hold batches of the topic; others may have some in them, too."""
    bytes: int
    """Of the topic's batches, live or not."""


class TopicUsageView(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes that one topic has on both disks and in the remote tier, or several together."""

    topic_number: int | None
    """None: several."""
    name: str | None
    """None: the topic is deleted, or these are several."""
    journal_bytes: int
    """Of batches in the journal, split or not, until their segments are pruned."""
    stored_bytes: int
    """Of batches in the queue store on disk 2."""
    levels: Sequence[UsageLevelView]
    remote_bytes: int = 0
    """Of batches in the remote tier, those included that are on disk 2 as well."""
    remote_levels: Sequence[UsageLevelView] = []


class StoreUsageView(msgspec.Struct, frozen=True, kw_only=True):
    """The room that topics take of this node's disks, and of the cluster's remote tier."""

    topics: Sequence[TopicUsageView]
    """Those with the most bytes, most first; or the one that was asked for."""
    topics_left_out: int
    others: TopicUsageView
    """The topics that are left out, together."""
    levels: Sequence[LevelView]
    """Of the whole store."""
    journal_bytes: int
    """Of batches of all topics."""
    unread_files: int
    """Files that topics share and that were not looked at yet, or cannot be read: what they hold is in no topic."""
    unread_bytes: int
    write_disk: DiskView
    store_disk: DiskView | None
    """None where the store is shared."""
    remote_levels: Sequence[LevelView] = []
    """Of the whole remote tier, or the whole shared store."""
    shared_store: str | None = None
    """As in `ClusterView`. The bytes that topics have in a shared store are in `remote_bytes` and `remote_levels`."""
    given_up_files: int = 0
    """Files of the remote tier, or of the shared store, that were lost and given up."""
    given_up_records: int = 0
