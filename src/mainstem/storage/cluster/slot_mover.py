"""Moves slots between write groups, as the metadata wishes.

Each node of the next write group needs all that the one before has of the slot's queues. If a node has no replica of
that, it becomes a guest of it first (`membership_steps`), from the wish until retention has removed those records.

One move, top to bottom. Each step is known to be done by what the logs have applied, so whoever leads next goes on
where the last leader ended:

    begin     by the leader of the write group before, once the guests have caught up and nothing stands in the way:
              the metadata notes that the move is not taken back any more
    fence     by the same: batches for the slot are refused; no transaction is open; `SlotFenced` goes behind all that
              was appended
    term      by the leader of the new write group, once the fence is applied on its node: its term is no lower than
              the old one's, so that leader epochs never go back
    arrive    by the same: it logs `QueuesArrived`, with ends and producers as its own replica of the write group
              before has them; from there on it takes batches
    report    by the same: the metadata's slots follow, for other nodes

No call between nodes is needed for that. Replicas apply an arrival behind the fence (`state/slot_moves.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy

from mainstem.errors import MainstemError
from mainstem.kernel import CELLS, COMMITTED_END, FIRST_UNSTABLE, LOG_START, NEXT_OFFSET, NO_SLOT, QUEUE_ID, QueueTable
from mainstem.kernel.pure.producer_states import ROW as PRODUCER_ROW
from mainstem.model import Topic, partition_of, slot_of, topic_number_of
from mainstem.ports import Clock
from mainstem.storage.placement import slots_of
from mainstem.storage.state.arrival_log import Arrival, Prior
from mainstem.storage.state.producers.cold_producers import ColdProducers
from mainstem.storage.state.queue_scan import Cells, chunks
from mainstem.storage.state.slot_moves import Fence, SlotMoves
from mainstem.storage.write_groups import control
from mainstem.storage.write_groups.write_group import WriteGroup
from mainstem.storage.write_groups.write_loop import WriteLoop

MOVED_QUEUES_MAX = 10_000
"""Queues with records in several write groups: each has a history of its own in memory and in every checkpoint."""

KEPT_QUEUES_MAX = MOVED_QUEUES_MAX // 2
"""Of these, queues that are compacted alone, and have their histories for good: as many others still move."""

STAYS_MAX = 16
"""Write groups one after the other that a queue may have records in; a read of the oldest looks into each."""

ENTRIES_MAX = 500
"""Queues, or coordinators, in one command: some 10 KiB, which fits into the smallest segment there can be."""

PRODUCERS_BYTES_MAX = 256 * 1024
"""Of one command."""

GUEST_LAG_BLOCKS_MAX = 64
"""Blocks that a guest may lack when a slot is fenced: sent within a moment, in which the slot takes no batches."""

AGAIN_SECONDS = 0.02
"""Until the next step of a move that goes on: about an election of a write group that this node has alone."""

WAIT_SECONDS = 0.5
"""Until a move is tried again that something stands in the way of."""

IDLE_SECONDS = 5.0
"""Between two looks at which histories retention has shortened."""


class Wish(NamedTuple):
    """A slot shall move: the metadata's wish."""

    group: int
    number: int
    """How often it has moved then."""
    begun: bool = True
    """Whether the metadata has noted that the slot may be fenced. Until then the wish may be taken back."""


async def _nothing(*_args: object) -> None: ...


class MetadataOfMoves(NamedTuple):
    """The metadata's part in moves: its wishes, and the ways to tell it."""

    wishes: Callable[[], Mapping[int, Wish]]
    """Per slot that shall move."""
    unsettled: Callable[[], Mapping[int, Sequence[int]]]
    """Per slot the write groups that may have records of its queues from before its last move, as far as the metadata
    knows, in the order in which the slot came to them first."""
    moved: Callable[[int, Wish, Sequence[int]], Awaitable[None]]
    """A slot has moved; the write groups that have records of its queues from before. May raise a `MainstemError`."""
    settled: Callable[[int], Awaitable[None]]
    """All records of a slot's queues are in its write group. May raise a `MainstemError`."""
    begins: Callable[[int, Wish], Awaitable[None]] = _nothing
    """A slot is about to be fenced. Raises a `MainstemError` where the wish is taken back."""
    placements: Callable[[], Mapping[int, Sequence[int]]] = dict
    """The nodes of each write group's replicas; empty: each is where its members are."""
    guests: Callable[[], Mapping[int, Collection[int]]] = dict
    """Per write group the nodes that follow it without a replica."""
    refused: Callable[[], str] = str
    """Says why no slot is fenced now, whatever is wished for; empty: nothing is in the way."""
    topic_refused: Callable[[Topic], str] = lambda _topic: ""
    """The same of slots with queues of a topic."""


NO_METADATA = MetadataOfMoves(dict, dict, _nothing, _nothing)


class SlotMover:
    """Carries the moves out that are wished for, one after the other."""

    def __init__(
        self,
        moves: SlotMoves,
        groups: Sequence[WriteGroup],
        table: QueueTable,
        producers: ColdProducers,
        write_loop: WriteLoop,
        topics: Callable[[], Iterable[Topic]],
        was_deleted: Callable[[int], bool],
        clock: Clock,
        *,
        block_bytes_max: int,
    ) -> None:
        self.metadata = NO_METADATA
        self.standing: dict[int, str] = {}
        """Per slot that shall move, how far it is, or what it waits for."""
        self.moved_count = 0
        self._moves = moves
        self._placement = moves.placement
        self._groups = groups
        self._table = table
        self._producers = producers
        self._write_loop = write_loop
        self._topics = topics
        self._was_deleted = was_deleted
        self._clock = clock
        self._rows_max = max(1, min(PRODUCERS_BYTES_MAX, block_bytes_max // 4) // PRODUCER_ROW.size)
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Look at the wishes at once: there are others."""
        self._woken.set()

    async def run(self) -> None:
        while True:
            self._woken.clear()
            pause = await self.look()
            try:
                async with asyncio.timeout(pause):
                    await self._woken.wait()
            except TimeoutError:
                pass

    async def look(self) -> float:
        """Carry every move that is wished for on as far as it goes. Returns the seconds until the next look."""
        pause = IDLE_SECONDS
        wishes = dict(self.metadata.wishes())
        for slot in [slot for slot in self.standing if slot not in wishes]:
            del self.standing[slot]
        for slot, wish in wishes.items():
            try:
                waits = await self._step(slot, wish)
            except (MainstemError, OSError) as error:
                waits = str(error)
            self.standing[slot] = waits
            pause = min(pause, WAIT_SECONDS if waits else AGAIN_SECONDS)
        for group in self._groups:
            group.fences_changed()  # where a replica has left, nothing else tells
        self._keep_terms(wishes)
        try:
            await self._settle()
        except MainstemError:  # the metadata has no leader now
            pause = min(pause, WAIT_SECONDS)
        return pause

    async def _step(self, slot: int, wish: Wish) -> str:
        """One step of a move, or all of them. Returns what it waits for; empty: it goes on at once."""
        if self._moves.number_of(slot) >= wish.number:
            if not self._groups[wish.group].serving:
                return f"the node that leads write group {wish.group} has yet to tell the metadata"
            await self._write_loop.sync()  # the wish ends with this: the arrival must not be lost any more
            await self.metadata.moved(slot, wish, self._others(slot))
            return ""
        if slot not in self._moves.fences and (waits := await self._fence(slot, wish)):
            return waits
        fence = self._moves.fences.get(slot)
        if fence is None:  # it has arrived meanwhile
            return ""
        if not self._groups[fence.to].serving:
            return f"the node that leads write group {fence.to} has yet to go on"
        if not self.is_late_enough(fence, slot):
            self._groups[fence.to].lead_anew(self._groups[fence.before].term + 1, self._clock.now_ms())
            return ""
        if not self.is_followed(fence):
            return f"a replica of write group {fence.to} leaves a node that has no part in write group {fence.before}"
        if not self._moves.has_reached(self._needs_of(fence)):
            return "this node catches up with the write groups in which the slot was before"
        if await self.arrive(slot, fence):
            self.moved_count += 1
        return ""

    # --- fence ----------------------------------------------------------------------------------------------

    async def _fence(self, slot: int, wish: Wish) -> str:
        """Fence a slot, unless something stands in the way: returns what it is."""
        before = self._placement.slots[slot]
        if not self._groups[before].serving:
            return f"the node that leads write group {before} has yet to begin"
        if waits := self._lacking(before, wish):
            return waits
        if obstacle := await self._obstacle(slot):
            return obstacle
        if not wish.begun:
            await self.metadata.begins(slot, wish)
        self._moves.close(slot, shut=True)
        try:
            obstacle = await self._obstacle(slot)
            if not (obstacle := obstacle or self._lacking(before, wish)):  # another node may have led meanwhile
                await self._log(before, [control.SlotFenced(slot, wish.group, wish.number)])
            return obstacle
        finally:
            self._moves.close(slot, shut=False)

    def _lacking(self, before: int, wish: Wish) -> str:
        """Which nodes of a write group do not follow the one before yet, which this node leads; empty: all do.

        They all did when the move began, and from then on no replica of the two write groups goes elsewhere. So guests
        that are away by now are as ones that went away just behind the fence: nobody waits for them, as long as the
        others are a majority of the next write group."""
        to = wish.group
        source, target = self._groups[before].consensus, self._groups[to].consensus
        placements, members = self.metadata.placements(), source.committed_membership
        learners = members.learners & source.learners  # but for those that are about to go
        nodes = set(placements.get(to, ()))
        settled = members.voters == frozenset(placements.get(before, members.voters))
        if target.core is not None:
            nodes |= target.committed_membership.voters  # its own guests have to do with other slots
            settled = settled and target.committed_membership.voters == frozenset(placements.get(to, nodes))
        if not nodes or not settled:
            return f"replicas of write group {before} or {to} are on their way to other nodes"
        last = self._groups[before].last_index
        near = (it for it in source.peers() if it.active and it.match_index + GUEST_LAG_BLOCKS_MAX >= last)
        follow = {it.node_id for it in near if it.match_index}  # who has got nothing yet may start again, and not know
        lacking = nodes - members.voters - (learners & follow)
        if lacking and wish.begun:
            away = {it.node_id for it in source.peers() if not it.active}
            if 2 * len(nodes - away) > len(nodes):
                lacking -= away & learners
        if lacking:
            return f"node {min(lacking)} copies what write group {before} has"
        return ""

    async def _obstacle(self, slot: int) -> str:
        """Why the queues of a slot cannot move now; empty: they can."""
        if why := self.metadata.refused():
            return why
        rows = await self._rows_of(slot)
        numbers = set(map(topic_number_of, _ids(rows)))
        topics: dict[int, Topic] = {}
        for topic in self._topics():
            if topic.number in numbers:
                topics[topic.number] = topic
        new, new_kept = 0, 0
        for queue_id, unstable in zip(_ids(rows), rows[:, FIRST_UNSTABLE].tolist(), strict=True):
            its = topics.get(topic_number_of(queue_id))
            name = f"{its.name}:{partition_of(queue_id)}" if its is not None else f"queue {queue_id:#x}"
            if unstable:
                return f"a transaction is open in {name}"
            if its is not None and (why := self.metadata.topic_refused(its)):
                return f"{name} does not move yet: {why}"
            is_kept = its is not None and its.keeps_old_stays
            if len(self._placement.history(queue_id)) >= STAYS_MAX:
                return (
                    f"{name} has records in {STAYS_MAX} write groups one after the other: retention must shorten that"
                    + (", which takes cleanup.policy=compact,delete" if is_kept else "")
                )
            new += queue_id not in self._placement.moved
            new_kept += is_kept and queue_id not in self._placement.moved
        if len(self._placement.moved) + new > MOVED_QUEUES_MAX:
            return f"{MOVED_QUEUES_MAX} queues have records in several write groups, and no more can"
        if new_kept and self._kept_queues() + new_kept > KEPT_QUEUES_MAX:
            return f"{KEPT_QUEUES_MAX} queues that are compacted without delete have moved, and no more can"
        return ""

    def _kept_queues(self) -> int:
        """How many queues that are compacted alone have records in several write groups."""
        kept = {topic.number for topic in self._topics() if topic.keeps_old_stays}
        return sum(topic_number_of(queue_id) in kept for queue_id in self._placement.moved)

    def is_followed(self, fence: Fence) -> bool:
        """Whether all replicas of the new write group are members of the one before, by the replicas here."""
        before, to = (self._groups[number].consensus.committed_membership for number in (fence.before, fence.to))
        return to.voters <= before.members

    def is_late_enough(self, fence: Fence, slot: int) -> bool:
        """Whether the leader epochs of the new write group are no lower than those that clients have seen. Owners of
        queues are told apart by the term that granted theirs (`QueueOwners`), so that a coordinator's queue comes to a
        later one than any that it had an owner in."""
        return self._groups[fence.to].term >= self._groups[fence.before].term + self._coordinates(slot)

    def _coordinates(self, slot: int) -> bool:
        """Whether a slot has a queue of an internal topic."""
        internal = (topic for topic in self._topics() if topic.internal)
        return any(slot_of(topic.queue_id(number)) == slot for topic in internal for number in range(topic.partitions))

    def _keep_terms(self, wishes: Iterable[int]) -> None:
        """Take a later term where the write group that a slot came from has had other leaders since: a node that has
        not heard of the move may have told clients of them."""
        for slot in {*wishes, *self.metadata.unsettled()}:
            arrival = self._moves.arrivals.get(slot)
            if arrival is None or arrival.before < 0 or slot in self._moves.fences:
                continue  # where it is fenced nobody is served, and its next write group may have to be in a later term
            group, before = self._groups[arrival.group], self._groups[arrival.before]
            if group.serving and group.term < before.term:
                group.lead_anew(before.term, self._clock.now_ms())

    def has_later(self, number: int, node_id: int) -> bool:
        """Whether a node may have batches of queues that come behind some of a write group's log here: these queues
        have gone on in another one, which the node has, or follows. It must not be given what comes before."""
        first = self._groups[number].blocks.first_index()
        placements, guests = self.metadata.placements(), self.metadata.guests()
        for slot, fences in self._moves.left.get(number, {}).items():
            if fences[-1].index < first:
                continue
            later = {self._placement.slots[slot], fences[-1].to, *self.metadata.unsettled().get(slot, ())} - {number}
            if any(node_id in placements.get(it, ()) or node_id in guests.get(it, ()) for it in later):
                return True
        return False

    def is_ahead(self, number: int) -> bool:
        """Whether a write group's log has a fence of which the metadata here does not say that the slot has moved: what
        that says of guests may be older than the wish."""
        fences = self._moves.left.get(number, {}).items()
        return any(of_slot[-1].number > self._placement.moves_known(slot) for slot, of_slot in fences)

    # --- arrive ---------------------------------------------------------------------------------------------

    def _needs_of(self, fence: Fence) -> list[Prior]:
        before = self._groups[fence.before]
        return self._moves.needs_of(fence, before.applied_index, before.applied_term)

    async def arrive(self, slot: int, fence: Fence) -> bool:
        """Log the arrival of a fenced slot, and what it needs; it is applied when this returns. Returns False if this
        node lost the leadership, or another leader was faster, before anything was logged."""
        group, term = self._groups[fence.to], self._groups[fence.to].term
        rows = await self._rows_of(slot)
        rows = rows[rows[:, COMMITTED_END] > 0]
        assert (rows[:, NEXT_OFFSET] == rows[:, COMMITTED_END]).all(), "the fence is behind all that was appended"
        ids, before = _ids(rows), self._groups[fence.before]
        part = partial(
            control.QueuesArrived,
            slot,
            fence.before,
            fence.number,
            last=False,
            behind=fence.index,
            needs=tuple((*need,) for need in self._needs_of(fence)),
        )
        ends = list(zip(ids, rows[:, COMMITTED_END].tolist(), strict=True))
        coordinators = before.transactions.coordinators_in(set(ids))
        commands = [part(ends=tuple(ends[at : at + ENTRIES_MAX])) for at in range(0, len(ends), ENTRIES_MAX)]
        commands += [part(producers=known) for known in await self._producers_of(fence.before, ids)]
        commands += [
            part(coordinators=tuple(coordinators[at : at + ENTRIES_MAX]))
            for at in range(0, len(coordinators), ENTRIES_MAX)
        ]
        if not group.serving or group.term != term or self._moves.fences.get(slot) != fence:
            return False
        await self._log(fence.to, [*commands, part(last=True)])
        return True

    async def _producers_of(self, group: int, queue_ids: Sequence[int]) -> list[bytes]:
        """The producers of these queues as a write group knows them, in pieces for one command each."""
        wanted = numpy.array(queue_ids, numpy.uint64)
        known = bytearray()
        async for states in self._producers.all_states(group):
            known += states[numpy.isin(states["queue_id"], wanted)].tobytes()
        size = self._rows_max * PRODUCER_ROW.size
        return [bytes(known[at : at + size]) for at in range(0, len(known), size)]

    async def _log(self, group: int, commands: Sequence[control.Command]) -> None:
        """Log commands, each in a block of its own; they are applied when this returns."""
        outcomes = [self._groups[group].propose([command]) for command in commands]
        self._write_loop.wake()
        await asyncio.gather(*outcomes)

    async def _rows_of(self, slot: int) -> Cells:
        """The queues of a slot that hold something, or may, as they are in the table; a chunk of it per turn."""
        found = [numpy.zeros((0, CELLS), numpy.int64)]
        for rows in chunks(self._table):
            used = numpy.flatnonzero(rows[:, NEXT_OFFSET] | rows[:, COMMITTED_END] | rows[:, FIRST_UNSTABLE])
            found.append(rows[used[slots_of(rows[used, QUEUE_ID].astype(numpy.uint64)) == slot]])
            await asyncio.sleep(0)
        return numpy.concatenate(found)

    # --- histories ------------------------------------------------------------------------------------------

    def _others(self, slot: int) -> list[int]:
        """The write groups that have records of a slot's queues from before its last move, in the order in which the
        slot came to them first. Its own is among them if it has returned."""
        arrival = self._moves.arrivals[slot]
        groups: set[int] = set()
        for queue_id, stays in self._placement.moved.items():
            if slot_of(queue_id) == slot:
                groups.update(stay.group for stay in stays if stay != stays[-1] or stay.group != arrival.group)
        if self._brings_guests(arrival):
            groups.add(arrival.before)  # until all replicas have the arrival
        met = dict.fromkeys([*self.metadata.unsettled().get(slot, ()), arrival.before])
        return [*(group for group in met if group in groups), *sorted(groups - met.keys())]

    def _brings_guests(self, arrival: Arrival) -> bool:
        """Whether replicas of a write group to which queues came are on nodes that have none of the one before."""
        placements = self.metadata.placements()
        return not set(placements.get(arrival.group, ())) <= set(placements.get(arrival.before, ()))

    async def _settle(self) -> None:
        """Forget stays of which nothing is left. The leader of a slot's write group tells the metadata if it has none
        any more."""
        unsettled = set(self.metadata.unsettled())
        kept: set[int] = set()
        for queue_id, stays in list(self._placement.moved.items()):
            place = self._table.find(queue_id)
            if place == NO_SLOT:  # or what a snapshot, which is not installed yet, has told of
                if self._was_deleted(topic_number_of(queue_id)):
                    self._placement.forget(queue_id)
            elif self._table.get(place, LOG_START) >= stays[1].first_offset:
                self._placement.cut(queue_id, self._table.get(place, LOG_START))
            if queue_id in self._placement.moved:
                kept.add(slot_of(queue_id))
        for slot in unsettled - kept - self._moves.fences.keys():
            if self._is_forgotten(slot):
                await self.metadata.settled(slot)

    def _is_forgotten(self, slot: int) -> bool:
        """Whether this node leads a slot's write group, and new replicas of the others would not get the slot's batches
        any more: these begin behind the fence."""
        arrival = self._moves.arrivals.get(slot)
        if arrival is None or arrival.group != self._placement.slots[slot] or not self._groups[arrival.group].serving:
            return False  # or its logs lag behind the metadata
        consensus = self._groups[arrival.group].consensus
        behind = {it.node_id for it in consensus.peers() if it.match_index < arrival.index} & consensus.voters
        if behind and self._brings_guests(arrival):
            return False  # it takes the arrival only once it has the fence, and what the log says before that
        concerned = [arrival.group, *(group for group, left in self._moves.left.items() if slot in left)]
        if all(len(self._groups[group].consensus.committed_membership.members) <= 1 for group in concerned):
            return True
        fences = ((group, left[slot][-1]) for group, left in self._moves.left.items() if slot in left)
        return all(
            group == arrival.group or self._groups[group].blocks.first_index() > fence.index for group, fence in fences
        )


def _ids(rows: Cells) -> list[int]:
    ids: list[int] = rows[:, QUEUE_ID].astype(numpy.uint64).tolist()
    return ids
