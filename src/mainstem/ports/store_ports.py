"""The storage as a broker holds it: queues that are appended to and read, and their administration. A broker cannot
tell whether it holds the store of its own process or a remote one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from mainstem.errors import MainstemError
from mainstem.model import (
    AbortedRange,
    AppendResult,
    AppendTransaction,
    BatchAppend,
    ForwardedClient,
    QueueOffsets,
    QueueRange,
    QueueRead,
    QueueSlice,
    QueueUsage,
    TimestampOffset,
    WantedReads,
)

if TYPE_CHECKING:
    pass

from mainstem.prompt_future import PromptFuture

T = TypeVar("T")


OF_ALL_TOPICS, SENT_ON = 1, 3
"""Values of `ReadPlan.from_followers`: those of `kernel.FollowersRead` that a broker without storage goes by."""


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

    @property
    def is_spread(self) -> bool:
        """Whether the readers of the topic of the first of the partitions that are wanted are spread over nodes."""
        ...

    @property
    def share_to(self) -> int:
        """The node that the reader is sent to for such topics; -1: none."""
        ...

    @property
    def from_followers(self) -> int:
        """`OF_ALL_TOPICS`: the reader is served whatever it reads, though clients have another broker for that;
        `SENT_ON`: it is sent to `share_to`, whatever it reads."""
        ...

    def put(self, found: QueueSlice, sent_to: int = -1) -> None:
        """Settle the first of the partitions that are wanted. `sent_to`: the node that its reader is sent to; -1: it is
        served here."""
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

    def brought(self, client: ForwardedClient, size_bytes: int) -> float:
        """The client's batches were taken. Returns the seconds for which it is to bring no more."""
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

    def brought(self, client: ForwardedClient, size_bytes: int) -> float:
        return 0.0

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


class CommittedReads(Protocol):
    """Tells readers of committed transactions what was aborted."""

    def aborted_at_once(self, ranges: Sequence[tuple[int, int, int]]) -> list[list[AbortedRange]] | None:
        """The same as `aborted`, where memory alone can answer; None: it cannot."""
        ...

    async def aborted(
        self, ranges: Sequence[tuple[int, int, int]]
    ) -> list[list[AbortedRange] | MainstemError | OSError]:
        """The aborted transactions that have offsets in each of these ranges, as (queue id, from offset, to offset), by
        their first offsets; or why nobody can tell them of a range now, so that its reader reads again. The ranges end
        at the last stable offset at most."""
        ...
