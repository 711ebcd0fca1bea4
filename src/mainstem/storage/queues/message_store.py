"""The local `MessageStore` appends the batches of a broker in the same process to the write groups, and reads them
back.

`append` runs to its end on the caller's turn of the event loop: checks, offsets and the copy into the open blocks are
done when it returns; only the disk remains to be waited for. `read` answers at once what memory holds and reads the
rest from the disks: many queues together for a plan (`plan_reads.py`), otherwise one queue after the other.

Batches that arrive faster than the disk and the other nodes take them wait in memory. Beyond a bound the store still
refuses none, since a refusal in the middle of a producer's pipeline would reorder its batches: the store reports that
it has no room, and the server stops reading the producers' sockets (`ports.Intake`).
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy

from mainstem.kernel import FetchPlan, FollowedLog, ProduceScan, WriteGroupLog, append_all
from mainstem.model import (
    AppendResult,
    AppendTransaction,
    BatchAppend,
    Outcome,
    QueueOffsets,
    QueueRead,
    QueueSlice,
    TimestampOffset,
    all_slots,
    slot_of,
)
from mainstem.ports import Clock, ReadPlan
from mainstem.prompt_future import PromptFuture
from mainstem.storage.placement import WriteGroups
from mainstem.storage.queues.hand_overs import HandOvers, HeldAppend
from mainstem.storage.queues.transaction_checks import TransactionChecks
from mainstem.storage.reading.offset_lookup import OffsetLookup
from mainstem.storage.reading.read_path import ReadPath
from mainstem.storage.state.producers.awaited_producers import AwaitedProducers
from mainstem.storage.state.waiters import Waiters
from mainstem.storage.write_groups.late_appends import LateAppends
from mainstem.storage.write_groups.log_block import Ticket
from mainstem.storage.write_groups.write_group import WriteGroup
from mainstem.storage.write_groups.write_loop import WriteLoop

ROOM_CHECK_SECONDS = 0.002
"""While a reader waits for room, the store looks for it at this interval: a disk takes about a megabyte meanwhile, a
sixtieth of what may wait for it."""


LATE_ROUNDS_MAX = 4
"""A batch of a cold producer's new transaction waits twice; more happens where a transaction ends, or a producer is
let go of, meanwhile."""


class _LateAppend(NamedTuple):
    """An append some of whose batches wait, and what it was called with."""

    batches: LateAppends
    ticket: Ticket
    acks: int
    copies_min: int | Mapping[int, int]
    owner_epoch: int | None
    transaction: AppendTransaction | None
    rounds: int = 1


class LocalMessageStore:
    """`ports.MessageStore` and `ports.Intake` over the write groups of this node."""

    def __init__(
        self,
        groups: Sequence[WriteGroup],
        slots: Sequence[int],
        write_loop: WriteLoop,
        read_path: ReadPath,
        lookup: OffsetLookup,
        waiters: Waiters,
        producers: AwaitedProducers,
        checks: TransactionChecks,
        clock: Clock,
        *,
        backlog_bytes_max: int,
    ) -> None:
        self._groups = groups
        self._logs: list[WriteGroupLog | None] = [None for _ in groups]
        """The logs of the write groups that this node serves; changed in place."""
        self._slots = memoryview(array("H", all_slots(slots)))
        self._takers: list[WriteGroupLog | None] = [*self._logs, None]
        """The same for appends; behind them nobody, who has the slots that are fenced."""
        self._taking = memoryview(array("H", all_slots(slots)))
        """The write group that takes the batches of each slot."""
        self._write_loop = write_loop
        self._read_path = read_path
        self.plan_reads = read_path.plan_reads(self._logs_for, self._slots)
        self._lookup = lookup
        self._waiters = waiters
        self._producers = producers
        self._checks = checks
        self._clock = clock
        self._backlog_bytes_max = backlog_bytes_max
        self.refusing = False
        """True while disk 1 is too full for anything but control blocks."""
        self.refused_batches = 0
        self._waiting_for_room: list[Callable[[], object]] = []
        self.hand_overs = HandOvers(self._append_held)

    @property
    def appended_bytes(self) -> int:
        """Bytes of batches appended since the start, without refused batches and duplicates."""
        return sum(group.log.appended_bytes for group in self._groups)

    @property
    def appended_batches(self) -> int:
        return sum(group.log.appended_batches for group in self._groups)

    def spread(self, routes: WriteGroups, fenced: Collection[int] = ()) -> None:
        """There are as many write groups as there are, and all slots that there can be belong to them like this; those
        that are fenced take no batches. The tables of slots and logs change in place, for all that hold them."""
        self._logs += [None for _ in range(len(self._logs), len(self._groups))]
        self._takers[:] = [*self._logs, None]
        self._slots[:] = routes.astype(numpy.uint16).data
        self._taking[:] = self._slots
        for slot in fenced:
            self._taking[slot] = len(self._logs)

    def serve(self, group: int, *, serving: bool) -> None:
        """Begin to take batches for a write group and to answer reads of it, or stop."""
        self._logs[group] = self._takers[group] = self._groups[group].log if serving else None
        if serving:
            self.hand_overs.stays(group)

    # --- append -------------------------------------------------------------------------------------------

    def append(
        self,
        batches: Sequence[BatchAppend],
        acks: int,
        *,
        copies_min: int | Mapping[int, int] = 0,
        owner_epoch: int | None = None,
        transaction: AppendTransaction | None = None,
    ) -> PromptFuture[list[AppendResult]]:
        refusal = self._refusal()
        if refusal is None and not isinstance(batches, ProduceScan):  # a scan has no batch of an internal topic
            refusal = self._fence(batches, owner_epoch)
        if refusal is not None:
            return PromptFuture.settled(self._refused(batches, refusal))
        handed = batches if self.hand_overs.under_way and isinstance(batches, ProduceScan) else None
        takers = self._takers if handed is None else self.hand_overs.takers(self._takers)
        results, waiting = append_all(batches, takers, self._taking, self._clock.now_ms())
        late = bool(self._producers.asked or self._checks.asked)
        given = {} if handed is None else self.hand_overs.given_away(handed, self._taking)
        if not waiting and not late and not given:
            return PromptFuture.settled(results)
        self._write_loop.wake()
        if acks == 0 and not late and not given:
            return PromptFuture.settled(results)
        ticket = Ticket(results)
        ticket.blocks = 1  # until all blocks are known: a duplicate's block may be safe already
        if late:
            ticket.blocks += 1
            self._wait_for_producers(
                _LateAppend(LateAppends.of_cold(batches, results), ticket, acks, copies_min, owner_epoch, transaction)
            )
        if handed is not None:
            for group, copies in given.items():
                self.hand_overs.take(group, HeldAppend(handed, copies, ticket, acks, copies_min, transaction))
        if acks:
            self._wait(ticket, waiting, acks, copies_min)
        ticket.block_safe()
        return ticket

    def _wait_for_producers(self, append: _LateAppend) -> None:
        """Find out what the kernel has just asked for: first whether producers have transactions; the rest is asked for
        again behind that."""
        if self._checks.asked:
            self._producers.asked.clear()
            self._checks.ask(append.transaction, partial(self._append_late, append))
        else:
            self._producers.ask(partial(self._append_late, append))

    def _append_late(self, append: _LateAppend, refused: Mapping[tuple[int, int, int], Outcome]) -> None:
        """Append batches whose producers' state has been read into memory and whose transactions are confirmed, or
        could not be."""
        batches, ticket = append.batches, append.ticket
        refusal = self._refusal() or self._fence(batches.ownable, append.owner_epoch)
        waiting = batches.append(self._takers, self._taking, self._clock.now_ms(), refused, refusal)
        if waiting:
            self._write_loop.wake()
        if append.acks:
            self._wait(ticket, waiting, append.acks, append.copies_min)
        if self._checks.asked or self._producers.asked:
            if append.rounds < LATE_ROUNDS_MAX:
                self._wait_for_producers(append._replace(rounds=append.rounds + 1))
                return
            self._checks.asked.clear()
            self._producers.asked.clear()
            batches.give_up(Outcome.STORAGE_BUSY)
        ticket.block_safe()

    def _append_held(self, held: HeldAppend) -> None:
        """Append batches of a write group that was to be handed over, and is led here on."""
        held.scan.taken_elsewhere = False
        batches = LateAppends(held.scan, held.batches)
        late = _LateAppend(batches, held.ticket, held.acks, held.copies_min, None, held.transaction)
        self._append_late(late, {})

    def _wait(
        self, ticket: Ticket, waiting: Sequence[tuple[int, int]], acks: int, copies_min: int | Mapping[int, int]
    ) -> None:
        """Make a ticket wait for these blocks, as (write group, index)."""
        here = acks == 1
        for number, index in waiting:
            group = self._groups[number]
            if copies_min and not here:
                copies = copies_min if isinstance(copies_min, int) else copies_min.get(number, 0)
                if copies > group.consensus.quorum_fewest:
                    group.wait_for_copies(index, ticket, copies)
                    continue
            group.wait_for(index, ticket, here=here)

    def _fence(self, batches: Sequence[BatchAppend], owner_epoch: int | None) -> Outcome | None:
        """`FENCED` where a queue led here has another owner than the writer of these batches. If another node leads,
        the answer is that."""
        for batch in batches:
            number = self._taking[slot_of(batch.queue_id)]
            group = self._groups[number] if number < len(self._groups) else None
            if group is not None and group.serving and not group.owners.admits(batch.queue_id, owner_epoch):
                return Outcome.FENCED
        return None

    def _refused(self, batches: Sequence[BatchAppend], refusal: Outcome) -> list[AppendResult]:
        """Refuse batches. An answer about the leader goes before one about this node's health: a client that is told to
        try again here never looks for the leader, and a leader whose disk is full has given its write groups away."""
        results: list[AppendResult] = []
        for batch in batches:
            elsewhere = refusal is Outcome.STORAGE_BUSY and self._takers[self._taking[slot_of(batch.queue_id)]] is None
            self.refused_batches += not elsewhere
            results.append(AppendResult(Outcome.NOT_LEADER if elsewhere else refusal))
        return results

    # --- intake -------------------------------------------------------------------------------------------

    def has_room(self, part: float = 1.0) -> bool:
        if self.hand_overs.under_way and not self.hand_overs.has_room(part):
            return False
        if part < 1.0 and self._write_loop.lacks_memory():
            return False
        return self._write_loop.backlog_bytes <= part * self._backlog_bytes_max or self._refusal() is not None

    def tell_of_room(self, told: Callable[[], object]) -> None:
        if not self._waiting_for_room:
            asyncio.get_running_loop().call_later(ROOM_CHECK_SECONDS, self._look_for_room)
        self._waiting_for_room.append(told)

    def _look_for_room(self) -> None:
        if not self.has_room():
            asyncio.get_running_loop().call_later(ROOM_CHECK_SECONDS, self._look_for_room)
            return
        waiting, self._waiting_for_room = self._waiting_for_room, []
        for told in waiting:
            told()

    def wake_readers(self) -> None:
        """Wake the readers that wait, because this node does not serve all that it served."""
        self._waiters.wake_all()

    def _refusal(self) -> Outcome | None:
        loop = self._write_loop
        if loop.ended is not None:
            return Outcome.STORAGE_FAILED
        if self.refusing or loop.out_of_space:
            return Outcome.STORAGE_BUSY
        return None

    # --- read ---------------------------------------------------------------------------------------------

    def read_at_once(self, plan: ReadPlan) -> None:
        assert isinstance(plan, FetchPlan), "plans come from the kernel's scan"
        self._read_path.read_plan(plan, self._logs_for(plan), self._slots)
        if not plan.settled:
            self.plan_reads.settle_held(plan)

    def _logs_for(self, plan: FetchPlan) -> Sequence[WriteGroupLog | FollowedLog | None]:
        """The logs of the write groups that a plan may be served from: those led here and, for a reader that may, the
        replicas that follow closely. A plan reads only what is applied of either, hence committed."""
        if not plan.from_followers:
            return self._logs
        return [group.followed() if log is None else log for group, log in zip(self._groups, self._logs, strict=True)]

    async def read(
        self, reads: Sequence[QueueRead] | ReadPlan, bytes_max: int, *, whole_first: bool = True
    ) -> list[QueueSlice]:
        if isinstance(reads, FetchPlan):
            await self.plan_reads.settle(reads, bytes_max)
            return []
        assert isinstance(reads, Sequence), "plans come from the kernel's scan"
        slices: list[QueueSlice] = []
        remaining = bytes_max
        empty = whole_first
        for read in reads:
            found = self._read_path.read_at_once(read, remaining, empty)
            if found is None:
                found = await self._read_path.read(read, remaining, empty)
            if found.batches:
                empty = False
                remaining -= sum(map(len, found.batches))
            slices.append(found)
        return slices

    def offsets(self, queue_ids: Sequence[int], *, lately: bool = False) -> PromptFuture[list[QueueOffsets | None]]:
        return PromptFuture.settled([self._read_path.offsets(queue_id) for queue_id in queue_ids])

    async def offset_for_timestamp(self, queue_id: int, timestamp: int) -> TimestampOffset | None:
        return await self._lookup.offset_for_timestamp(queue_id, timestamp)

    def wait(self, queues: ReadPlan | Mapping[int, int], bytes_min: int, timeout_seconds: float) -> PromptFuture[None]:
        assert isinstance(queues, (FetchPlan, Mapping)), "plans come from the kernel's scan"
        if isinstance(queues, FetchPlan) and self.plan_reads.is_served(queues):
            return PromptFuture.settled(None)
        return self._waiters.wait(queues, bytes_min, timeout_seconds)
