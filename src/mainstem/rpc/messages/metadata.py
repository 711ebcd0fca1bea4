"""The nameservers' messages: changes, heartbeats, snapshots, and the introduction that any caller may ask
for.

Raft's own messages travel by `raft_messages`. A request says what is wanted, not how it is done: the leader chooses
numbers and ids. Refusals of single items are part of a reply, named by their class (`nameserver.errors`), since some
of many items may be refused; the refusal classes below say that the request as a whole was not taken.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from mainstem.model import LISTENERS_MAX, SLOTS_OF_ALL, FeatureLevel
from mainstem.rpc.errors import Refused
from mainstem.rpc.messages.forwarded import ClientTold
from mainstem.rpc.messages.loads import ToldLoad, ToldSlotMove
from mainstem.rpc.wire.method import Method, Nothing

Index = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
WriteGroupNumber = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)]
NodeId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Name = Annotated[str, msgspec.Meta(max_length=1024)]
Text = Annotated[str, msgspec.Meta(max_length=32_767)]
Count = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Level = Annotated[int, msgspec.Meta(ge=1, le=0xFFFF)]
Secret = Annotated[bytes, msgspec.Meta(max_length=1024)]
RequestId = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
NodeIds = Annotated[list[NodeId], msgspec.Meta(max_length=1_000)]

REACHED_MAX = 64
"""Nodes that one node calls for another node: one call each."""

ITEMS_MAX = 10_000
"""Topics in one request: a few MB, unless their configs are long."""


class NotMetadataLeader(Refused):
    """Another node leads the metadata quorum, or none does; nothing was done."""

    kind = "not the metadata leader"


class NotAvailable(Refused):
    """The leader can make no change now, or its outcome is not known; the same request may be sent again."""

    kind = "metadata not available"


class SnapshotRefused(Refused):
    """There is no snapshot, or the member could not take it."""

    kind = "snapshot refused"


# --- changes --------------------------------------------------------------------------------------------


class WantedTopic(msgspec.Struct, frozen=True, array_like=True):
    name: Text
    partitions: Count
    replication_factor: Count
    configs: dict[Text, Text]
    internal: bool = False


class WantTopics(msgspec.Struct, frozen=True, tag="topics"):
    topics: Annotated[list[WantedTopic], msgspec.Meta(max_length=ITEMS_MAX)]


class WantDeletions(msgspec.Struct, frozen=True, tag="deletions"):
    names: Annotated[list[Text], msgspec.Meta(max_length=ITEMS_MAX)]


class WantPartitions(msgspec.Struct, frozen=True, tag="partitions"):
    name: Text
    total: Count


class WantConfigs(msgspec.Struct, frozen=True, tag="configs"):
    name: Text
    changes: dict[Text, Text | None]


class WantProducerIds(msgspec.Struct, frozen=True, tag="producer ids"):
    node_id: NodeId


class WantedListenerAddress(msgspec.Struct, frozen=True, array_like=True):
    """The address that clients of one listener are given."""

    listener: Name
    host: Name
    port: WriteGroupNumber


class WantNode(msgspec.Struct, frozen=True, tag="node", kw_only=True):
    """A node registers itself."""

    node_id: NodeId
    host: Name
    port: WriteGroupNumber
    rack: Name | None = None
    rpc: Name = ""
    incarnation: Annotated[bytes, msgspec.Meta(max_length=16)] = b""
    roles: list[Name] = []
    version: Name = ""
    level_oldest: Level = FeatureLevel.FIRST
    level_newest: Level = FeatureLevel.FIRST
    """The feature levels at which its program can work; not logged."""
    endpoints: Annotated[list[WantedListenerAddress], msgspec.Meta(max_length=LISTENERS_MAX)] = []
    machine: Name | None = None
    """The label of its machine; empty: a machine of its own; None: its program knows of no machines."""


class WantMove(msgspec.Struct, frozen=True, tag="move"):
    group: WriteGroupNumber
    old: NodeId
    new: NodeId
    why: Name = ""
    """For people; the metadata leader remembers it for a while."""


class WantPreference(msgspec.Struct, frozen=True, tag="preference"):
    """The write group's replica on this node shall lead it."""

    group: WriteGroupNumber
    node_id: NodeId
    why: Name = ""


class WantWriteGroups(msgspec.Struct, frozen=True, tag="write groups"):
    """The cluster shall have so many write groups, more than now, of which the new ones begin on some of these
    nodes."""

    total: Annotated[int, msgspec.Meta(ge=1, le=65_536)]
    node_ids: NodeIds
    replication_factor: Annotated[int, msgspec.Meta(ge=0, le=1_000)] = 0
    """How many replicas each new one has; 0: as many as those with which the cluster began. From `CLASSED` on."""


BESIDE_MAX = 1_000
"""Partitions beside one in its slot that a request names: a topic of 100,000 has 25 in each."""


class WantSlotMove(msgspec.Struct, frozen=True, tag="slot move"):
    """The slot of a partition shall move to this write group, with all queues that hash to it."""

    name: Name
    partition: Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)]
    group: WriteGroupNumber
    beside: Annotated[list[tuple[Name, int]], msgspec.Meta(max_length=BESIDE_MAX)] = []
    """Other partitions of the slot that are to have as few copies as that write group keeps: topics and partitions.
    From `REDUCED` on."""
    why: str = ""
    """The reason, for people."""


class WantSlotMoveBegun(msgspec.Struct, frozen=True, tag="slot move begins"):
    """A slot is about to be fenced, says the node that leads its write group."""

    slot: Annotated[int, msgspec.Meta(ge=0, lt=SLOTS_OF_ALL)]
    group: WriteGroupNumber
    number: Annotated[int, msgspec.Meta(ge=1)]


class WantSlotKept(msgspec.Struct, frozen=True, tag="slot kept"):
    """The slot shall stay where it is: its move is taken back."""

    slot: Annotated[int, msgspec.Meta(ge=0, lt=SLOTS_OF_ALL)]
    move: ToldSlotMove | None = None
    """As it is remembered, with the reason; None: it is not."""


class WantSlotMoved(msgspec.Struct, frozen=True, tag="slot moved"):
    """A slot has moved, says the node that leads its write group; the others have records of its queues."""

    slot: Annotated[int, msgspec.Meta(ge=0, lt=SLOTS_OF_ALL)]
    group: WriteGroupNumber
    number: Annotated[int, msgspec.Meta(ge=1)]
    others: Annotated[list[WriteGroupNumber], msgspec.Meta(max_length=1_000)]


class WantSlotSettled(msgspec.Struct, frozen=True, tag="slot settled"):
    """All that there is of a slot's queues is in its write group, after its move of this number."""

    slot: Annotated[int, msgspec.Meta(ge=0, lt=SLOTS_OF_ALL)]
    number: Annotated[int, msgspec.Meta(ge=1)]


class WantDraining(msgspec.Struct, frozen=True, tag="draining"):
    """The node shall give away what it holds, or no longer."""

    node_id: NodeId
    draining: bool


class WantNodeRemoval(msgspec.Struct, frozen=True, tag="node_removal"):
    """The node, which is drained and dead, shall be no part of the cluster any more."""

    node_id: NodeId


class WantPlacement(msgspec.Struct, frozen=True, tag="placement"):
    """Place the write groups on the nodes there are."""


class WantFeatureLevel(msgspec.Struct, frozen=True, tag="feature level"):
    level: Level


class WantedAcl(msgspec.Struct, frozen=True, array_like=True):
    """An access rule, with Kafka's numbers."""

    kind: Annotated[int, msgspec.Meta(ge=0, le=127)]
    name: Text
    pattern: Annotated[int, msgspec.Meta(ge=0, le=127)]
    principal: Text
    host: Text
    operation: Annotated[int, msgspec.Meta(ge=0, le=127)]
    permission: Annotated[int, msgspec.Meta(ge=0, le=127)]


class WantAcls(msgspec.Struct, frozen=True, tag="acls"):
    """Add access rules."""

    acls: Annotated[list[WantedAcl], msgspec.Meta(max_length=ITEMS_MAX)]


class WantAclRemovals(msgspec.Struct, frozen=True, tag="acl removals"):
    acls: Annotated[list[WantedAcl], msgspec.Meta(max_length=ITEMS_MAX)]


class WantedQuotas(msgspec.Struct, frozen=True, array_like=True):
    """Quotas of one entity: its parts, as kind and name (None: the default), and by key the new value, None to remove
    it."""

    entity: Annotated[list[tuple[Name, Text | None]], msgspec.Meta(max_length=8)]
    changes: Annotated[dict[Name, float | None], msgspec.Meta(max_length=32)]


class WantQuotas(msgspec.Struct, frozen=True, tag="quotas"):
    """Set and remove quotas."""

    quotas: Annotated[list[WantedQuotas], msgspec.Meta(max_length=ITEMS_MAX)]


class WantResourceConfigs(msgspec.Struct, frozen=True, tag="resource configs"):
    """Set (value) and remove (None) configs of what is no topic; `kind`: Kafka's resource type."""

    kind: Annotated[int, msgspec.Meta(ge=0, le=127)]
    name: Text
    changes: Annotated[dict[Name, Text | None], msgspec.Meta(max_length=1_000)]


class WantTenant(msgspec.Struct, frozen=True, tag="tenant"):
    """Make a tenant, have what is said here take the place of what it is, or change alone what is said."""

    name: Text
    prefix: Text | msgspec.UnsetType = msgspec.UNSET
    retention_ms_max: Index | msgspec.UnsetType | None = msgspec.UNSET
    queues_max: Index | msgspec.UnsetType | None = msgspec.UNSET
    users: Annotated[list[Text], msgspec.Meta(max_length=1_000)] | msgspec.UnsetType = msgspec.UNSET
    quotas: Annotated[dict[Name, float | None], msgspec.Meta(max_length=32)] = {}
    """Changes of its quotas, by key; None: it goes."""
    how: Annotated[str, msgspec.Meta(max_length=16)] = "replace"
    """'create': there must be none of this name; 'replace'; 'alter': there must be one."""


class WantTenantRemoval(msgspec.Struct, frozen=True, tag="tenant removal"):
    name: Text


class WantToken(msgspec.Struct, frozen=True, tag="token"):
    """Keep a delegation token; times in ms since the Unix epoch."""

    token_id: Name
    owner: Text
    requester: Text
    renewers: Annotated[list[Text], msgspec.Meta(max_length=1_000)]
    issued_ms: Index
    expires_ms: Index
    ends_ms: Index


class WantTokenExpiry(msgspec.Struct, frozen=True, tag="token expiry"):
    """A delegation token is to expire at another time."""

    token_id: Name
    expires_ms: Index


class WantTokenRemovals(msgspec.Struct, frozen=True, tag="token removals"):
    """Remove delegation tokens: those of them that expired before `expired_by_ms`; None: all of them."""

    token_ids: Annotated[list[Name], msgspec.Meta(max_length=ITEMS_MAX)]
    expired_by_ms: Index | None = None


class WantedCredential(msgspec.Struct, frozen=True, array_like=True):
    """The values to be kept of a user's password for a mechanism; empty keys: nothing any more."""

    user: Text
    mechanism: Name
    salt: Secret = b""
    iterations: Count = 0
    stored_key: Secret = b""
    server_key: Secret = b""

    def __repr__(self) -> str:
        return f"WantedCredential({self.user!r}, {self.mechanism!r}, …)"  # the rest is secret


class WantCredentials(msgspec.Struct, frozen=True, tag="credentials"):
    """Set and remove SCRAM credentials."""

    credentials: Annotated[list[WantedCredential], msgspec.Meta(max_length=ITEMS_MAX)]
    absent_users_secret: Secret = b""
    """For a cluster that has none yet."""
    first: bool = False
    """Only if the cluster has never had a user."""

    def __repr__(self) -> str:
        return f"WantCredentials({self.credentials!r}, …)"


Wanted = (
    WantTopics
    | WantDeletions
    | WantPartitions
    | WantConfigs
    | WantProducerIds
    | WantNode
    | WantMove
    | WantPreference
    | WantWriteGroups
    | WantSlotMove
    | WantSlotMoveBegun
    | WantSlotKept
    | WantSlotMoved
    | WantSlotSettled
    | WantDraining
    | WantNodeRemoval
    | WantPlacement
    | WantFeatureLevel
    | WantAcls
    | WantAclRemovals
    | WantCredentials
    | WantQuotas
    | WantResourceConfigs
    | WantTenant
    | WantTenantRemoval
    | WantToken
    | WantTokenExpiry
    | WantTokenRemovals
)


class ChangeRequest(msgspec.Struct, frozen=True):
    """`request` identifies the request: sent again after a lost answer, it is not carried out twice."""

    request: RequestId
    wanted: Wanted
    client: ClientTold | None = None
    """The client that wants it; None: the asking node."""


class ItemRefused(msgspec.Struct, frozen=True, array_like=True):
    item: int
    kind: str
    message: str


class ChangeReply(msgspec.Struct, frozen=True):
    """`index` of the log entry that made the change, which the caller's own node applies too; 0: nothing was
    changed, every item was refused."""

    index: Index
    refusals: list[ItemRefused] = []


class ChangeMember(msgspec.Struct, frozen=True):
    """Replace a voter of the metadata quorum; `old` 0: only add, `new` 0: only remove."""

    old: NodeId
    new: NodeId


class MemberChanged(msgspec.Struct, frozen=True):
    voters: NodeIds
    refusals: list[ItemRefused] = []


# --- heartbeats -----------------------------------------------------------------------------------------


class WriteGroupLeader(msgspec.Struct, frozen=True, array_like=True):
    """`node` leads write group `group` in `term`."""

    group: WriteGroupNumber
    node: NodeId
    term: Index


WriteGroupLeaders = Annotated[list[WriteGroupLeader], msgspec.Meta(max_length=65_536)]


QUOTAS_MAX = 1_000
"""In one heartbeat: 40 kB."""

QuotaId = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
PerSecond = Annotated[float, msgspec.Meta(ge=0)]


class ToldUse(msgspec.Struct, frozen=True, array_like=True):
    """The share that a node's clients take of a quota that the nodes share."""

    quota: QuotaId
    whole: PerSecond
    used: PerSecond
    held_back: bool


class ToldPart(msgspec.Struct, frozen=True, array_like=True):
    """A node's part of a quota."""

    quota: QuotaId
    per_second: PerSecond


NODES_PRESSED_MAX = 1_000
"""Told in a heartbeat's answer: more nodes with full disks than a cluster has."""

PRESSURE_MAX = 1_000.0
"""A disk that is full has a hundred, or less."""

Pressure = Annotated[float, msgspec.Meta(ge=-PRESSURE_MAX, le=PRESSURE_MAX)]
"""On disk 1: at 0 producers are slowed, at 1 refused."""


TENANTS_PRESSING_MAX = 32
"""Told of one disk, those that have filled most of it: the others have less of it than a thirtieth."""


class DiskPressure(msgspec.Struct, frozen=True, array_like=True):
    """A node has little room left on disk 1."""

    node: NodeId
    pressure: Pressure
    tenants: Annotated[list[Name], msgspec.Meta(max_length=TENANTS_PRESSING_MAX)] = []
    """Those that have filled it; an empty name: those that are nobody's."""


class NodeHeartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """A node lives; its connection tells which node. `leaders`: the leaders of write groups it knows, itself
    among them."""

    leaders: WriteGroupLeaders = []
    applied: Index = 0
    """Of the metadata."""
    disk: Name = ""
    """Empty: the node is well; else what is wrong with it."""
    lag_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Not split yet."""
    level_oldest: Level = FeatureLevel.FIRST
    level_newest: Level = FeatureLevel.FIRST
    """The feature levels at which this node can work."""
    leaves: bool = False
    """The node stops: this is its last heartbeat."""
    now_ms: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The node's clock in ms; 0: its version does not report it."""
    quotas: Annotated[list[ToldUse], msgspec.Meta(max_length=QUOTAS_MAX)] = []
    load: ToldLoad | None = None
    """None: the node's version does not measure it."""
    disk_pressure: DiskPressure | None = None
    """None: there is room on disk 1, or the node's version does not say."""


class NodeVerdict(msgspec.Struct, frozen=True, array_like=True):
    """The metadata leader's verdict on a node: `state` is 'alive', 'suspected' or 'dead'; `reason` is for
    people."""

    node: NodeId
    state: str
    reason: str


class NodeClock(msgspec.Struct, frozen=True, array_like=True):
    """A node's clock as of now, as far as the metadata leader knows."""

    node: NodeId
    now_ms: Annotated[int, msgspec.Meta(ge=0)]
    age_ms: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Age of the reading from the node itself; `now_ms` has been advanced since."""


class HeartbeatReply(msgspec.Struct, frozen=True, kw_only=True):
    term: Index
    """The metadata quorum's term; verdicts of an older term no longer count."""
    leaders: WriteGroupLeaders = []
    verdicts: Annotated[list[NodeVerdict], msgspec.Meta(max_length=1_000)] = []
    clocks: Annotated[list[NodeClock], msgspec.Meta(max_length=1_001)] = []
    quotas: Annotated[list[ToldPart], msgspec.Meta(max_length=QUOTAS_MAX)] = []
    disk_pressures: Annotated[list[DiskPressure], msgspec.Meta(max_length=NODES_PRESSED_MAX)] = []
    """Of nodes that have little room left."""


class Reach(msgspec.Struct, frozen=True):
    """Asks a node which of these nodes it reaches."""

    nodes: Annotated[list[NodeId], msgspec.Meta(max_length=REACHED_MAX)]


class Reached(msgspec.Struct, frozen=True):
    nodes: Annotated[list[NodeId], msgspec.Meta(max_length=REACHED_MAX)]


# --- snapshots and followers ----------------------------------------------------------------------------


class LeadersTold(msgspec.Struct, frozen=True):
    """The leaders of write groups that a node knows."""

    leaders: WriteGroupLeaders


class OfferSnapshot(msgspec.Struct, frozen=True):
    """The leader of `term` asks a member to fetch its snapshot."""

    term: Index


class FetchSnapshot(msgspec.Struct, frozen=True):
    pass


class SnapshotPart(msgspec.Struct, frozen=True):
    """One part of a snapshot; each part names the snapshot. `commands` are encoded. The last part has their
    `total`."""

    index: Index
    term: Index
    voters: NodeIds
    learners: NodeIds
    commands: Annotated[list[bytes], msgspec.Meta(max_length=100_000)]
    total: Annotated[int, msgspec.Meta(ge=-1)] = -1


class Follow(msgspec.Struct, frozen=True):
    """Asks for the changes from entry `index` on; if it is 0, or that entry is not in memory any more, a
    snapshot comes first."""

    index: Index


class FollowPart(msgspec.Struct, frozen=True):
    """Either part of a snapshot, or a change: entry `index` with its payload. Empty payload: the entry
    changes nothing, or was sent before and only shows that the member still is there."""

    index: Index
    payload: bytes = b""
    snapshot: SnapshotPart | None = None


class Committed(msgspec.Struct, frozen=True):
    """All that was committed before the question lies at or before entry `index`."""

    index: Index


class ToldPosition(msgspec.Struct, frozen=True, array_like=True):
    """As `model.LogPosition`."""

    node: NodeId
    last_index: int
    heard_ms: int
    caught_up_ms: int


class QuorumTold(msgspec.Struct, frozen=True):
    """How the metadata quorum stands, as its leader knows."""

    leader: NodeId
    term: Index
    commit_index: Index
    voters: Annotated[list[ToldPosition], msgspec.Meta(max_length=1_000)]
    observers: Annotated[list[ToldPosition], msgspec.Meta(max_length=10_000)]


class Introduction(msgspec.Struct, frozen=True):
    """The node that answers, and the nodes it knows; `cluster_id` is empty where no cluster was created
    yet."""

    node_id: NodeId
    cluster_id: Name
    voters: NodeIds
    incarnations: dict[NodeId, bytes]
    """Addresses of the registered nodes."""
    feature_level: Level = FeatureLevel.FIRST
    """Of the cluster."""


CHANGE = Method(80, "metadata.change", ChangeRequest, ChangeReply, (NotMetadataLeader, NotAvailable), nodes_only=True)
HEARTBEAT = Method(81, "metadata.heartbeat", NodeHeartbeat, HeartbeatReply, (NotMetadataLeader,), nodes_only=True)
OFFER_SNAPSHOT = Method(82, "metadata.offer_snapshot", OfferSnapshot, Nothing, (SnapshotRefused,), nodes_only=True)
FETCH_SNAPSHOT = Method(
    83,
    "metadata.fetch_snapshot",
    FetchSnapshot,
    SnapshotPart,
    (SnapshotRefused,),
    streams=True,
    nodes_only=True,
)
INTRODUCE = Method(84, "metadata.introduce", Nothing, Introduction)
"""Open to clients: a new node knows no cluster id yet with which to introduce itself."""
CHANGE_MEMBER = Method(
    85,
    "metadata.change_member",
    ChangeMember,
    MemberChanged,
    (NotMetadataLeader, NotAvailable),
    nodes_only=True,
)
FOLLOW = Method(86, "metadata.follow", Follow, FollowPart, (NotAvailable,), streams=True, nodes_only=True)
REACH = Method(87, "metadata.reach", Reach, Reached, nodes_only=True)
COMMITTED = Method(88, "metadata.committed", Nothing, Committed, (NotAvailable,), nodes_only=True)
LEADERS = Method(90, "metadata.leaders", Nothing, LeadersTold, nodes_only=True)
QUORUM_POSITIONS = Method(89, "metadata.quorum_positions", Nothing, QuorumTold, (NotMetadataLeader,), nodes_only=True)
