"""The nouns that all rooms share: queues, slots, topics, and the results of appends and reads.

Nothing here does I/O or holds state. A queue is one topic-partition; its id packs the topic's number (u32,
never reused) above the partition (u32), so that an id alone finds its topic and its write group.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec

SLOTS = 4096
"""Queues of a class hash to this many fixed slots; a write group owns slots, so the number of groups can change."""

CLASSES_MAX = 8
"""Classes of write groups by their number of replicas: the table of all slots stays within 64 KiB."""

SLOTS_OF_ALL = SLOTS * CLASSES_MAX
"""The slots of one class after those of another."""

FACTOR_OF_CLUSTER = -1
"""The replication factor of topics that ask for none: that of the write groups with which the cluster began."""

CLASSED = 1 << 30
"""Topic numbers from here on name the class of their queues in their last three bits. Those below are of the first
class, the only one of clusters that gave them out."""

PARTITION_BITS = 32

Buffer = bytes | bytearray | memoryview
BUFFERS = (bytes, bytearray, memoryview)
"""The same for `isinstance`."""


class NodeRole(enum.StrEnum):
    """The roles of a node, by the names that configurations and the metadata have for them."""

    BROKER = "broker"
    """Serves Kafka clients."""
    STORAGE = "storage"
    """Holds replicas of write groups."""
    NAMESERVER = "nameserver"
    """May vote on the metadata."""


ALL_ROLES = frozenset(NodeRole)


class SharedBytes(bytes):
    """Bytes that are encoded once and shared by many responses: memory accounts need not count them for
    each."""

    __slots__ = ()


class FeatureLevel(enum.IntEnum):
    """The versions of what the nodes of a cluster may write, in order: each level allows all that the levels before it
    did. A program reads every level up to its newest, whatever the cluster's level is; it writes no more than the
    cluster's level allows."""

    FIRST = 1
    """The level of programs that know of no levels and therefore report none."""
    HARDENED = 2
    """Metadata commands that are marked optional; offsets that name the topic they were committed for; checkpoints that
    name files of producers; undecided blocks that lie in the journal twice."""

    MERGED = 3
    """Files of the queue store that are merged: packed files and queue segments, which snapshots name as well; in all
    files of the queue store an index of aborted transactions."""

    TIERED = 4
    """Files that count in the remote tier, in the logs of write groups and in their snapshots."""

    SECURED = 5
    """The part of the metadata about access control: rules on who may do what, credentials of users."""

    TENANTED = 6
    """Quotas of tenants; delegation tokens."""

    ELASTIC = 7
    """Nodes that have only some of the roles; nodes that are drained; the machines that nodes run on; preferred leaders
    that change."""

    TRANSACTIONAL = 8
    """Batches of transactions and their markers in the logs of write groups; open and aborted transactions in
    checkpoints, snapshots, and files of the queue store."""

    REGROUPED = 9
    """Write groups that come to those with which the cluster began, and slots that they take over."""

    CONFIGURED = 10
    """Configs of client metrics, consumer groups and brokers, in the metadata."""

    MOVABLE = 11
    """Slots that move between write groups with their queues: fences and arrivals in the logs of write groups,
    histories of queues in checkpoints."""

    CLASSED = 12
    """Classes of write groups that have other numbers of replicas, and topics that choose among them."""

    FOLLOWED = 13
    """Slots that move between write groups of several replicas: arrivals that name the block with the fence, and moves
    in snapshots of write groups."""

    CHAINED = 14
    """Arrivals, and snapshots of write groups, that name what a replica applies first in all write groups that queues
    came through."""

    RECALLABLE = 15
    """Moves of slots that are noted in the metadata when they begin, and may be taken back before."""

    RETURNING = 16
    """Slots that return to a write group which has records of their queues from before."""

    HOSTING = 17
    """Slots that move to a write group on other nodes: these are guests of the write groups in which the slots'
    queues have records, learners that get no vote."""

    REDUCED = 18
    """Slots that move to a write group with fewer replicas than their class has: topics that are created later get
    numbers by which they have no queue there."""

    JOINED = 19
    """Queue segments that are one object each in the remote tier and in shared stores: batches and index in one
    file."""

    STORED = 20
    """Slots that move in clusters whose files lie in an object store, or may."""

    UNPINNED = 21
    """Replicas that move while their write groups have records of queues which have gone on, or queues that have come:
    nodes keep what they read of other write groups."""

    COMPACTED = 22
    """Slots with queues that are compacted, and whose records go with retention."""

    KEPT = 23
    """Slots with queues that are compacted and nothing else: they are in several write groups for good."""

    COORDINATED = 24
    """Slots with queues of internal topics, by which brokers coordinate groups and transactions."""

    @classmethod
    def newest(cls) -> FeatureLevel:
        return max(cls)


class LevelRange(NamedTuple):
    """The feature levels at which a program can work. Plain numbers: another node's newest may have no name
    here."""

    oldest: int = FeatureLevel.FIRST
    newest: int = FeatureLevel.FIRST

    def includes(self, level: int) -> bool:
        return self.oldest <= level <= self.newest


OWN_LEVELS = LevelRange(FeatureLevel.FIRST, FeatureLevel.newest())
"""This program's levels. `oldest` goes up when the program can no longer work in clusters of the first
levels."""


class ResourceType(enum.IntEnum):
    """The kinds of what has configs, with Kafka's codes."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ScramMechanism(enum.Enum):
    """The mechanisms of SASL that the cluster keeps credentials for, by their names in the handshake."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def number(self) -> int:
        """Kafka's number of it in requests and responses."""
        return 1 if self is ScramMechanism.SHA_256 else 2

    @property
    def digest(self) -> str:
        """The hash, as `hashlib` calls it."""
        return "sha256" if self is ScramMechanism.SHA_256 else "sha512"

    @property
    def key_bytes(self) -> int:
        return 32 if self is ScramMechanism.SHA_256 else 64


SCRAM_MECHANISMS = {mechanism.value: mechanism for mechanism in ScramMechanism}


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """The values that the cluster keeps of a user's password for one mechanism (RFC 5802). Its text shows no secret."""

    mechanism: ScramMechanism
    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


class ScramChange(NamedTuple):
    """Keep a credential for a user, in place of the one for the same mechanism, or remove that (None)."""

    user: str
    mechanism: ScramMechanism
    credential: ScramCredential | None


def queue_id_of(topic_number: int, partition: int) -> int:
    """The queue id of a topic-partition: topic number (u32) above partition (u32)."""
    return topic_number << PARTITION_BITS | partition


def topic_number_of(queue_id: int) -> int:
    return queue_id >> PARTITION_BITS


def partition_of(queue_id: int) -> int:
    return queue_id & 0xFFFFFFFF


def slots_in_turns(write_groups: int) -> list[int]:
    """The write group of each slot in a cluster that begins with so many."""
    return [slot % write_groups for slot in range(SLOTS)]


def class_of(topic_number: int) -> int:
    """The class of the write groups that a topic's queues are in, counted from 0."""
    return topic_number & CLASSES_MAX - 1 if topic_number & CLASSED else 0


def slot_of(queue_id: int) -> int:
    """The slot (0 to `SLOTS_OF_ALL` - 1) of a queue: within those of its class the top bits of a Fibonacci hash, so
    that neighbours spread."""
    return class_of(topic_number_of(queue_id)) * SLOTS + ((queue_id * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF) >> 52)


def is_slot_table(slots: Sequence[int], write_groups: int) -> bool:
    """Whether these are the write groups of all slots of one or more classes."""
    classes, rest = divmod(len(slots), SLOTS)
    return not rest and 1 <= classes <= CLASSES_MAX and min(slots) >= 0 and max(slots) < write_groups


def all_slots(slots: Sequence[int]) -> list[int]:
    """The write groups of the slots of all classes that there can be. For a class that a node has not heard of, they
    are those of the first class: none of its queues is known there, so that this answers no more than what has to be
    answered for queues that are not known."""
    first = list(slots[:SLOTS])
    return [*slots, *first * (CLASSES_MAX - len(slots) // SLOTS)]


class Durability(enum.Enum):
    """When an append counts as durable: once it is on disk (`sync`), or in the page cache, flushed every
    second."""

    SYNC = "sync"
    ASYNC = "async"


class Tier(enum.Enum):
    """The tier that served a fetch."""

    WRITE_CACHE = "write_cache"
    JOURNAL = "journal"
    READ_CACHE = "read_cache"
    QUEUE_STORE = "queue_store"
    REMOTE = "remote"


class TimestampType(enum.Enum):
    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


class Outcome(enum.Enum):
    """The outcome of one append or one read of one queue; the broker maps each to a Kafka error code."""

    OK = "ok"
    UNKNOWN_QUEUE = "unknown queue"
    NOT_LEADER = "another node leads the queue"
    FENCED = "queue fenced"
    OFFSET_OUT_OF_RANGE = "offset out of range"
    FENCED_LEADER_EPOCH = "the reader knows an older leader epoch"
    UNKNOWN_LEADER_EPOCH = "the reader knows a newer leader epoch"
    OUT_OF_ORDER_SEQUENCE = "out of order sequence"
    UNKNOWN_PRODUCER = "unknown producer"
    STALE_PRODUCER_EPOCH = "stale producer epoch"
    SKIPPED_SEQUENCE = "sequence numbers before this batch's have not arrived"
    """The missing batches may be on their way, refused elsewhere for now; a retry in their order will
    succeed."""
    COLD_PRODUCER = "what is known of the producer is on disk"
    """The storage loads the producer, or asks the coordinator for its transaction, and checks again: this outcome never
    reaches a client."""
    TOO_LARGE = "batch too large for a journal segment"
    INVALID_TXN_STATE = "the producer's transaction does not allow this batch"
    """It is open and the batch is no part of it, or its coordinator has not been told of the queue."""
    CONCURRENT_TRANSACTIONS = "the producer's last transaction is not finished yet"
    TRANSACTION_COORDINATOR_FENCED = "a newer transaction coordinator has written to the queue"
    STORAGE_BUSY = "storage busy"
    """Refused for now (disk 1 nearly full, or too much in flight); a retry may succeed."""
    UNDECIDED = "not known whether the batch will be committed"
    """This node led when it took the batch and no longer does; a retry finds out."""
    STORAGE_FAILED = "storage failed"
    """The disk failed; nothing was acknowledged, and this node accepts no more writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """The effective settings of a topic, parsed from its configs over the node's defaults.

    Names follow Kafka's topic configs (`retention.records`, `segment.records` and `read.spread.enable` are Mainstem's
    own) with dots as underscores; times in ms, sizes in bytes, -1 is unlimited; -2, of local limits: as the whole
    topic's.
    """

    cleanup_policy: frozenset[str] = frozenset({"delete"})
    retention_ms: int = 604_800_000
    retention_bytes: int = -1
    retention_records: int = -1
    segment_bytes: int = 1 << 30
    segment_ms: int = 604_800_000
    segment_records: int = -1
    max_message_bytes: int = 1_048_588
    min_insync_replicas: int = 1
    message_timestamp_type: TimestampType = TimestampType.CREATE_TIME
    message_timestamp_before_max_ms: int = (1 << 63) - 1
    message_timestamp_after_max_ms: int = 3_600_000
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = (1 << 63) - 1
    delete_retention_ms: int = 86_400_000
    remote_storage_enable: bool = False
    remote_log_copy_disable: bool = False
    remote_log_delete_on_disable: bool = False
    local_retention_ms: int = -2
    local_retention_bytes: int = -2
    read_spread_enable: bool = False

    @property
    def keeps_for_good(self) -> bool:
        """Whether the latest record of each key stays whatever its age: the topic is compacted, and nothing else."""
        return "compact" in self.cleanup_policy and "delete" not in self.cleanup_policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic as the metadata knows it."""

    name: str
    number: int
    topic_id: uuid.UUID
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)
    """Explicit overrides only, under Kafka's names."""
    settings: TopicSettings = field(default_factory=TopicSettings)
    internal: bool = False
    replication_factor: int = 1

    def queue_id(self, partition: int) -> int:
        return queue_id_of(self.number, partition)

    @property
    def keeps_old_stays(self) -> bool:
        """Whether retention never ends what its queues had in a write group before a move. The writers of internal ones
        do."""
        return not self.internal and self.settings.keeps_for_good

    @property
    def level_to_move(self) -> FeatureLevel:
        """The feature level from which on its queues move between write groups."""
        if self.internal:
            return FeatureLevel.COORDINATED
        if "compact" not in self.settings.cleanup_policy:
            return FeatureLevel.FIRST
        return FeatureLevel.KEPT if self.settings.keeps_for_good else FeatureLevel.COMPACTED


class TopicsAsOf(NamedTuple):
    """All topics of a cluster, as one version of its metadata has them."""

    version: int
    """The index of the last entry of the metadata's log that they come from."""
    next_number: int
    """Smaller numbers were given out: topics that have them and are missing were deleted."""
    write_groups: int
    """How many write groups the cluster has."""
    topics: tuple[Topic, ...]
    slots: tuple[int, ...] = ()
    """The write group of each slot, class by class; empty: they are in turns, as in a cluster whose write groups are
    its first ones."""


class NewTopic(NamedTuple):
    """A topic that a client wants, as `MetadataAdmin.create_topics` takes it."""

    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]


class QueueRange(NamedTuple):
    """Partitions `first_partition` … + `count` - 1 of a topic."""

    topic_number: int
    first_partition: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls


PLAINTEXT = "PLAINTEXT"
"""The name of the listener that needs no settings, and of its protocol."""


LISTENERS_MAX = 16
"""Listeners of one node: the metadata of every cluster has them of all nodes."""


class ListenerAddress(NamedTuple):
    """The address that clients of one listener are given."""

    listener: str
    host: str
    port: int


class Location(NamedTuple):
    """The place of a node, by the labels that its operator gave it. None: a machine, or a rack, of its own."""

    rack: str | None = None
    machine: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node's identity, its roles, and the addresses it advertises to Kafka clients."""

    node_id: int
    host: str
    port: int
    """`host` and `port` are those of its first listener; without the role of a broker it has none, and port 0."""
    rack: str | None = None
    machine: str | None = None
    """The label of the machine that it shares with other nodes. None: it has one of its own, or has not said."""
    endpoints: tuple[ListenerAddress, ...] = ()
    """One for each listener. Empty: it has the listener `PLAINTEXT` alone, or has not said."""
    roles: frozenset[NodeRole] = ALL_ROLES

    @property
    def location(self) -> Location:
        return Location(self.rack, self.machine)

    @property
    def stores(self) -> bool:
        """Whether it holds replicas of write groups, or may."""
        return NodeRole.STORAGE in self.roles

    def at(self, listener: str) -> Node | None:
        """The node with the address of that listener; None: it has none of this name."""
        if not self.endpoints:
            return self if listener == PLAINTEXT else None
        for name, host, port in self.endpoints:
            if name == listener:
                return replace(self, host=host, port=port)
        return None


def nodes_at(nodes: Iterable[Node], listener: str) -> list[Node]:
    """The nodes that have a listener of this name, with its address. If none has said so, as in a cluster whose feature
    level is too low for it, all nodes as they are: clients cannot do without any."""
    known = list(nodes)
    return [found for node in known if (found := node.at(listener)) is not None] or known


class WriteGroupNodes(NamedTuple):
    """The nodes of a write group, by their ids."""

    leader: int
    """The leader; -1: none is known."""
    leader_epoch: int
    replicas: tuple[int, ...]
    """The nodes that hold replicas; first the preferred leader."""
    in_sync: tuple[int, ...]
    """The replicas that keep up with the leader, as far as this node knows; the leader itself knows all."""


class MoveUnderWay(NamedTuple):
    """A write group's replica on its way: `old` is still a member, `new` has no vote yet. 0: that part is done."""

    group: int
    old: int
    new: int


class WriteGroupBurdens(NamedTuple):
    """How much the write groups of a cluster have to do, for whoever chooses one of them for a queue."""

    bytes_per_second: Mapping[int, float]
    """In and out, as their leaders measure it. One that is missing has no traffic, or its leader does not answer."""
    slots: Mapping[int, int]
    queues: int
    """Of all topics together."""


class LogPosition(NamedTuple):
    """How far a node has come in the metadata's log. Times in ms since the Unix epoch, by the leader's clock; -1: not
    known."""

    node_id: int
    last_index: int
    """The last entry that it has; -1: not known."""
    heard_ms: int
    """When the leader last heard from it."""
    caught_up_ms: int
    """The last time at which it had all that the leader had."""


class QuorumStanding(NamedTuple):
    """The metadata quorum, as its leader tells of it."""

    leader: int
    term: int
    commit_index: int
    voters: tuple[LogPosition, ...]
    observers: tuple[LogPosition, ...]
    """The other nodes, which follow the metadata without a vote."""


class BatchAppend(NamedTuple):
    """One validated record batch (format v2) to append. `data` is only valid during the call to `append`."""

    queue_id: int
    data: memoryview
    """The whole batch, from its base offset field on."""
    record_count: int
    last_offset_delta: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    attributes: int
    crc: int
    log_append_time: bool = False
    """The store overwrites the timestamps with its own clock (message.timestamp.type=LogAppendTime)."""


class AppendTransaction(NamedTuple):
    """The transaction that a Produce request names."""

    transactional_id: str
    adds_queues: bool = False
    """Its coordinator takes each queue into the transaction that the request brings a batch for (KIP-890, Produce 12
    and newer); otherwise the client has told it of them before."""


class TransactionMarker(NamedTuple):
    """The end of a producer's transaction in one queue, as its coordinator has decided."""

    queue_id: int
    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int


class ActiveProducer(NamedTuple):
    """An idempotent or transactional producer, as a queue knows it."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    """-1: none of this epoch."""
    last_timestamp_ms: int
    coordinator_epoch: int = -1
    """That of its last marker; -1: none is known."""
    transaction_start: int = -1
    """The first offset of its open transaction; -1: none is open."""


class AbortedRange(NamedTuple):
    """A transaction of one queue that was aborted: the producer's batches from the first offset up to its marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    """The marker's."""


class AppendResult(NamedTuple):
    """The outcome for one batch; `base_offset` is -1 unless the outcome is OK."""

    outcome: Outcome
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    message: str | None = None


class QueueRead(NamedTuple):
    """A read of one queue: batches from the one that holds `offset`, up to about `bytes_max` bytes."""

    queue_id: int
    offset: int
    bytes_max: int


class WantedReads(msgspec.Struct, frozen=True):
    """The part of a plan that is to be read next: reads of queues, made in this order, at most about `bytes_max` bytes
    in all. With `whole_first` the first batch that is found comes back whole, whatever its size. Plain data, which
    crosses a wire as it is; the plan that the results go into stays where it is."""

    reads: tuple[QueueRead, ...]
    bytes_max: int
    whole_first: bool


class ForwardedClient(NamedTuple):
    """The client for which a node asks another one. `judged_at`: how far the asking node had applied the metadata when
    it judged what the client may do; -1: nobody judges there."""

    principal: str
    host: str
    judged_at: int = -1


class QueueOffsets(NamedTuple):
    """The offsets a reader may see. `end` counts appended records, `high_watermark` committed ones, `last_stable` those
    in front of the oldest open transaction."""

    log_start: int
    high_watermark: int
    end: int
    leader_epoch: int
    last_stable: int


class QueueSlice(NamedTuple):
    """The result of reading one queue: whole batches in offset order.

    The views stay valid while they are referenced. `tier` is None when no batch came back. `next_offset`
    follows the last record returned.
    """

    queue_id: int
    outcome: Outcome
    batches: list[Buffer]
    offsets: QueueOffsets
    tier: Tier | None = None
    next_offset: int = -1


class TimestampOffset(NamedTuple):
    offset: int
    timestamp: int
    leader_epoch: int


class QueueUsage(NamedTuple):
    """Bytes a queue holds on each disk: live, as acknowledged to producers."""

    unsplit_bytes: int
    stored_bytes: int


class Sample(NamedTuple):
    """One measured value, for `/metrics`. `kind` is 'counter' or 'gauge'; labels are (name, value) pairs."""

    name: str
    kind: str
    help: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()
    names_users: bool = False
    """Whether labels have names that users gave, or of users themselves: tenants, topics, groups, clients."""


class HistogramSample(NamedTuple):
    """A histogram of seconds (or bytes): cumulative counts per upper bound, the last bound being +inf."""

    name: str
    help: str
    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float
    labels: tuple[tuple[str, str], ...] = ()
