"""Views of the cluster: its nodes, write groups, disks and drains."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class NodeLoadView(msgspec.Struct, frozen=True, kw_only=True):
    """How loaded a node is, as it told the metadata leader `age_seconds` ago; rates are smoothed over half a minute."""

    age_seconds: float
    cpu_share: float
    """The part of its machine's processors that the node's process takes, 0 to 1."""
    sync_share: float
    """The part of the time in which it waits for disk 1 to make something durable, 0 to 1."""
    write_free_bytes: int
    write_total_bytes: int
    store_free_bytes: int
    store_total_bytes: int
    """Of a disk 2 of its own; 0: it has none."""


class QueuePartView(msgspec.Struct, frozen=True, kw_only=True):
    """A queue with its part of the bytes that its write group takes in, 0 to 1, as samples tell."""

    topic: str
    partition: int
    part: float


class WriteGroupLoadView(msgspec.Struct, frozen=True, kw_only=True):
    """A write group's traffic, per second, as its leader measures it."""

    bytes_in: float
    bytes_out: float
    requests: float
    """Batches appended, and reads of a queue that returned some."""
    busiest: Sequence[QueuePartView] = []
    """The queues that bring much of it, the busiest first."""


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
    machine: str | None = None
    """The label of the machine that the node shares with others; None: it has one of its own."""
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
    load: NodeLoadView | None = None
    """None: the metadata leader does not know it, or does not answer."""


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
    slots: int = 0
    """How many of the slots, to which queues of its class hash, are its own."""
    replication_factor: int = 0
    """How many replicas it has, or is to have while one moves: its class."""
    replicas: Sequence[ReplicaView] = []
    load: WriteGroupLoadView | None = None
    """None: the metadata leader does not know it, or does not answer."""


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


class LostNodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A dead node that still has replicas, which are rebuilt on other nodes, or will be."""

    node: int
    dead_seconds: float
    """Since this metadata leader holds it for dead, or the node that is asked knows of that."""
    rebuilt_in_seconds: float | None
    """Until that begins; 0: it has begun, None: it does not come by itself."""
    groups_left: Sequence[int]
    """Write groups that it is still a member of, or may be."""
    waits_for: Sequence[str] = []
    """Why something does not go on, in words."""


class MoveView(msgspec.Struct, frozen=True, kw_only=True):
    """A write group's replica that moves, because of a drain, a lost node, or `cluster replace`."""

    group: int
    old: int
    """The node whose replica goes; 0: it has gone."""
    new: int
    """The node whose replica has no vote yet; 0: it has one."""


class BalanceMoveView(msgspec.Struct, frozen=True, kw_only=True):
    """A write group's replica that would be better elsewhere; or, with `preferred`, one that had better lead, on node
    `new`, than the one on node `old`."""

    group: int
    old: int
    new: int
    why: str
    preferred: bool = False
    bytes: int | None = None
    """Copied for the replica. None: nothing is, or it is not known, or this is not a plan of a rebalance."""


class QueueShiftView(msgspec.Struct, frozen=True, kw_only=True):
    """A queue that should go to another write group, or was to go there, with its slot."""

    topic: str
    partition: int
    slot: int
    old: int
    new: int
    why: str
    copies: bool = False
    """Whether nodes of the new write group would have to copy the old one first."""
    age_seconds: float | None = None
    """How long ago that was begun; None: it was not."""
    taken_back: bool = False
    """It did not begin to move, and the balancer took that back."""


class BalanceView(msgspec.Struct, frozen=True, kw_only=True):
    """The way to replicas that are spread evenly, and how far the cluster is on it."""

    moves: Sequence[BalanceMoveView]
    """Those that have not begun."""
    begun: int = 0
    """How many replicas began to move now."""
    leaders_begun: int = 0
    """How many write groups were given another preferred leader now."""
    by_load: bool = False
    """Whether the plan goes by load; else it counts replicas, as some node's load is not known."""
    under_way: int = 0
    """Moves of replicas that had begun before, whatever began them."""
    waits_for: Sequence[str] = []
    """Why some cannot begin, in words."""
    without_room: Sequence[int] = []
    """Nodes that take nothing, as too little of a disk is free."""
    staying: Sequence[str] = []
    """Why no replica of some write groups moves for now, in words, one of each."""
    queue: QueueShiftView | None = None
    """A queue that had better go to another write group, as no other move helps a node that is too busy."""
    bytes_per_second: int = 0
    """The pace at which each node takes a replica; 0: as fast as it goes."""


class SlotMoveView(msgspec.Struct, frozen=True, kw_only=True):
    """A slot on its way to another write group, with the queues that hash to it."""

    slot: int
    before: int
    to: int
    waits_for: str = ""
    """The obstacle that the node tells of that leads it; empty: there is none, or another node leads it."""


class BalancerView(msgspec.Struct, frozen=True, kw_only=True):
    """The balancer of the metadata leader, as `nameserver.balance` has it there."""

    mode: str
    """`leaders`, `replicas`, which is both, or `queues`, which is these and queues."""
    looked: bool
    """Whether it has looked since the node leads the metadata."""
    waits_for: str
    """Why it began nothing at its last look, in words; empty: it did, or nothing has too much to do."""
    moves_last_hour: int
    """How many it has begun within an hour, as far as the nodes remember."""
    moves_per_hour_max: int
    last: BalanceMoveView | None = None
    """The last one that some node remembers."""
    last_age_seconds: float | None = None
    last_queue: QueueShiftView | None = None
    """The same of queues."""


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
    lost_nodes: Sequence[LostNodeView] = []
    moves: Sequence[MoveView] = []
    """Those that write group leaders tell of."""
    slot_moves: Sequence[SlotMoveView] = []
    balancer: BalancerView | None = None
    """None: it is off on the metadata leader, or that does not answer."""
    next_node_id: int = 1
    """Above the ids of all nodes that there are, and of those that were removed: for a node that joins."""
    metadata_leader: int = -1
    """The node id of the metadata's leader; -1: this node knows none."""
    feature_level: int = 1
    """The feature level at which the nodes may write."""
    feature_level_newest: int = 1
    """The newest level of the version that this node runs."""
    shared_store: str | None = None
    """The URL of the store that all nodes share, or its directory; None: each has a disk 2 of its own."""
