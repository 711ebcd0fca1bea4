"""The applied state of moves: which slots are fenced in their write group, and where queues have been.

A move is two entries in two logs. `SlotFenced` ends the slot's queues in the write group that had them: from there on
none of their batches is in its log. `QueuesArrived` begins them in the next one, at the offsets at which they ended.
Between the two nobody takes batches for them. The fence is applied before the arrival is logged, so that a fence that a
start applies again comes too late if the arrival with its number, or a later one, is known already.

The two logs are replicated and applied by themselves. The arrival names the block that has the fence, and what comes
before that in other logs (`arrival_log.py`). A replica that has not applied all of these neither writes nor applies the
arrival (`awaits`): so each replica applies the last batches of a queue in the write group before, then the first ones
in the next.

A snapshot of a write group tells what its log would have told up to the snapshot's block (`told_of`, `learn`). A
replica installs it at once: what it stands for is in files. But it neither writes nor applies the next block before it
has come to all that the arrivals up to the snapshot need (`holds`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

import msgspec

from mainstem.kernel import COMMITTED_END, LOG_START, NEXT_OFFSET, NO_SLOT, QueueTable
from mainstem.model import slot_of
from mainstem.storage.placement import Placement, Stay
from mainstem.storage.state.arrival_log import Arrival, ArrivalLog, Prior, joined_needs
from mainstem.storage.write_groups.control import DONE, QueuesArrived, SlotFenced


class Fence(NamedTuple):
    """A slot takes no batches: it is on its way between two write groups."""

    before: int
    to: int
    number: int
    index: int = 0  # type: ignore[assignment]
    """Of its block, in the log of the write group before; 0: not known, of a node that has both write groups alone."""


class MovesTold(msgspec.Struct, frozen=True, array_like=True):
    """The moves that a snapshot of a write group tells of: all histories that pass through it, and the fences and
    arrivals in its log up to the snapshot's block."""

    fences: dict[int, Fence] = {}
    arrivals: dict[int, Arrival] = {}
    histories: dict[int, list[tuple[int, int]]] = {}
    needs: list[Prior] = []
    """Of all arrivals in the log up to the block, those of slots that have gone on included."""

    def __bool__(self) -> bool:
        return bool(self.fences or self.arrivals or self.histories)


class MovesImage(msgspec.Struct, frozen=True, array_like=True):
    """The state as checkpoints keep it."""

    fences: dict[int, Fence] = {}
    """Per slot that is on its way."""
    placed: dict[int, tuple[int, int]] = {}
    """Per slot that has moved, its write group and the number of the move."""
    histories: dict[int, list[tuple[int, int]]] = {}
    """Per queue that has been in several write groups, these, and the first offset in each."""
    arrivals: dict[int, Arrival] = {}
    """As `placed`, and where the logs say so. Earlier versions pass over this field and those behind it."""
    left: dict[int, dict[int, Fence]] = {}
    """Per write group and slot the newest fence in the write group's log."""
    came: dict[int, ArrivalLog] = {}
    """Per write group."""
    left_before: dict[int, dict[int, list[Fence]]] = {}
    """Per write group and slot the earlier fences that snapshots may tell of, oldest first."""


class SlotMoves:
    """Applies fences and arrivals, and has the node's placement follow them."""

    def __init__(self, table: QueueTable, placement: Placement) -> None:
        self._table = table
        self._placement = placement
        self.fences: dict[int, Fence] = {}
        """Per slot that is on its way."""
        self.left: dict[int, dict[int, list[Fence]]] = {}
        """Per write group and slot the fences in the write group's log, oldest first: the newest, and earlier ones that
        snapshots may tell of."""
        self.arrivals: dict[int, Arrival] = {}
        """Per slot that has moved, its last arrival."""
        self.came: dict[int, ArrivalLog] = {}
        """Per write group, the arrivals in its log."""
        self.closing: set[int] = set()
        """Slots whose fence is about to be logged."""
        self.changed: Callable[[], None] = lambda: None
        """Called when slots take batches elsewhere, or nowhere."""
        self.fence_applied: Callable[[], None] = lambda: None
        """Called when a fence has been applied: the node that leads the next write group goes on."""
        self.reached: Callable[[int, int], bool] = lambda group, index: True
        """Whether this node has applied a write group's blocks up to this one, or has no part in it."""
        self.has_applied: Callable[[int, int], bool] = lambda group, index: True
        """Whether this node has applied a write group's blocks up to this one, whatever its part in it is."""
        self.keeps: Callable[[int], bool] = lambda group: False
        """Whether the metadata wants a replica of a write group on this node, so that it reads its queues."""
        self.unsettled: Callable[[int], Collection[int]] = lambda slot: ()
        """The write groups that may have records of a slot's queues from before its last move, as the metadata says."""
        self.known_committed: Callable[[int, int, int], None] = lambda group, index, term: None
        """Told of blocks of other write groups (group, index, term) that are waited for, and committed."""
        self.snapshots_from: Callable[[int], int] = lambda group: 0
        """The block of a write group at which snapshots that this node gives stand, or behind which."""

    @property
    def shut(self) -> set[int]:
        """The slots that take no batches."""
        return self.closing | self.fences.keys()

    def close(self, slot: int, *, shut: bool) -> None:
        """Take no more batches of a slot from this turn on, as its fence is about to be logged; or take them again."""
        (self.closing.add if shut else self.closing.discard)(slot)
        self.changed()

    @property
    def placement(self) -> Placement:
        return self._placement

    def number_of(self, slot: int) -> int:
        """The number of the slot's last move that has arrived, as far as this node knows."""
        return self.arrivals[slot].number if slot in self.arrivals else 0

    def fenced(self, group: int, index: int, command: SlotFenced) -> str:
        """Apply a fence. Returns `done`, or that the slot has gone on already."""
        outcome = self._shut(command.slot, Fence(group, command.to, command.number, index))
        self.changed()
        self.fence_applied()
        return outcome

    def _shut(self, slot: int, fence: Fence) -> str:
        left = self.left.setdefault(fence.before, {}).setdefault(slot, [])
        if not left or left[-1].number < fence.number:
            left.append(fence)
            snapshots_from = self.snapshots_from(fence.before)
            while len(left) > 1 and left[1].index <= snapshots_from:
                del left[0]
        if fence.number <= self.number_of(slot):
            return "the slot has moved since"
        self.fences[slot] = fence
        return DONE

    # --- arrivals -----------------------------------------------------------------------------------------

    def needs_of(self, fence: Fence, applied: int, applied_term: int) -> list[Prior]:
        """The priors of the arrival of a fenced slot: the fence, and all that this node knows to come before blocks of
        that write group, of which it has `applied` this one."""
        earlier = self.came[fence.before].needs() if fence.before in self.came else []
        needs = joined_needs([Prior(fence.before, fence.index, applied, applied_term), *earlier])
        return [need for need in needs if need.group != fence.to]

    def has_reached(self, needs: Iterable[Prior]) -> bool:
        """Whether all of this is applied here. Otherwise the write groups hear what is known to be committed: their
        next leader may need this very replica to commit anything."""
        waits = [need for need in needs if not self.reached(need.group, need.index)]
        for need in waits:
            if need.committed:
                self.known_committed(need.group, need.committed, need.committed_term)
        return not waits

    def awaits(self, group: int, command: QueuesArrived) -> bool:
        """Whether something that comes before an arrival is not applied here."""
        slot, needs = command.slot, _needs_in(command)
        return not self.has_reached(needs) or self._lacks(
            needs, self._read_with(slot, command.number, command.before, group)
        )

    def holds(self, group: int) -> bool:
        """Whether something that comes before a write group's next block is not applied here, as the arrivals came with
        a snapshot."""
        if group not in self.came:
            return False
        came, read = self.came[group], set[int]()
        if not self.has_reached(needs := came.needs()):
            return True
        for slot, arrivals in came.slots.items():
            read.update(self._read_with(slot, arrivals[-1].number, arrivals[-1].before, group))
        return self._lacks(needs, read)

    def _read_with(self, slot: int, number: int, before: int, group: int) -> Collection[int]:
        """The write groups that this node needs to read a slot's queues, after they came to one, from their first
        records on; none where other nodes read them, and this one follows for other queues."""
        if before < 0 or not self.keeps(self._placement.read_by(slot, number, group)):
            return ()
        kept_in = self.unsettled(slot)
        if number <= self._placement.moves_known(slot):
            return kept_in
        return {*kept_in, self._placement.home_known(slot), before}  # the metadata here lags, by two moves maybe

    def _lacks(self, needs: Iterable[Prior], read: Collection[int]) -> bool:
        """Whether something that comes before is not applied here of a write group that is read here. The replica of
        that may have lost its log, or have got nothing yet: then it does not know that it is a member, but it is."""
        return any(need.group in read and not self.has_applied(need.group, need.index) for need in needs)

    def arrived(self, group: int, index: int, command: QueuesArrived) -> str:
        """Apply an arrival. Returns `done`, or that it stands in this log a second time. If the slot has gone on
        already, as a snapshot of another write group has told, only this write group's part remains to be done."""
        slot, number = command.slot, command.number
        log = self.came.setdefault(group, ArrivalLog())
        if number <= log.number_of(slot):
            return "the slot has moved since"
        arrival = Arrival(group, number, index, command.before, command.behind)
        if command.last:
            log.note(slot, arrival, _needs_in(command), self.snapshots_from(group))
        if number >= self.number_of(slot):  # the same one, where a replica left with its log and comes back
            self._take_in(command, arrival)
        return DONE

    def _take_in(self, command: QueuesArrived, arrival: Arrival) -> None:
        table, is_gone = self._table, self._is_gone(command)
        for queue_id, end in command.ends:
            place = table.find(queue_id)
            if place == NO_SLOT:  # deleted meanwhile
                continue
            if is_gone:  # the log that says so never came here, or is here no more
                table.set(place, LOG_START, max(table.get(place, LOG_START), end))
            for cell in (COMMITTED_END, NEXT_OFFSET):  # a replica that had no part in the write group before lacks it
                table.set(place, cell, max(table.get(place, cell), end))
            self._placement.arrive(queue_id, command.before, arrival.group, end)
            if table.get(place, LOG_START) >= end:  # nothing of it is left where it was
                self._placement.cut(queue_id, table.get(place, LOG_START))
        if command.last:
            self._open(command.slot, arrival)
            self.changed()

    def _is_gone(self, command: QueuesArrived) -> bool:
        """Whether nothing is left of what queues had before an arrival, as the metadata says, and this node lacks that
        part of the log of the write group before."""
        slot = command.slot
        if command.before < 0 or command.number > self._placement.moves_known(slot) or self.unsettled(slot):
            return False
        return not self.has_applied(command.before, command.behind)

    def _open(self, slot: int, arrival: Arrival) -> None:
        self.arrivals[slot] = arrival
        self._placement.place(slot, arrival.group, arrival.number)
        if slot in self.fences and self.fences[slot].number <= arrival.number:
            del self.fences[slot]

    def forget(self, group: int) -> None:
        """Forget what stood in the log of a write group whose replica leaves this node. The node goes on knowing where
        its queues went and came from: others here may have gone on with them."""
        self.came.pop(group, None)
        self.left.pop(group, None)
        for slot in [slot for slot, fence in self.fences.items() if fence.before == group]:
            del self.fences[slot]
        self.changed()

    # --- snapshots ----------------------------------------------------------------------------------------

    def told_of(self, group: int, index: int) -> MovesTold:
        """The moves that a snapshot of a write group at a block tells of."""
        came = self.came.get(group, ArrivalLog())
        return MovesTold(
            dict(self._left_upto(group, index)),
            dict(came.upto(index)),
            {
                queue_id: [(stay.group, stay.first_offset) for stay in stays]
                for queue_id, stays in self._placement.moved.items()
                if any(stay.group == group for stay in stays)
            },
            came.needs(index),
        )

    def _left_upto(self, group: int, index: int) -> Iterator[tuple[int, Fence]]:
        """The last fence of each slot in a write group's log up to a block."""
        for slot, fences in self.left.get(group, {}).items():
            last = next((fence for fence in reversed(fences) if fence.index <= index), None)
            if last is not None:
                yield slot, last

    def comes_later(self, group: int, index: int) -> set[int]:
        """The slots that have come to a write group only behind this block."""
        return self.came[group].behind(index) if group in self.came else set()

    def remember(self, told: MovesTold) -> None:
        """Know the histories that a snapshot tells, and where slots had come by then. They hold whatever has been
        applied here: offsets do not change their write group. A queue of which the sender tells no history had nothing
        left anywhere else, which the metadata here may not have heard."""
        for queue_id, rows in told.histories.items():
            stays, known = [Stay(*row) for row in rows], self._placement.moved.get(queue_id, ())
            if known and not self._is_newer(queue_id, stays[-1], known[-1], told):
                continue
            later = stays[1:]  # the first may be the rest of several, as the sender has nothing of these any more
            earlier = [stay for stay in known if later and stay.first_offset < later[0].first_offset]
            if not earlier or earlier[-1].group != stays[0].group:
                earlier = stays[:1]
            self._placement.remember(queue_id, [*earlier, *later])
        for slot, arrival in told.arrivals.items():
            if arrival.number > self.number_of(slot):
                self._placement.place(slot, arrival.group, arrival.number)
        self.changed()

    def _is_newer(self, queue_id: int, last: Stay, known: Stay, told: MovesTold) -> bool:
        """Whether a queue's last stay in a snapshot is later than the last one known here. Of a stay without records,
        in which another one begins as well, only the numbers of moves tell."""
        if last.first_offset != known.first_offset:
            return last.first_offset > known.first_offset
        slot = slot_of(queue_id)
        here, there = self._placement.placed.get(slot, (-1, 0)), told.arrivals.get(slot)
        return here[0] == last.group or (there is not None and there.group == last.group and there.number > here[1])

    def learn(self, group: int, index: int, told: MovesTold) -> None:
        """Take over fences and arrivals as of a snapshot that has taken the place of a log."""
        for slot, fence in told.fences.items():
            self._shut(slot, fence)
        for slot, arrival in told.arrivals.items():
            if arrival.number > self.number_of(slot):
                self._open(slot, arrival)
        needs = told.needs or _needs_among(told.arrivals.values())
        self.came[group] = ArrivalLog(
            {slot: [arrival] for slot, arrival in told.arrivals.items()}, [(index, need) for need in needs]
        )
        self.remember(told)
        self.changed()

    # --- checkpoint ---------------------------------------------------------------------------------------

    def image(self) -> MovesImage:
        return MovesImage(
            dict(self.fences),
            dict(self._placement.placed),
            {
                queue_id: [(stay.group, stay.first_offset) for stay in stays]
                for queue_id, stays in self._placement.moved.items()
            },
            dict(self.arrivals),
            {group: {slot: fences[-1] for slot, fences in left.items()} for group, left in self.left.items()},
            {group: log.copied() for group, log in self.came.items()},
            {
                group: {slot: fences[:-1] for slot, fences in left.items() if len(fences) > 1}
                for group, left in self.left.items()
            },
        )

    def load(self, image: MovesImage) -> None:
        """Take the place of what is known, before anything is applied."""
        self.fences = dict(image.fences)
        for queue_id, stays in image.histories.items():
            self._placement.remember(queue_id, [Stay(*stay) for stay in stays])
        before = image.left_before
        self.left = {
            group: {slot: [*before.get(group, {}).get(slot, ()), fence] for slot, fence in fences.items()}
            for group, fences in image.left.items()
        }
        for slot, (group, number) in image.placed.items():
            self.arrivals[slot] = image.arrivals.get(slot, Arrival(group, number))
            self._placement.place(slot, group, number)
        self.came = {group: log.copied() for group, log in image.came.items()}
        for slot, arrival in image.arrivals.items():  # of a checkpoint of an earlier version
            if arrival.group not in image.came:
                log = self.came.setdefault(arrival.group, ArrivalLog())
                log.note(slot, arrival, _needs_among([arrival]), 0)
        self.changed()


def _needs_in(command: QueuesArrived) -> list[Prior]:
    if command.needs:
        return [Prior(*need) for need in command.needs]
    return [Prior(command.before, command.behind)]  # of an earlier version


def _needs_among(arrivals: Iterable[Arrival]) -> list[Prior]:
    """The priors of arrivals that earlier versions tell of."""
    return joined_needs(Prior(one.before, one.behind) for one in arrivals if one.before >= 0)
