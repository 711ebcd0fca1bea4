"""The seams between rooms, as protocols. At most six methods each, defined by the caller's needs.

`MessageStore` and `QueueAdmin` are the compute/storage seam: a broker cannot tell whether it holds the local
store of its own process or a remote one. `Files`, `ObjectStore`, `Clock` and `Network` keep disks, object stores,
time and sockets out of the rooms, so that a whole node can run on simulated ones.
"""

from __future__ import annotations

import asyncio
import enum
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar, overload, runtime_checkable

from mainstem.errors import MainstemError
from mainstem.model import (
    BUFFERS,
    AbortedRange,
    ActiveProducer,
    AppendResult,
    AppendTransaction,
    BatchAppend,
    Buffer,
    ForwardedClient,
    HistogramSample,
    MoveUnderWay,
    NewTopic,
    Node,
    Outcome,
    QueueOffsets,
    QueueRange,
    QueueRead,
    QueueSlice,
    QueueUsage,
    QuorumStanding,
    ResourceType,
    Sample,
    ScramChange,
    ScramCredential,
    ScramMechanism,
    TimestampOffset,
    Topic,
    TransactionMarker,
    WantedReads,
    WriteGroupBurdens,
    WriteGroupNodes,
)

if TYPE_CHECKING:
    from numpy import int64, uint64
    from numpy.typing import NDArray

from mainstem.prompt_future import PromptFuture

T = TypeVar("T")


class ReadPlan(Protocol):
    """The reads of one fetch, partition by partition, in order; `kernel.FetchPlan` implements it."""

    @property
    def round(self) -> int:
        """How many rounds have begun."""
        ...

    def wanted(self, reads_max: int, bytes_max: int) -> WantedReads:
        """The next partitions to read, `reads_max` at most, and the bytes that the round still has room for, of
        `bytes_max` and of its own bound. Without reads: all are read."""
        ...

    def put(self, found: QueueSlice) -> None:
        """Settle the first of the partitions that are wanted."""
        ...

    def ends(self) -> Mapping[int, int]:
        """The high watermarks found, by queue id."""
        ...


class Intake(Protocol):
    """Whether the store takes batches as fast as they come."""

    def has_room(self, part: float = 1.0) -> bool:
        """Whether connections that send batches should be read: while batches would wait in memory no longer
        than a disk takes, and also when they would be refused. `part`: of what may wait."""
        ...

    def tell_of_room(self, told: Callable[[], object]) -> None:
        """Call back, once and never at once, when there is room."""
        ...


class ResponseRoom(Protocol):
    """The memory that responses may take."""

    def bytes_free(self) -> int:
        """The bytes that one response should have at most."""
        ...

    def change(self, more: int) -> None:
        """A response that is being made holds `more` additional bytes, or fewer if negative. The sender of a
        finished response charges for it."""
        ...


class MessageStore(Protocol):
    """Append to queues and read them back."""

    def append(
        self,
        batches: Sequence[BatchAppend],
        acks: int,
        *,
        copies_min: int | Mapping[int, int] = 0,
        owner_epoch: int | None = None,
        transaction: AppendTransaction | None = None,
    ) -> PromptFuture[list[AppendResult]]:
        """Append whole batches, in order. The copy is made before this returns; the future resolves when
        every batch is as durable as `acks` asks (0: at once, 1: leader, -1: committed, and on `copies_min` nodes
        where that is more than a majority; it may differ by write group) with one result each. With 0 a store elsewhere
        has not seen the batches yet: the results say OK, and no offsets.

        `owner_epoch` is what `QueueAdmin.own` gave the writer of an internal queue. If the writer is not the present
        owner of each of the queues, or writes without an epoch to a queue that has an owner, every batch is `FENCED`
        and nothing is appended.

        `transaction`: that of the batches that are part of one. Without it, a batch that would begin a transaction in
        its queue is `INVALID_TXN_STATE`."""
        ...

    def read_at_once(self, plan: ReadPlan) -> None:
        """Settle the reads that memory alone can answer, up to the first partition that it cannot: that one
        is then pending."""
        ...

    async def read(
        self, reads: Sequence[QueueRead] | ReadPlan, bytes_max: int, *, whole_first: bool = True
    ) -> list[QueueSlice]:
        """Read committed batches, one slice per read, at most about `bytes_max` in all. With `whole_first` the
        first batch of the first slice that has data is returned whole even when it is larger. Never blocks the
        event loop.

        The plan's pending reads are settled, its round's findings count among the bytes, and there are
        no slices; it returns early when another round of the plan begins meanwhile."""
        ...

    def offsets(self, queue_ids: Sequence[int], *, lately: bool = False) -> PromptFuture[list[QueueOffsets | None]]:
        """The offsets of queues; None for a queue that does not exist here. A store that has them in memory answers
        within the call: waiting for the result then costs no turn of the event loop.

        `lately`: offsets that were true a moment ago will do. A store of other nodes then asks nobody about queues
        that it is told of."""
        ...

    async def offset_for_timestamp(self, queue_id: int, timestamp: int) -> TimestampOffset | None:
        """The first record whose timestamp (ms) is at least `timestamp`; None when there is none. Kafka's special
        timestamps: -3 asks for the record with the largest timestamp; -4 for the first offset on this node's own disks,
        -5 for the last one in the remote tier, -6 for the one behind that, all three without timestamp and epoch."""
        ...

    def wait(self, queues: ReadPlan | Mapping[int, int], bytes_min: int, timeout_seconds: float) -> PromptFuture[None]:
        """Done when a queue's high watermark passes the one that was found (or is given) for it and
        `bytes_min` bytes have been committed to these queues since the call, or at the timeout. Cancel it to
        stop waiting."""
        ...


class ClientStore(Protocol):
    """The part of a `MessageStore` that handlers use for one client, which may be told for whom it is."""

    def append(
        self,
        batches: Sequence[BatchAppend],
        acks: int,
        *,
        copies_min: int | Mapping[int, int] = 0,
        transaction: AppendTransaction | None = None,
    ) -> PromptFuture[list[AppendResult]]: ...

    def read_at_once(self, plan: ReadPlan) -> None:
        """One store serves all rounds of a request: of what it finds, the last round counts."""
        ...

    async def read(self, reads: Sequence[QueueRead] | ReadPlan, bytes_max: int) -> list[QueueSlice]: ...


class ForwardedClients(Protocol):
    """Judges and counts clients of other nodes that ask this one in their name."""

    def refusal(self, client: ForwardedClient) -> str | None:
        """Why nothing is done for the client now; None: it is. To be asked before anything is done."""
        ...

    def brought(self, client: ForwardedClient, size_bytes: int) -> None:
        """The client's batches were taken."""
        ...

    def took(self, client: ForwardedClient, size_bytes: int) -> None:
        """Batches are sent to the client's node."""
        ...

    def changed(self, client: ForwardedClient, node_id: int, what: str, refusal: str | None) -> None:
        """A change was made that this node asked for; `refusal`: why it was not."""
        ...


class UnknownClients:
    """`ForwardedClients` of whom nothing is kept, and who are refused nothing."""

    def refusal(self, client: ForwardedClient) -> str | None:
        return None

    def brought(self, client: ForwardedClient, size_bytes: int) -> None: ...

    def took(self, client: ForwardedClient, size_bytes: int) -> None: ...

    def changed(self, client: ForwardedClient, node_id: int, what: str, refusal: str | None) -> None: ...


class SideWork(Protocol):
    """Runs work beside the event loop that would hold it up."""

    async def run(self, work: Callable[[], T]) -> T:
        """Returns or raises what `work` does. If cancelled, `work` still runs to its end, and its result is
        dropped."""
        ...


class QueueAdmin(Protocol):
    """Create, delete and trim queues. Every change is durable when the call returns. Raises
    `errors.LeaderMissing` when a write group has no leader that could make it, or, for `truncate` and `own`, when
    another node is that leader."""

    async def create(self, ranges: Sequence[QueueRange]) -> None:
        """Create ranges of partitions, together; those that exist already are left alone."""
        ...

    async def delete(self, topic_numbers: Sequence[int]) -> None:
        """Delete all queues of topics, together, and free their data."""
        ...

    async def truncate(self, before: Mapping[int, int]) -> dict[int, int | MainstemError | None]:
        """Move log starts up to the offset given per queue id (-1: the high watermark). Returns the new log
        start per queue, None where the offset is out of range or the queue unknown, or why it could not be moved:
        queues of different write groups fail by themselves."""
        ...

    async def own(self, queue_id: int, *, held: int | None = None) -> int:
        """Become the only writer of a queue: the owner epoch that appends carry from now on, greater than every one
        before. Appends of earlier owners are refused from then on; what they appended before is part of the queue, or
        lost, once its high watermark has reached its end. An owner is forgotten when the write group's leader
        changes: its appends are refused then, and it must own the queue again and read it anew.

        With `held`, an owner epoch, nothing changes: it returns if that one is still the newest, and raises
        `errors.LeaderMissing` if not."""
        ...

    async def epoch_end(self, queue_id: int, leader_epoch: int) -> tuple[int, int] | None:
        """(epoch, end offset) of the largest epoch <= `leader_epoch` that has records; (`leader_epoch`, log
        start) when all that is left is younger, so that a reader at that offset goes on; (-1, -1) for an
        epoch that has not begun; None for an unknown queue."""
        ...

    async def usage(self, queue_ids: Sequence[int]) -> list[QueueUsage | None]:
        """Bytes held per queue; None for a queue that does not exist here."""
        ...


class TransactionMarkers(Protocol):
    """Ends transactions in queues, wherever these are led. A coordinator holds one, on any node."""

    async def write(self, markers: Sequence[TransactionMarker]) -> list[Outcome]:
        """Write markers, each of any queue, behind everything that was appended; one outcome each, when all are
        committed. It does no harm to write a marker again.

        Raises nothing for a single marker; each may be: `OK`; `STALE_PRODUCER_EPOCH` where the queue knows a newer
        epoch of the producer; `TRANSACTION_COORDINATOR_FENCED` where a newer coordinator has ended a transaction of it;
        `UNKNOWN_QUEUE` where the queue is gone; `INVALID_TXN_STATE` while the cluster's feature level has no
        transactions; any other outcome of an append, after which the marker should be written again."""
        ...

    async def producers(self, queue_ids: Sequence[int]) -> list[list[ActiveProducer] | Outcome]:
        """The active producers of each queue, by their ids; or why they cannot be told: `UNKNOWN_QUEUE`, `NOT_LEADER`,
        `STORAGE_BUSY`."""
        ...


class TransactionVerification(Protocol):
    """Asks the coordinator of a transaction whether a producer may write to queues. The leader of a queue asks once for
    each producer, epoch and transaction, before it appends the first batch."""

    async def verify(
        self, transaction: AppendTransaction, producer_id: int, producer_epoch: int, queue_ids: Sequence[int]
    ) -> Mapping[int, Outcome]:
        """The outcome for each queue. `OK`: the transaction is open and the queue is part of it; with `adds_queues` the
        coordinator has taken it in. `INVALID_TXN_STATE`: it is not; `STALE_PRODUCER_EPOCH`: the producer is fenced;
        `CONCURRENT_TRANSACTIONS`: the last transaction is not finished; `STORAGE_BUSY`: the coordinator cannot be
        reached now. A queue that is missing is `STORAGE_BUSY`."""
        ...


class StoredTransactions(Protocol):
    """The aborted transactions of what the split has moved from the journal to files."""

    async def aborted(self, queue_id: int, from_offset: int, to_offset: int) -> list[AbortedRange]:
        """The aborted transactions that have offsets in [`from_offset`, `to_offset`): they begin before `to_offset`,
        and their marker is at or behind `from_offset`. By their first offsets."""
        ...


class BrokerCalls(Protocol):
    """Requests of Kafka's APIs to the brokers of other nodes, and to this one's, made by the node itself."""

    async def ask(self, node_id: int, api_key: int, version: int, body: bytes) -> bytes:
        """The body of the response. Raises `MainstemError` where there is none."""
        ...


class CommittedReads(Protocol):
    """Tells readers of committed transactions what was aborted."""

    def aborted_at_once(self, ranges: Sequence[tuple[int, int, int]]) -> list[list[AbortedRange]] | None:
        """The same as `aborted`, where memory alone can answer; None: it cannot."""
        ...

    async def aborted(self, ranges: Sequence[tuple[int, int, int]]) -> list[list[AbortedRange]]:
        """The aborted transactions that have offsets in each of these ranges, as (queue id, from offset, to offset), by
        their first offsets. The ranges end at the last stable offset at most."""
        ...


class Metadata(Protocol):
    """The node's own view of the cluster's metadata: synchronous, always at hand."""

    def topic(self, name: str) -> Topic | None: ...

    def topic_by_id(self, topic_id: uuid.UUID) -> Topic | None: ...

    def topics(self) -> Iterable[Topic]: ...

    def nodes(self) -> Sequence[Node]: ...

    def cluster_id(self) -> str: ...


class QueueLeadership(Protocol):
    """The leaders of the queues' write groups, and the nodes of their replicas, as this node knows them."""

    def group_of(self, queue_id: int) -> int:
        """The write group of a queue, whether or not it exists."""
        ...

    def groups_of(self, queue_ids: NDArray[uint64]) -> NDArray[int64]:
        """The write groups of these queues, in their order."""
        ...

    def has_moved(self, queue_id: int) -> bool:
        """Whether a queue was in another write group before, or queues of the same slot were."""
        ...

    def replicas(self, group: int) -> WriteGroupNodes: ...

    def leads(self, group: int) -> bool:
        """Whether this node leads a write group and has applied all that was committed before it did: appends to it are
        taken here, and what is committed in it is known here first."""
        ...

    def serves_here(self, queue_id: int) -> bool:
        """Whether clients bring a queue's requests to this node, whether or not the queue exists. A node with replicas
        serves the queues of the write groups that it leads; a broker without any serves queues that others lead."""
        ...

    async def confirm(self, group: int) -> None:
        """Return once a majority has confirmed, after the call, that this node leads a write group: no client
        was told anything before the call that this node has not applied. Raises `errors.LeaderMissing` when
        it does not lead, or no majority confirms it for seconds."""
        ...


class LeadershipHealth(Protocol):
    """How well the write groups do in which this node takes part, in sum."""

    @property
    def leaderless(self) -> bool:
        """Whether this node knows of no leader in any of the write groups in which it takes part."""
        ...

    def in_sync_fewest(self, classes: Collection[int]) -> int:
        """The number of in-sync replicas of that write group of these classes led here which has the fewest; 0 when
        this node leads none."""
        ...


class FollowerProgress(Protocol):
    """How near the replicas of the write groups that this node leads are to it."""

    def abreast(self) -> Mapping[int, Sequence[int]]:
        """For each write group that this node leads, the other nodes whose replicas lack hardly anything of what is
        committed; first the one that has most."""
        ...


class BrokerLeadership(QueueLeadership, LeadershipHealth, FollowerProgress, Protocol):
    """All that a broker asks about leaders."""


class Cluster(Protocol):
    """The nodes, as the metadata's leader sees them and this node has heard."""

    def alive_nodes(self) -> Sequence[Node]:
        """The brokers that are not held for dead: where clients may go."""
        ...

    @property
    def metadata_leader(self) -> int:
        """The node id of the metadata's leader; -1 when none is known."""
        ...

    @property
    def out_of_touch(self) -> bool:
        """Whether this node has not heard from the metadata's leader for longer than a heartbeat may be late:
        its knowledge of the others may be outdated."""
        ...


class ClusterStanding(Protocol):
    """How the cluster stands, as the leaders of the metadata and of the write groups tell when they are asked. Raises a
    `MainstemError` when nobody tells."""

    async def metadata_quorum(self) -> QuorumStanding: ...

    async def moves(self) -> Sequence[MoveUnderWay]:
        """The replicas of write groups that are on their way; none of a write group whose leader does not answer."""
        ...

    def placed(self, group: int) -> tuple[int, ...]:
        """The nodes that shall have the replicas of a write group, the one that shall lead it first."""
        ...

    async def lead(self, group: int, node_id: int) -> None:
        """Ask the leader of a write group to hand over to a node that is alive and in sync; a `MainstemError` says why
        it cannot. Whether that node takes over shows a moment later."""
        ...

    def address(self, node_id: int) -> tuple[str, int] | None:
        """The address at which other nodes reach a node; None: it has none."""
        ...


class ClusterAdmin(Protocol):
    """Changes to the cluster as a whole. Each raises a `nameserver` error when refused; durable when it returns."""

    @property
    def feature_level(self) -> int:
        """The level at which the cluster may write."""
        ...

    @property
    def version(self) -> int:
        """A counter that goes up with every change of the metadata that this node has applied."""
        ...

    async def raise_feature_level(self, level: int, *, validate_only: bool = False) -> None:
        """Have the cluster write at this level from now on; with `validate_only`, ask the nodes alone that answer."""
        ...

    async def remove_node(self, node_id: int) -> None:
        """Take a node that is drained and dead out of the cluster for good."""
        ...


class QueueMoves(Protocol):
    """Moves of queues from one write group to another, slot by slot: all queues of a slot move together."""

    def placements(self) -> Mapping[int, tuple[int, ...]]:
        """Per write group the nodes that shall have its replicas, the one that shall lead it first."""
        ...

    def under_way(self) -> Mapping[int, int]:
        """Per slot that is to move, its next write group."""
        ...

    def left(self, slot: int) -> Collection[int]:
        """The write groups that may still have records of a slot's queues, besides the one in which it is. The slot
        does not come back there as long as that is so."""
        ...

    async def burdens(self) -> WriteGroupBurdens: ...

    async def move(self, topic: str, partition: int, group: int) -> None:
        """Have the slot of a partition move. It begins at once and goes on by itself, whoever is started anew; a
        `nameserver` error says why it cannot."""
        ...

    async def take_back(self, slot: int) -> None:
        """Have a slot stay where it is that has not begun to move; a `nameserver` error says why it cannot."""
        ...


class MetadataAdmin(Protocol):
    """Changes to the metadata. Each raises a `nameserver` error when refused; durable when it returns."""

    async def create_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, str],
        *,
        validate_only: bool = False,
        internal: bool = False,
    ) -> Topic: ...

    async def create_topics(
        self, wanted: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[Topic | MainstemError]:
        """Create many topics with one write to the disk. One entry per wanted topic, in their order: the
        topic, or why it is refused. Raises an error that refuses all of them."""
        ...

    async def delete_topics(self, names: Sequence[str]) -> list[Topic | MainstemError]:
        """Delete many topics with one write to the disk; as `create_topics`, with the topics as they were."""
        ...

    async def create_partitions(self, name: str, total: int, *, validate_only: bool = False) -> Topic: ...

    async def alter_configs(
        self, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> Topic:
        """Set (value) or remove (None) topic configs; list operations are resolved by the caller."""
        ...

    async def allocate_producer_id(self) -> int:
        """A producer id that was never given out before."""
        ...


class ResourceConfigs(Protocol):
    """The configs that are set for client metrics, consumer groups and brokers, as this node knows them, and changes
    of these."""

    def of(self, kind: ResourceType, name: str) -> Mapping[str, str]:
        """All that is set for a resource: of brokers the name is an id, or empty for all of them."""
        ...

    def names(self, kind: ResourceType) -> Sequence[str]:
        """The resources of a kind for which something is set."""
        ...

    def version(self) -> object:
        """Another object after every change."""
        ...

    async def change(
        self, kind: ResourceType, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        """Set (value) or remove (None) configs, durably when it returns. Raises a `nameserver` error that refuses all
        of them."""
        ...


class Credentials(Protocol):
    """The users that the cluster keeps credentials of, as this node knows them, and changes of these."""

    def scram_credential(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        """None: the user has none for this mechanism."""
        ...

    def scram_users(self) -> Mapping[str, Sequence[ScramCredential]]:
        """The credentials of all users, by user. The mapping is live: copy it before an await."""
        ...

    def absent_users_secret(self) -> bytes:
        """The secret that credentials of users that do not exist are made up with: the same on all nodes, and known to
        nobody else; empty as long as there has been no user."""
        ...

    async def change_scram(self, changes: Sequence[ScramChange], *, first: bool = False) -> list[MainstemError | None]:
        """Set and remove credentials, durably when it returns; `first`: only if the cluster has never had a user. Per
        change, in their order, why it is refused, or None.
        Raises an error that refuses all of them."""
        ...


ANONYMOUS = "User:ANONYMOUS"
"""Kafka's name for a client that nobody has asked who it is."""

ANY_BYTES = 2**31 - 1
"""No bound: as many as a frame of Kafka's can have."""


def any_bytes() -> int:
    """The bound of responses to a client of which nothing is known."""
    return ANY_BYTES


@dataclass(slots=True, eq=False)
class Session:
    """One connection of a client, from its first byte to its last: where it comes from, how it came in, and who it is.
    The server makes it, and hands the same object to the dispatcher with every request and every burst."""

    host: str
    port: int
    connection_id: int
    listener: str = "PLAINTEXT"
    """The name of the listener that the client connected to."""
    protocol: str = "PLAINTEXT"
    """That listener's, by Kafka's name: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
    principal: str = ANONYMOUS
    software_name: str = ""
    """The client library, as it names itself (ApiVersions); empty: it has not."""
    software_version: str = ""
    authenticated: bool = True
    """Whether the client has shown who it is, if that is asked of it (`begin_gated`)."""
    gated: bool = False
    """Whether requests are looked at before they are dispatched: on a listener with SASL, until the client is
    authenticated, and afterwards as long as that may end."""
    authentication: object | None = None
    """How far the client has come with it, kept by whoever asks."""
    frame_bytes_max: int = ANY_BYTES
    """No request may have more bytes, whatever the server would take."""
    muted_until: float = 0.0
    """No requests are taken of it until then (seconds of the monotonic clock); 0: they are."""
    tenant: str = ""
    """Whose the client is, told by whoever charges it; empty: nobody's."""
    charged: object | None = None
    """The charges of the client, kept by whoever charges it."""
    verdicts: object | None = None
    """The verdicts on the client, kept by whoever judges it."""
    response_bytes_max: Callable[[], int] = any_bytes
    """Says how many bytes a response that is made now should have at most, by what the client has taken so far."""

    def begin_gated(self, frame_bytes_max: int) -> None:
        """The client has to show who it is before anything else; until then its requests are that short."""
        self.authenticated, self.gated, self.frame_bytes_max = False, True, frame_bytes_max


class Scattered(Protocol):
    """Bytes of a response, at least one, that lie in many places; `kernel.ScatteredBytes` implements it."""

    def __len__(self) -> int:
        """Bytes that have not left."""
        ...

    def take(self, size: int) -> Sequence[Buffer]:
        """Views of the next `size` bytes, or of all that are left; they have left then."""
        ...

    def send(self, descriptor: int, size: int) -> int:
        """Write the next `size` bytes, or all that are left, to a socket, as far as it takes them without waiting; how
        many these were. A socket that fails takes none."""
        ...


Reply = Sequence[Buffer | Scattered] | None
"""A whole response frame as buffers to be written in order (length prefix included); None: no response."""


def joined(parts: Sequence[Buffer | Scattered]) -> bytes:
    """All bytes of a reply. The scattered bytes have left then."""
    return b"".join(part if isinstance(part, BUFFERS) else b"".join(part.take(len(part))) for part in parts)


class Exchange(NamedTuple):
    """The dispatcher's result for one request frame.

    `reply` is the response, at once or later. While a reply that is not `pipelined` is pending, the connection
    dispatches no further request; pipelined ones (Produce) may overlap each other. Responses leave in the order of
    the requests. A `last` one ends the connection once everything is answered: the client must ask another node, or
    its later requests must not be taken before this one.
    """

    reply: asyncio.Future[Reply] | PromptFuture[Reply] | Reply
    pipelined: bool = False
    last: bool = False
    holds: int = 0
    """Bytes of memory that the decoded request takes until the reply, unless another account has them."""


class Burst(PromptFuture[Reply]):
    """Several request frames that came together, all of them pipelined. The result is the responses to all of them, in
    their order. A `last` one ends the connection, and memory is held, as in `Exchange`."""

    __slots__ = ("bytes_taken", "holds", "last", "requests")

    def __init__(self, requests: int, bytes_taken: int) -> None:
        super().__init__()
        self.requests = requests
        self.bytes_taken = bytes_taken
        """Bytes of the frames, their length prefixes included."""
        self.last = False
        self.holds = 0


class LastReply(list[Buffer | Scattered]):
    """A response that turns out to be the last of its connection: later requests of the client are not taken.
    Only for an exchange that is not pipelined, after which no request was taken yet."""


def always(size_bytes: int) -> bool:
    """Grants any amount of memory."""
    return True


OWN_FRAME_BYTES_MIN = 4 * 1024 * 1024
"""Frames of more bytes have memory of their own, which is not used again."""


class Dispatcher(Protocol):
    """Turns request frames into responses; handed to the server by the node."""

    def dispatch_burst(
        self,
        frames: memoryview,
        start: int,
        stop: int,
        requests_max: int,
        frame_bytes_max: int,
        session: Session,
    ) -> Burst | None:
        """Take those requests that are cheaper together, out of the whole frames at the front of
        `frames[start:stop]`, length prefixes included, up to `requests_max` and none of more than
        `frame_bytes_max`; None: there is none, and the first frame is for `dispatch`. `frames` is only valid
        during the call, and it raises as `dispatch` does. All requests belong to `session`."""
        ...

    def dispatch(
        self, frame: memoryview, session: Session, may_hold: Callable[[int], bool] = always
    ) -> Exchange | None:
        """`frame` (without its length prefix) is only valid during the call; one of more than `OWN_FRAME_BYTES_MIN` has
        memory of its own, and is valid as long as somebody holds a view of it. Before the decoding of a request
        that takes much memory, `may_hold` is asked for that many bytes. None: they were refused, nothing was
        done, and the frame is to be dispatched again later. Raises a `MainstemError` when the connection must
        be closed (the error's message goes to the log)."""
        ...

    def has_room(self, light: bool = False) -> bool:
        """Whether to dispatch requests that bring batches now; `light`: those of a tenant that brings little, which is
        let past the others."""
        ...

    def shared(self) -> bool:
        """Whether several tenants bring batches, so that their connections take turns at it (`Session.tenant`)."""
        ...

    def brings_batches(self, frames: memoryview, start: int, stop: int) -> bool:
        """Whether `frames[start:stop]` begins with a request, length prefix included, that must wait while
        there is no room."""
        ...

    def tell_of_room(self, told: Callable[[], object]) -> None:
        """Call back, once and never at once, when there is room."""
        ...

    def disconnected(self, session: Session) -> None:
        """The peer is gone or about to be: its reads may be given up (their replies are cancelled). May be
        called more than once."""
        ...


class Statistics(Protocol):
    """A room that measures itself."""

    def samples(self) -> Iterable[Sample | HistogramSample]:
        """Current values. Cheap and safe to call from another thread."""
        ...


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall-clock time in ms since the Unix epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...


class DiskUsage(NamedTuple):
    total_bytes: int
    free_bytes: int


class ReadingMode(enum.Enum):
    """How a file will be read, which decides how its reads affect others on the same disk."""

    USUAL = enum.auto()
    """As the operating system prefers, with its read-ahead."""
    PIECES = enum.auto()
    """One small piece at a time and no further than asked, through the operating system's memory: beside
    commits on the same disk."""
    COLD = enum.auto()
    """The same past the operating system's memory where the file system can: the data is not read again soon,
    and must not evict data that is."""


class Files(Protocol):
    """A directory tree of one disk. Paths are relative to the root it was made with. Calls run in executors
    where they can block; errors are `OSError`."""

    async def open(self, path: str, *, create: bool = False, reading: ReadingMode = ReadingMode.USUAL) -> File:
        """Open for reading and writing; a cold one for reading alone. FileNotFoundError unless it exists or `create`
        is set. Parent directories are made as needed."""
        ...

    async def names(self, directory: str) -> list[str]:
        """Sorted names of the entries of a directory; empty when it does not exist."""
        ...

    async def rename(self, source: str, target: str) -> None:
        """Atomic, replaces the target, durable when it returns (directories synced)."""
        ...

    async def remove(self, path: str) -> None:
        """Remove a file and sync its directory; a file that is not there is no error. A directory three levels down or
        deeper goes with its last file."""
        ...

    async def usage(self) -> DiskUsage: ...


class ColdPart(NamedTuple):
    """Bytes of a file."""

    path: str
    position: int
    length: int


@runtime_checkable
class ReadsParts(Protocol):
    """`Files` that have a thread read many small parts of files in one go: to hand each file to a thread, to be opened,
    read and closed, takes longer than to read it. Files without that are read one by one."""

    async def read_parts(self, parts: Sequence[ColdPart]) -> list[bytes | None]:
        """The bytes of each part, fewer at the end of its file, read as cold files are; None for one that cannot be
        read. The caller bounds them: other reads wait until the last is made."""
        ...


class File(Protocol):
    @overload
    async def read(self, position: int, length: int) -> bytes:
        """Bytes at a position; fewer at the end of the file."""
        ...

    @overload
    async def read(self, position: int, length: int, *, at_once: bool) -> Buffer:
        """The same; with `at_once` in one request to the disk, even if the file is read in pieces otherwise:
        no other reader waits for the disk now."""
        ...

    async def write(self, position: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        """Write buffers one after the other; with `sync`, followed by fdatasync in the same executor turn.
        All is written or OSError is raised."""
        ...

    async def sync(self) -> None: ...

    async def fill(self, position: int, length: int, *, bytes_per_second: float) -> None:
        """Write zeros in small chunks at that pace, each on the disk before the next is written: they hold up no commit
        for long, and the event loop not at all. `close` ends a fill whose caller was cancelled behind the chunk that is
        being written. After OSError a part may be filled."""
        ...

    async def size(self, *, truncate_to: int | None = None) -> int:
        """The file's size in bytes, after cutting or extending it when `truncate_to` is given. Extending
        takes the space on the disk, so that ENOSPC comes here and not from a later write; it reads as zeros."""
        ...

    async def lock(self, *, exclusive: bool) -> bool:
        """Try flock without waiting; False when another holder has it. Released by `close`."""
        ...

    async def close(self) -> None: ...


class ObjectRange(NamedTuple):
    """A part of an object. The length is at least 1."""

    position: int
    length: int


class ObjectInfo(NamedTuple):
    size_bytes: int
    tag: str
    """Names what the object holds: whoever writes the object anew changes it. Only compared, never read."""


class ListedObject(NamedTuple):
    name: str
    size_bytes: int
    modified_ms: int
    """When the object was written, by the clock of the store, in ms since the Unix epoch."""


class ObjectStore(Protocol):
    """Objects below one prefix of a bucket, or in one directory. Names are relative to it, with `/` between their
    parts; no object lies below the name of another. An object appears whole or not at all. Errors are those of
    `storage/object_stores/errors.py`; after one that is an `ObjectStoreOutage` nobody knows whether a write was
    done."""

    async def read(self, name: str, ranges: Sequence[ObjectRange]) -> list[Buffer]:
        """The bytes of each range, in the order of the ranges; ranges that lie near each other cost one request. Raises
        `ObjectAbsent`, and `ObjectTooShort` when the object ends before a range does."""
        ...

    async def write(self, name: str, content: Buffer, *, replaces: str | None = None) -> ObjectInfo:
        """Write an object that fits into memory, in one request. Without `replaces` the object is created, and
        `ObjectExists` raised if there is one. With it the object is replaced if its tag is still `replaces`: otherwise
        `ObjectChanged` is raised; `ReplaceUnsupported` by a store that cannot compare and replace in one step."""
        ...

    async def write_parts(self, name: str, parts: Callable[[], AsyncIterator[Buffer]]) -> ObjectInfo:
        """Write a large object part by part. `parts` may be called again, after a failure, and then begins at the first
        part. The uploaded parts of an unfinished object are given up. Nothing guards the name, so that it must be one
        that no other writer chooses. A part that was handed over stays as it is: the store may hold it until the object
        is written."""
        ...

    async def info(self, name: str) -> ObjectInfo:
        """Raises `ObjectAbsent`."""
        ...

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects. One that is not there is no error."""
        ...

    async def page_for_upkeep(self, prefix: str, after: str = "") -> list[ListedObject]:
        """Some of the objects below the folder `prefix`, of all if that is empty, whose names come after `after`, by
        their names; none: there are no more. A store may list an object late, and a deleted one still: upkeep alone may
        ask, and nothing follows from an object's absence."""
        ...
