"""The views that the console shows of a node, and the port through which it asks for them.

These structs are the JSON of `/v1/…`: their field names are promised to scripts (`--json`), so fields are
added and never renamed. Offsets and indexes are exclusive ends where they are called `end`; sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple, Protocol

import msgspec
from msgspec import UNSET, UnsetType

GIVEN_UP_AT_ONCE_MAX = 100
"""Files in one request to give up: each is read first."""


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    node_id: int
    host: str
    port: int
    """The Kafka address that clients are given."""
    rpc: str | None = None
    http: str | None = None
    roles: tuple[str, ...] = ()
    version: str = ""
    uptime_seconds: float = 0.0
    rack: str | None = None
    state: str = "alive"
    """`alive`, `suspected` or `dead`, as the metadata leader judges."""
    reason: str = ""
    """Why, unless the node is well."""
    level_newest: int | None = None
    """The newest feature level that the node reads; None: it does not answer."""
    waiting: dict[int, str] = {}
    """Write groups in which the node takes no part until their blocks can be read again, and why."""
    not_back: tuple[int, ...] = ()
    """Write groups of which the node has forgotten something: its replicas have no vote until they have that
    back."""
    forgot: str = ""
    """How that came."""


class ReplicaView(msgspec.Struct, frozen=True, kw_only=True):
    node: int
    lag_blocks: int
    """Blocks of the log that the node is not known to hold; -1: its leader does not say."""
    active: bool
    """Whether the write group's leader has heard from it lately."""
    voter: bool = True


class WriteGroupView(msgspec.Struct, frozen=True, kw_only=True):
    group: int
    leader: int
    """The leader's node id; -1: this node knows none."""
    term: int
    committed: int
    """Block index."""
    preferred_leader: int = -1
    replicas: Sequence[ReplicaView] = []


class DiskView(msgspec.Struct, frozen=True, kw_only=True):
    """A disk as the node sees it; `used_bytes` is Mainstem's own use of it."""

    path: str
    used_bytes: int
    free_bytes: int
    total_bytes: int


class DrainView(msgspec.Struct, frozen=True, kw_only=True):
    """A node that gives away what it holds, or has done so."""

    node: int
    groups_left: Sequence[int]
    """Write groups that it may still hold something of."""
    votes: bool
    """Whether it votes on the metadata."""
    empty: bool
    """Whether it holds nothing, and does not vote: the node may stop for good."""
    waits_for: Sequence[str] = []
    """Why something does not go on, in words."""


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    cluster_id: str
    nodes: Sequence[NodeView]
    write_groups: Sequence[WriteGroupView]
    write_disk: DiskView
    store_disk: DiskView | None
    """None where the store is shared."""
    topics: int
    partitions: int
    drains: Sequence[DrainView] = []
    metadata_leader: int = -1
    """The node id of the metadata's leader; -1: this node knows none."""
    feature_level: int = 1
    """The feature level at which the nodes may write."""
    feature_level_newest: int = 1
    """The newest level of the version that this node runs."""
    shared_store: str | None = None
    """The URL of the store that all nodes share, or its directory; None: each has a disk 2 of its own."""


class Change(Protocol):
    """The body of a POST: what somebody wants to have done, in the words of the audit."""

    @property
    def operation(self) -> str: ...

    @property
    def resource(self) -> str: ...


class FeatureLevelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a POST to `/v1/cluster/feature-level`."""

    level: int

    @property
    def operation(self) -> str:
        return "RaiseFeatureLevel"

    @property
    def resource(self) -> str:
        return "cluster:"


class GiveUpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a POST to `/v1/store/give-up`."""

    names: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=1000)]], msgspec.Meta(min_length=1, max_length=GIVEN_UP_AT_ONCE_MAX)
    ]
    """Of files, or of objects."""
    by: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    """Who gives them up."""
    dry_run: bool
    without: list[int] = []
    """Nodes that are not asked whether they have the records."""

    @property
    def operation(self) -> str:
        return "GiveUpFiles"

    @property
    def resource(self) -> str:
        return "file:" + ",".join(self.names)


class TenantRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a POST to `/v1/tenants/set`. Of a tenant that is altered, what is not said stays as it is. Null: no
    ceiling, no quota."""

    name: str
    how: Literal["create", "replace", "alter"] = "create"
    """Whether there may be a tenant of this name: none, one or none, one."""
    prefix: str | UnsetType = UNSET
    retention_ms_max: int | UnsetType | None = UNSET
    queues_max: int | UnsetType | None = UNSET
    users: list[str] | UnsetType = UNSET
    quotas: dict[str, float | None] = {}
    """Quotas of all its users together, by Kafka's keys."""

    @property
    def operation(self) -> str:
        return f"{self.how.title()}Tenant"

    @property
    def resource(self) -> str:
        return f"tenant:{self.name}"


class TenantRemoval(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a POST to `/v1/tenants/remove`."""

    name: str

    @property
    def operation(self) -> str:
        return "RemoveTenant"

    @property
    def resource(self) -> str:
        return f"tenant:{self.name}"


class TenantView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    prefix: str
    retention_ms_max: int | None
    queues_max: int | None
    users: list[str]
    quotas: dict[str, float]
    """Of its own, by Kafka's keys; defaults of tenants are not among them."""
    topics: int
    queues: int


class TenantsView(msgspec.Struct, frozen=True, kw_only=True):
    tenants: list[TenantView]


class TenantUsageView(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant takes. Bytes are this node's: those of batches in what it holds, live or not."""

    name: str
    topics: int
    queues: int
    queues_max: int | None
    journal_bytes: int | None
    """Null: the node has no storage."""
    stored_bytes: int | None
    """On disk 2."""
    remote_bytes: int | None
    """In the remote tier, or in the shared store; the same on every node."""
    produced_bytes: int | None
    """Of Produce requests of its users to this node, since the node started. Null: the node is no broker."""
    fetched_bytes: int | None
    """Of batches that this node sent to its users."""


class TenantUsagesView(msgspec.Struct, frozen=True, kw_only=True):
    tenants: list[TenantUsageView]


class ReplaceNodeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a POST to `/v1/cluster/replace`."""

    old: int
    new: int

    @property
    def operation(self) -> str:
        return "ReplaceNode"

    @property
    def resource(self) -> str:
        return f"node:{self.old}"


class DrainNodeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a POST to `/v1/cluster/drain`."""

    node: int
    cancel: bool = False
    """The node keeps what it has, and may get replicas again."""

    @property
    def operation(self) -> str:
        return "CancelDrain" if self.cancel else "DrainNode"

    @property
    def resource(self) -> str:
        return f"node:{self.node}"


class TransferLeaderRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a POST to `/v1/cluster/transfer-leader`."""

    group: int
    to: int

    @property
    def operation(self) -> str:
        return "TransferLeader"

    @property
    def resource(self) -> str:
        return f"write_group:{self.group}"


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


class TopicView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    topic_id: str
    internal: bool
    configs: dict[str, str]
    """Explicit overrides only."""
    partitions: Sequence[PartitionView]


class SplitWriteGroupView(msgspec.Struct, frozen=True, kw_only=True):
    """The positions of one write group, as block indexes: `pruned` <= `split` <= `committed`."""

    committed: int
    split: int
    pruned: int
    lag_bytes: int
    lag_seconds: float
    """Age of the oldest unsplit block; 0 when there is none."""
    files: int
    waits_for: str = ""
    """Why the write group's finished splits cannot be recorded now; empty: they can."""


class DamagedFileView(msgspec.Struct, frozen=True, kw_only=True):
    """A run on disk 2 that is missing or cannot be read as it should."""

    name: str
    reason: str
    since_ms: int
    """When it was found, ms since the epoch."""


class LeaseView(msgspec.Struct, frozen=True, kw_only=True):
    holder: str
    fence: int
    expires_in_seconds: float


class DamagedBlockView(msgspec.Struct, frozen=True, kw_only=True):
    """A damaged block of the journal before which the split of its write group waits."""

    group: int
    block: int
    fault: str
    """The block's place, its fault, and the remedy."""
    seconds: float
    """How long ago it was found."""


class DamagedProducersView(msgspec.Struct, frozen=True, kw_only=True):
    """A damaged page of a file of idempotent producers: other replicas are asked for the producers, or no
    longer have some."""

    group: int
    fault: str
    """Where it lies."""
    lost: int
    """Producers that no replica knows; 0 while replicas are asked."""
    seconds: float
    """How long ago it was found."""


class SplitView(msgspec.Struct, frozen=True, kw_only=True):
    groups: dict[str, SplitWriteGroupView]
    """By the write group's number."""
    splitter: str
    """The state of the embedded splitter, in words: off, waiting, starting, running, failed (why)."""
    lease: LeaseView | None
    last_error: str | None
    last_progress: dict[str, object] | None
    """The last StreamingQueryProgress figures; None before the first trigger."""
    damaged_files: Sequence[DamagedFileView] = ()
    """Not mended yet."""
    damaged_blocks: Sequence[DamagedBlockView] = ()
    """The damaged blocks before which the splits of write groups wait."""
    damaged_producers: Sequence[DamagedProducersView] = ()
    """Damaged pages of producers that are not read back yet, or lost."""


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
    """A file of the object store that was lost, and that an operator gave up."""

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


class GiveUpView(msgspec.Struct, frozen=True, kw_only=True):
    """What was given up, or would be."""

    files: Sequence[GivenUpFileView]


class RemoteView(msgspec.Struct, frozen=True, kw_only=True):
    """The remote tier, or the shared store: files in the object store. They are the cluster's, the same on every
    node."""

    url: str | None
    """None: this node is given no store, and cannot read what is there."""
    fault: str
    """What keeps the store from answering; empty: it did answer when it was last asked, or was not asked yet."""
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


class UsageLevelView(msgspec.Struct, frozen=True, kw_only=True):
    """What a topic has on one level of the queue store."""

    level: int
    kind: str
    """run, packed file, queue segment"""
    files: int
    """Files that hold batches of the topic; others may have some in them, too."""
    bytes: int
    """Of the topic's batches, live or not."""


class TopicUsageView(msgspec.Struct, frozen=True, kw_only=True):
    """What one topic has on both disks and in the remote tier, or several together."""

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
    """What topics take of this node's disks, and of the cluster's remote tier."""

    topics: Sequence[TopicUsageView]
    """Those with the most bytes, most first; or the one that was asked for."""
    topics_left_out: int
    others: TopicUsageView
    """What is left out, together."""
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
    """As in `ClusterView`. What topics have in a shared store is in `remote_bytes` and `remote_levels`."""
    given_up_files: int = 0
    """Files of the remote tier, or of the shared store, that were lost and given up."""
    given_up_records: int = 0


class SharedStoreView(msgspec.Struct, frozen=True, kw_only=True):
    """The object store that all files of the cluster's queue store lie in."""

    url: str
    folder: str
    """The cluster's, in the store. How the store is reached is told over node RPC alone."""


class SplitEndpoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The address of the node's split service (node RPC), and the directory for runs."""

    host: str
    port: int
    store_dir: str
    """The queue store's directory, absolute, as the node sees it."""
    shared_store: SharedStoreView | None = None
    """None: files lie in `store_dir`, and the answer has no such field, as those of earlier versions."""


class Health(Protocol):
    """Whether the node should be restarted, and whether it should get traffic."""

    def not_alive(self) -> str | None:
        """Why the node's process should be restarted; None while it does its work."""
        ...

    def not_ready(self) -> str | None:
        """Why the node should get no traffic, yet or any more; None when it is ready."""
        ...

    def waiting(self) -> dict[int, str]:
        """Write groups in which this node takes no part because their blocks cannot be read, and why; it gets
        traffic all the same, for the others."""
        ...


class ClusterViews(Protocol):
    """The cluster's nodes and write groups, and changes of these."""

    async def cluster(self) -> ClusterView: ...

    async def transfer_leader(self, group: int, to: int) -> str | None:
        """Have another node lead a write group. Returns why that cannot be, or None when it is under way."""
        ...

    async def raise_feature_level(self, level: int) -> str | None:
        """Have the cluster write what programs of this level read. Returns why that cannot be, or None when
        it is done."""
        ...

    async def replace_node(self, old: int, new: int) -> str | None:
        """Have every replica of one node move to another. Returns why that cannot be, or None when it is
        under way."""
        ...

    async def drain_node(self, node_id: int, *, cancel: bool) -> str | None:
        """Have a node give away all that it holds, or stop that. Returns why that cannot be, or None when it is
        noted."""
        ...


class TopicViews(Protocol):
    """All topics, with what the node has of them."""

    async def topics(self) -> Sequence[TopicSummary]: ...

    async def topic(self, name: str) -> TopicView | None:
        """None for an unknown topic."""
        ...


class StoreViews(Protocol):
    """The node's split and its queue store."""

    async def split(self) -> SplitView: ...

    async def store(self) -> StoreView: ...

    async def give_up(self, request: GiveUpRequest) -> GiveUpView | str:
        """Give up files that are lost, or say what would be given up. Returns why that cannot be, or what it is."""
        ...

    async def store_usage(self, topic: str | None) -> StoreUsageView | None:
        """Of all topics, or of one; None when there is no such topic."""
        ...

    def split_endpoint(self) -> SplitEndpoint: ...


class TenantViews(Protocol):
    """The tenants of the cluster, and changes of these. A change returns why it cannot be, or None when it is done."""

    async def tenants(self) -> Sequence[TenantView]: ...

    async def usage(self, name: str | None) -> Sequence[TenantUsageView]:
        """Of all tenants, or of one; none when there is no such tenant."""
        ...

    async def set_tenant(self, wanted: TenantRequest) -> str | None: ...

    async def remove_tenant(self, name: str) -> str | None: ...


class NodeViews(NamedTuple):
    """Made by the node. Calls never block the event loop, and an empty node raises no errors."""

    health: Health
    cluster: ClusterViews
    topics: TopicViews
    store: StoreViews | None
    """None: the node has no storage."""
    tenants: TenantViews
