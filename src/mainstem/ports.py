"""The seams between rooms: who calls whom, and with what. At most six methods each, defined by the caller.

`MessageStore` and `QueueAdmin` are the compute/storage seam: a broker cannot tell whether it holds the local
store of its own process or a remote one. `Files`, `Clock` and `Network` keep disks, time and sockets out of
the rooms, so that a whole node can run on simulated ones.
"""

from __future__ import annotations

import asyncio
import enum
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar, overload

from mainstem.errors import MainstemError
from mainstem.model import (
    AppendResult,
    BatchAppend,
    Buffer,
    GroupReplicas,
    HistogramSample,
    NewTopic,
    Node,
    QueueOffsets,
    QueueRange,
    QueueRead,
    QueueSlice,
    QueueUsage,
    Sample,
    TimestampOffset,
    Topic,
)

if TYPE_CHECKING:
    from numpy import int64, uint64
    from numpy.typing import NDArray

from mainstem.prompt_future import PromptFuture

T = TypeVar("T")


class ReadPlan(Protocol):
    """What one fetch is to read, partition by partition, in order; `kernel.FetchPlan` to those who know the kernel."""

    @property
    def round(self) -> int:
        """How many rounds have begun."""
        ...

    @property
    def bytes(self) -> int:
        """Found in this round."""
        ...

    @property
    def whole_first(self) -> bool:
        """Nothing was found yet: the next batch comes back whole, whatever its size."""
        ...

    def pending(self) -> QueueRead | None:
        """The next partition to be read, with what the fetch still has room for as `bytes_max`. None: that was all."""
        ...

    def put(self, found: QueueSlice) -> None:
        """Settle the pending partition."""
        ...

    def ends(self) -> Mapping[int, int]:
        """The high watermarks found, by queue id."""
        ...


class Intake(Protocol):
    """Whether the store takes batches as fast as they come."""

    def has_room(self) -> bool:
        """Whether those who send batches should be listened to: as long as they would wait in memory for no longer
        than a disk takes, and when they would be refused."""
        ...

    def tell_of_room(self, told: Callable[[], object]) -> None:
        """Call back, once and never at once, when there is room."""
        ...


class ResponseRoom(Protocol):
    """The memory that responses may take."""

    def bytes_free(self) -> int:
        """What one response should have at most."""
        ...

    def change(self, more: int) -> None:
        """A response that is being made holds so many bytes more than before, or fewer. A finished one is charged by
        whoever sends it."""
        ...


class MessageStore(Protocol):
    """Append to queues and read them back."""

    def append(
        self, batches: Sequence[BatchAppend], acks: int, *, copies_min: int | Mapping[int, int] = 0
    ) -> PromptFuture[list[AppendResult]]:
        """Append whole batches, in order. The copy is made before this returns; the future resolves when
        every batch is as durable as `acks` asks (0: at once, 1: leader, -1: committed, and on `copies_min` nodes
        where that is more than a majority; it may differ by write group) with one result each.
        """
        ...

    def read_at_once(self, plan: ReadPlan) -> None:
        """Settle what memory alone can answer, up to the first partition it cannot: that one is then pending."""
        ...

    async def read(
        self, reads: Sequence[QueueRead] | ReadPlan, bytes_max: int, *, whole_first: bool = True
    ) -> list[QueueSlice]:
        """Read committed batches, one slice per read, at most about `bytes_max` in all. With `whole_first` the
        first batch of the first slice that has data is returned whole even when it is larger. Never blocks the
        event loop.

        What is pending in a plan is settled, with what its round has found counted among the bytes, and there are
        no slices; it returns early when another round of the plan begins meanwhile."""
        ...

    def offsets(self, queue_ids: Sequence[int]) -> list[QueueOffsets | None]:
        """The offsets of queues; None for a queue that does not exist here."""
        ...

    async def offset_for_timestamp(self, queue_id: int, timestamp: int) -> TimestampOffset | None:
        """The first record whose timestamp (ms) is at least `timestamp`; None when there is none.
        `MAX_TIMESTAMP` (-3) asks for the record with the largest timestamp."""
        ...

    def wait(
        self, queues: ReadPlan | Mapping[int, int], bytes_min: int, timeout_seconds: float
    ) -> PromptFuture[None]:
        """Settled when a queue's high watermark passes the one that was found (or is given) for it and `bytes_min`
        bytes have been committed to these queues since the call, or when the timeout is over. Who does not wait any
        longer cancels it."""
        ...


class SideWork(Protocol):
    """A place beside the event loop for work that would hold it up."""

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises. Cancelled, it runs to its end all the same, for nobody."""
        ...


class QueueAdmin(Protocol):
    """Create, delete and trim queues. Every change is durable when the call returns. Raises `errors.LeaderMissing` when
    a write group has no leader that could make it, or, of `truncate`, another node is that leader."""

    async def create(self, ranges: Sequence[QueueRange]) -> None:
        """Create ranges of partitions, together; those that exist already are left alone."""
        ...

    async def delete(self, topic_numbers: Sequence[int]) -> None:
        """Delete all queues of topics, together, and free their data."""
        ...

    async def truncate(self, before: Mapping[int, int]) -> dict[int, int | None]:
        """Move log starts up to the offset given per queue id (-1: the high watermark). Returns the new log
        start per queue, None where the offset is out of range or the queue unknown."""
        ...

    async def epoch_end(self, queue_id: int, leader_epoch: int) -> tuple[int, int] | None:
        """(epoch, end offset) of the largest epoch <= `leader_epoch` that has records; (`leader_epoch`, log
        start) when all that is left is younger, so that a reader who stands right there goes on; (-1, -1) for
        an epoch that has not begun; None for an unknown queue."""
        ...

    async def usage(self, queue_ids: Sequence[int]) -> list[QueueUsage | None]:
        """Bytes held per queue; None for a queue that does not exist here."""
        ...


class Metadata(Protocol):
    """The node's own view of the cluster's metadata: synchronous, always at hand."""

    def topic(self, name: str) -> Topic | None: ...

    def topic_by_id(self, topic_id: uuid.UUID) -> Topic | None: ...

    def topics(self) -> Iterable[Topic]: ...

    def nodes(self) -> Sequence[Node]: ...

    def cluster_id(self) -> str: ...


class Leadership(Protocol):
    """Who leads the write groups of the queues, and where their replicas are, as this node knows it."""

    def group_of(self, queue_id: int) -> int:
        """The write group of a queue, whether or not it exists."""
        ...

    def groups_of(self, queue_ids: NDArray[uint64]) -> NDArray[int64]:
        """The write groups of these queues, in their order."""
        ...

    def replicas(self, group: int) -> GroupReplicas: ...

    def serves(self, group: int) -> bool:
        """Whether this node leads a group and has applied all that was committed before it did."""
        ...

    async def confirm(self, group: int) -> None:
        """Return once a majority has confirmed, after the call, that this node leads a group: so what it has applied
        is all that anybody was told before the call. Raises `errors.LeaderMissing` when it does not lead, or nobody
        confirms it for seconds."""
        ...

    @property
    def leaderless(self) -> bool:
        """Whether this node knows of no leader in any of the groups that it has a part in."""
        ...

    def in_sync_fewest(self) -> int:
        """The in-sync replicas of that group of those this node serves which has the fewest; 0 when it serves none."""
        ...


class Cluster(Protocol):
    """The nodes, as the metadata's leader sees them and this node has heard."""

    def alive_nodes(self) -> Sequence[Node]:
        """Those that are registered and not held for dead."""
        ...

    @property
    def metadata_leader(self) -> int:
        """The node id of the metadata's leader; -1 when none is known."""
        ...

    @property
    def out_of_touch(self) -> bool:
        """Whether it is longer ago than a heartbeat may be late that this node heard from the metadata's leader: what
        it knows of the others may be outdated."""
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
        """Create many topics with one write to the disk. One entry per wanted topic, in their order: the topic, or
        why this one is refused. Raises what refuses them all."""
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
        """A producer id never handed out before."""
        ...


class Peer(NamedTuple):
    """The client end of a connection, as the dispatcher sees it."""

    host: str
    port: int
    connection_id: int


Reply = Sequence[Buffer] | None
"""A whole response frame as buffers to be written in order (length prefix included); None: no response."""


class Exchange(NamedTuple):
    """What the dispatcher makes of one request frame.

    `reply` is the response, at once or later. While a reply that is not `pipelined` is pending, the
    connection dispatches no further request; pipelined ones (Produce) may overlap each other. Responses
    leave in the order of the requests. A `last` one ends the connection once everything is answered: the client is
    to ask somebody else, or nothing that it has sent behind this may be taken before this.
    """

    reply: asyncio.Future[Reply] | PromptFuture[Reply] | Reply
    pipelined: bool = False
    last: bool = False
    keeps: bool = False
    """What was made of the request is held until the reply, and nobody else charges for that memory."""


class Burst(PromptFuture[Reply]):
    """Several request frames that came together, all of them pipelined. The result is the responses to all of them, in
    their order. A `last` one ends the connection, as in `Exchange`."""

    __slots__ = ("bytes_taken", "last", "requests")

    def __init__(self, requests: int, bytes_taken: int) -> None:
        super().__init__()
        self.requests = requests
        self.bytes_taken = bytes_taken
        """Of the frames, their length prefixes included."""
        self.last = False


class Dispatcher(Protocol):
    """Turns request frames into responses; handed to the server by the node."""

    def dispatch_burst(
        self, frames: memoryview, start: int, stop: int, requests_max: int, frame_bytes_max: int
    ) -> Burst | None:
        """Take the requests that are cheaper together, of those that lie whole at the front of `frames[start:stop]`,
        length prefixes included, up to `requests_max` and none of more than `frame_bytes_max`; None: there is none,
        the first frame is for `dispatch`. `frames` is only valid during the call, and it raises as `dispatch` does."""
        ...

    def dispatch(self, frame: memoryview, peer: Peer) -> Exchange:
        """`frame` (without its length prefix) is only valid during the call. Raises a `MainstemError` when
        the connection must be closed (the error's message goes to the log)."""
        ...

    def has_room(self) -> bool:
        """Whether requests that bring batches are to be dispatched now."""
        ...

    def brings_batches(self, frames: memoryview, start: int, stop: int) -> bool:
        """Whether a request begins in `frames[start:stop]`, with its length prefix, that is not to be dispatched while
        there is no room."""
        ...

    def tell_of_room(self, told: Callable[[], object]) -> None:
        """Call back, once and never at once, when there is room."""
        ...

    def disconnected(self, peer: Peer) -> None:
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


class Reading(enum.Enum):
    """How a file is going to be read, which decides what its reads do to whoever else uses the disk."""

    USUAL = enum.auto()
    """As the operating system thinks best, read ahead by it."""
    PIECES = enum.auto()
    """A small piece at a time and no further than asked: beside commits on the same disk, of what memory may hold."""
    COLD = enum.auto()
    """The same past the operating system's memory where the file system can: nobody else reads it soon, and it is not
    to drive out what others need."""


class Files(Protocol):
    """A directory tree of one disk. Paths are relative to the root it was made with. Calls run in executors
    where they can block; errors are `OSError`."""

    async def open(self, path: str, *, create: bool = False, reading: Reading = Reading.USUAL) -> File:
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
        """Remove a file and sync its directory; a file that is not there is no error."""
        ...

    async def usage(self) -> DiskUsage: ...


class File(Protocol):
    @overload
    async def read(self, position: int, length: int) -> bytes:
        """Bytes at a position; fewer at the end of the file."""
        ...

    @overload
    async def read(self, position: int, length: int, *, at_once: bool) -> Buffer:
        """The same; with `at_once` in one request to the disk even of a file that is read in pieces, since nobody else
        wants it now."""
        ...

    async def write(self, position: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        """Write buffers one after the other; with `sync`, followed by fdatasync in the same executor turn.
        All is written or OSError is raised."""
        ...

    async def sync(self) -> None: ...

    async def size(self, *, truncate_to: int | None = None) -> int:
        """The file's size in bytes, after cutting or extending it when `truncate_to` is given. Extending
        takes the space on the disk, so that ENOSPC comes here and not from a later write; it reads as zeros."""
        ...

    async def lock(self, *, exclusive: bool) -> bool:
        """Try flock without waiting; False when somebody else holds it. Released by `close`."""
        ...

    async def close(self) -> None: ...
