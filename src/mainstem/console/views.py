"""What the console shows of a node, and the port it asks for it.

These structs are the JSON of `/v1/…`: their field names are promised to scripts (`--json`), so fields are
added and never renamed. Offsets and indexes are exclusive ends where they are called `end`; sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    node_id: int
    host: str
    port: int
    """The Kafka address that clients are told."""
    rpc: str | None = None
    http: str | None = None
    roles: tuple[str, ...] = ()
    version: str = ""
    uptime_seconds: float = 0.0
    rack: str | None = None
    state: str = "alive"
    """`alive`, `suspected` or `dead`, as the metadata leader judges."""
    reason: str = ""
    """Why, unless it is well."""
    level_newest: int | None = None
    """The newest feature level it reads; None: it does not answer."""
    not_back: tuple[int, ...] = ()
    """Write groups of which it has forgotten something: its replicas have no vote before they have got that back."""
    forgot: str = ""
    """How that came."""


class ReplicaView(msgspec.Struct, frozen=True, kw_only=True):
    node: int
    lag_blocks: int
    """Blocks of the log that the node is not known to hold; -1: its leader does not say."""
    active: bool
    """Heard from lately, by the group's leader."""
    voter: bool = True


class WriteGroupView(msgspec.Struct, frozen=True, kw_only=True):
    group: int
    leader: int
    """-1: nobody, as far as this node knows."""
    term: int
    committed: int
    """Block index."""
    preferred_leader: int = -1
    replicas: Sequence[ReplicaView] = []


class DiskView(msgspec.Struct, frozen=True, kw_only=True):
    """A disk as the node sees it; `used_bytes` is what Mainstem holds on it."""

    path: str
    used_bytes: int
    free_bytes: int
    total_bytes: int


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    cluster_id: str
    nodes: Sequence[NodeView]
    write_groups: Sequence[WriteGroupView]
    write_disk: DiskView
    store_disk: DiskView | None
    """None where the store is not a directory of this node."""
    topics: int
    partitions: int
    metadata_leader: int = -1
    """Node id; -1: nobody, as far as this node knows."""
    feature_level: int = 1
    """What the nodes may write."""
    feature_level_newest: int = 1
    """What the version that this node runs could write."""


class FeatureLevelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is posted to `/v1/cluster/feature-level`."""

    level: int


class ReplaceNodeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is posted to `/v1/cluster/replace`."""

    old: int
    new: int


class TransferLeaderRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is posted to `/v1/cluster/transfer-leader`."""

    group: int
    to: int


class TopicSummary(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    topic_id: str
    partitions: int
    internal: bool
    unsplit_bytes: int
    """Live bytes in the journal on disk 1. What is split counts until the journal is pruned of it."""
    stored_bytes: int
    """Live bytes in the queue store on disk 2."""


class FileView(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the queue store that holds batches of a queue."""

    name: str
    kind: str
    """`run` (many queues) or `segment` (this queue only)."""
    file_bytes: int
    queue_bytes: int
    """Bytes of this queue in it."""
    first_offset: int
    last_offset: int


class PartitionView(msgspec.Struct, frozen=True, kw_only=True):
    partition: int
    leader: int
    leader_epoch: int
    write_group: int
    log_start: int
    split_end: int
    """Offsets below are in the queue store."""
    high_watermark: int
    end: int
    unsplit_bytes: int
    stored_bytes: int
    files: Sequence[FileView] = ()


class TopicView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    topic_id: str
    internal: bool
    configs: dict[str, str]
    """Explicit overrides only."""
    partitions: Sequence[PartitionView]


class SplitGroupView(msgspec.Struct, frozen=True, kw_only=True):
    """Where one write group stands, as block indexes: `pruned` <= `split` <= `committed`."""

    committed: int
    split: int
    pruned: int
    lag_bytes: int
    lag_seconds: float
    """Age of the oldest unsplit block; 0 when there is none."""
    files: int
    waits_for: str = ""
    """Why what is split of it cannot be committed now; empty: it can."""


class DamagedRunView(msgspec.Struct, frozen=True, kw_only=True):
    """A run on disk 2 that is missing or cannot be read as it should."""

    name: str
    reason: str
    since_ms: int
    """When somebody came upon it, ms since the epoch."""


class LeaseView(msgspec.Struct, frozen=True, kw_only=True):
    holder: str
    fence: int
    expires_in_seconds: float


class DamagedBlockView(msgspec.Struct, frozen=True, kw_only=True):
    """A block of the journal that went bad and that the split of its write group waits before."""

    group: int
    block: int
    fault: str
    """Where it lies, what is wrong with it, and what to do."""
    seconds: float
    """Since it was found."""


class SplitView(msgspec.Struct, frozen=True, kw_only=True):
    groups: dict[str, SplitGroupView]
    """By the write group's number."""
    splitter: str
    """What the embedded splitter does, in words: off, waiting, starting, running, failed (why)."""
    lease: LeaseView | None
    last_error: str | None
    last_progress: dict[str, object] | None
    """The last StreamingQueryProgress figures; None before the first trigger."""
    damaged_runs: Sequence[DamagedRunView] = ()
    """Not mended yet."""
    damaged_blocks: Sequence[DamagedBlockView] = ()
    """The write groups whose split waits, and for what."""


class SplitEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where a splitter reaches the node's split service (node RPC), and where it writes runs."""

    host: str
    port: int
    store_dir: str
    """The queue store's directory, absolute, as the node sees it."""


class NodeViews(Protocol):
    """Implemented by the node. Calls never block the event loop; each raises no error for an empty node."""

    def not_alive(self) -> str | None:
        """Why the node's process should be started anew; None while it does its work."""
        ...

    def not_ready(self) -> str | None:
        """Why the node should get no traffic yet or any more; None when it is ready."""
        ...

    async def cluster(self) -> ClusterView: ...

    async def transfer_leader(self, group: int, to: int) -> str | None:
        """Have another node lead a write group; why that cannot be, None when it is under way."""
        ...

    async def raise_feature_level(self, level: int) -> str | None:
        """Have the cluster write what programs of this level read; why that cannot be, None when it is so."""
        ...

    async def replace_node(self, old: int, new: int) -> str | None:
        """Have every replica of one node move to another; why that cannot be, None when it is under way."""
        ...

    async def topics(self) -> Sequence[TopicSummary]: ...

    async def topic(self, name: str) -> TopicView | None:
        """None for an unknown topic."""
        ...

    async def split(self) -> SplitView: ...

    def split_endpoint(self) -> SplitEndpoint | None:
        """None on a node without the storage role."""
        ...
