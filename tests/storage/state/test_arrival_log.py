"""Arrivals and snapshots of write groups name the blocks of others that come first, and replicas know moved queues."""

from __future__ import annotations

from collections.abc import Iterable

import numpy

from mainstem.kernel import COMMITTED_END, LOG_START, NEXT_OFFSET, QueueTable
from mainstem.model import SLOTS, queue_id_of, slot_of
from mainstem.storage.placement import Placement, Stay
from mainstem.storage.state.arrival_log import Arrival, ArrivalLog, Prior, joined_needs
from mainstem.storage.state.slot_moves import SlotMoves
from mainstem.storage.write_groups.control import DONE, QueuesArrived, SlotFenced

QUEUE = queue_id_of(1, 0)
SLOT = slot_of(QUEUE)
FIRST, SECOND, THIRD = range(3)


class Replicas:
    """The replicas of a node, of which each has applied its log up to a block."""

    def __init__(self) -> None:
        self.applied = [0, 0, 0]
        self.told: list[tuple[int, int, int]] = []
        self.unsettled: list[int] = []
        self.table = QueueTable()
        self.table.create(1, 0, 1)
        self.placement = Placement([SECOND, THIRD, *[FIRST] * (SLOTS - 2)])
        self.moves = SlotMoves(self.table, self.placement)
        self.moves.reached = lambda group, index: self.applied[group] >= index
        self.moves.known_committed = lambda *block: self.told.append(block)

    def fence(self, group: int, index: int, to: int, number: int) -> None:
        self.applied[group] = index
        self.moves.fenced(group, index, SlotFenced(SLOT, to, number))

    def arrive(self, group: int, index: int, number: int, end: int) -> QueuesArrived:
        """Log an arrival as the leader here would, and apply it."""
        fence = self.moves.fences[SLOT]
        needs = self.moves.needs_of(fence, self.applied[fence.before], 1)
        command = QueuesArrived(
            SLOT, fence.before, number, ((QUEUE, end),), behind=fence.index, needs=tuple((*need,) for need in needs)
        )
        self.apply(group, index, command)
        return command

    def apply(self, group: int, index: int, command: QueuesArrived) -> str:
        assert not self.moves.awaits(group, command)
        self.applied[group] = index
        return self.moves.arrived(group, index, command)

    def install(self, sender: Replicas, group: int, index: int) -> None:
        """As of a snapshot at this block of a write group."""
        told = sender.moves.told_of(group, index)
        self.moves.remember(told)
        self.applied[group] = index
        self.moves.learn(group, index, told)


def moved_twice() -> Replicas:
    """A queue that has 10 records in the first write group, 20 in the second, and goes on in the third."""
    ahead = Replicas()
    ahead.fence(FIRST, 7, SECOND, 1)
    ahead.arrive(SECOND, 4, 1, 10)
    ahead.fence(SECOND, 9, THIRD, 2)
    ahead.arrive(THIRD, 5, 2, 30)
    return ahead


def needs_of(*needs: tuple[int, ...]) -> list[Prior]:
    return [Prior(*need) for need in needs]


def by_group(needs: Iterable[Prior]) -> list[Prior]:
    return sorted(needs)


def test_one_need_of_each_write_group_stands_for_all() -> None:
    found = joined_needs(needs_of((0, 7, 9, 1), (1, 3, 3, 2), (0, 8, 8, 1), (0, 2)))
    assert by_group(found) == needs_of((0, 8, 9, 1), (1, 3, 3, 2))


def test_earlier_arrivals_are_told_together_once_all_snapshots_stand_behind_them() -> None:
    log = ArrivalLog()
    for number, index in enumerate((5, 10, 20), 1):
        log.note(SLOT, Arrival(SECOND, number, index), [Prior(FIRST, index - 2)], snapshots_from=0)
    assert [dict(log.upto(index)).get(SLOT, Arrival(0, 0)).number for index in (4, 5, 19, 20)] == [0, 1, 2, 3]
    assert [log.needs(index) for index in (4, 5, 19)] == [[], needs_of((FIRST, 3)), needs_of((FIRST, 8))]
    assert log.behind(19) == {SLOT}
    log.note(SLOT, Arrival(SECOND, 4, 30), [Prior(THIRD, 1)], snapshots_from=12)
    assert [arrival.number for arrival in log.slots[SLOT]] == [2, 3, 4]
    assert len(log.needed) == 3
    assert log.needs(12) == needs_of((FIRST, 8))
    assert by_group(log.needs()) == needs_of((FIRST, 18), (THIRD, 1))


def test_what_follows_a_snapshot_waits_for_all_write_groups_that_a_queue_came_through() -> None:
    """The third has its fence of the second, whose own snapshot does not have the batches of the first."""
    ahead, late = moved_twice(), Replicas()
    late.install(ahead, THIRD, 5)
    assert late.moves.holds(THIRD)
    late.install(ahead, SECOND, 9)
    assert late.moves.holds(SECOND)
    assert late.moves.holds(THIRD), "that would read the queue with a gap"
    assert late.placement.history(QUEUE) == (Stay(FIRST, 0), Stay(SECOND, 10), Stay(THIRD, 30))
    late.fence(FIRST, 7, SECOND, 1)
    assert not late.moves.holds(SECOND)
    assert not late.moves.holds(THIRD)
    assert not late.moves.shut, "the slot has gone on"


def test_a_log_that_comes_late_changes_no_history_that_a_snapshot_told() -> None:
    ahead, late = moved_twice(), Replicas()
    late.install(ahead, THIRD, 5)
    slot = late.table.find(QUEUE)
    for cell in (COMMITTED_END, NEXT_OFFSET):
        late.table.set(slot, cell, 44)
    late.table.set(slot, LOG_START, 12)  # all of the first stay is gone
    late.fence(FIRST, 7, SECOND, 1)
    assert late.moves.arrived(SECOND, 4, QueuesArrived(SLOT, FIRST, 1, ((QUEUE, 10),), behind=7)) == "done"
    assert late.placement.history(QUEUE) == (Stay(FIRST, 0), Stay(SECOND, 10), Stay(THIRD, 30))
    assert late.placement.group_of(QUEUE) == THIRD
    assert late.table.get(slot, COMMITTED_END) == 44


def test_an_arrival_counts_once_in_its_log_whatever_other_logs_say() -> None:
    ahead, late = moved_twice(), Replicas()
    late.install(ahead, THIRD, 5)
    late.applied[FIRST] = 7
    arrival = QueuesArrived(SLOT, FIRST, 1, ((QUEUE, 10),), behind=7)
    assert [late.apply(SECOND, index, arrival) for index in (4, 6)] == ["done", "the slot has moved since"]


def test_the_write_groups_that_are_waited_for_hear_what_is_committed() -> None:
    ahead, late = Replicas(), Replicas()
    ahead.fence(FIRST, 7, SECOND, 1)
    ahead.applied[FIRST] = 8
    command = ahead.arrive(SECOND, 4, 1, 10)
    assert late.moves.awaits(SECOND, command)
    assert late.told == [(FIRST, 8, 1)]
    late.applied[FIRST] = 7
    assert not late.moves.awaits(SECOND, command), "it waits for the fence, not for what was known to be committed"


def test_a_snapshot_tells_where_a_queue_is_of_whose_history_the_sender_has_nothing_left() -> None:
    ahead, late = Replicas(), Replicas()
    ahead.fence(FIRST, 7, SECOND, 1)
    ahead.arrive(SECOND, 4, 1, 10)
    ahead.placement.cut(QUEUE, 12)
    told = ahead.moves.told_of(SECOND, 5)
    assert not told.histories
    late.placement.grow(*moved(SECOND, 1), {SLOT: [FIRST]})
    rows = numpy.array([QUEUE], numpy.uint64), numpy.array([15], numpy.int64)
    assert late.placement.groups_at(*rows).tolist() == [FIRST], "until a log says more"
    late.moves.remember(told)
    assert late.placement.groups_at(*rows).tolist() == [SECOND], "or copies of files would be made without it"


def returned() -> Replicas:
    """As `moved_twice`, but from the second write group the queue came back to the first, and then left that again."""
    ahead = Replicas()
    ahead.fence(FIRST, 7, SECOND, 1)
    ahead.arrive(SECOND, 4, 1, 10)
    ahead.fence(SECOND, 9, FIRST, 2)
    ahead.arrive(FIRST, 12, 2, 30)
    ahead.fence(FIRST, 15, SECOND, 3)
    ahead.arrive(SECOND, 20, 3, 40)
    return ahead


def test_a_snapshot_tells_of_the_fence_that_was_the_last_one_then() -> None:
    ahead = returned()
    assert ahead.placement.history(QUEUE) == (Stay(FIRST, 0), Stay(SECOND, 10), Stay(FIRST, 30), Stay(SECOND, 40))
    for moves in (ahead.moves, started := Replicas().moves):
        if moves is started:
            moves.load(ahead.moves.image())
        told = [moves.told_of(FIRST, index).fences.get(SLOT) for index in (6, 7, 14, 15)]
        assert [fence and fence.number for fence in told] == [None, 1, 1, 3]


def test_a_replica_that_gets_the_snapshot_from_before_a_return_follows_all_moves() -> None:
    ahead, late = returned(), Replicas()
    late.install(ahead, FIRST, 7)
    assert SLOT in late.moves.shut, "the queue is on its way to the second write group"
    assert not late.moves.holds(FIRST)
    late.install(ahead, SECOND, 20)
    assert late.moves.holds(SECOND), "before it has the first write group's second fence"
    late.applied[FIRST] = 15
    assert not late.moves.holds(SECOND)
    assert late.placement.history(QUEUE) == ahead.placement.history(QUEUE)
    assert late.placement.group_of(QUEUE) == SECOND


def test_fences_are_forgotten_once_all_snapshots_stand_behind_a_later_one() -> None:
    ahead = returned()
    ahead.moves.snapshots_from = lambda group: 15
    ahead.fence(FIRST, 30, SECOND, 5)
    assert [fence.number for fence in ahead.moves.left[FIRST][SLOT]] == [3, 5]


def test_a_return_without_records_elsewhere_is_told_by_a_snapshot() -> None:
    ahead, late = Replicas(), Replicas()
    for replicas in (ahead, late):
        replicas.fence(FIRST, 7, SECOND, 1)
        replicas.arrive(SECOND, 4, 1, 10)
    ahead.fence(SECOND, 9, FIRST, 2)
    ahead.arrive(FIRST, 12, 2, 10)
    late.install(ahead, FIRST, 12)
    assert late.placement.history(QUEUE) == (Stay(FIRST, 0), Stay(FIRST, 10)), "what comes from now on is in the first"
    assert late.moves.holds(FIRST)


def test_a_checkpoint_keeps_what_is_needed() -> None:
    ahead, late, started = moved_twice(), Replicas(), Replicas()
    late.install(ahead, THIRD, 5)
    started.moves.load(late.moves.image())
    started.applied = list(late.applied)
    assert started.moves.holds(THIRD)
    assert started.moves.told_of(THIRD, 5) == late.moves.told_of(THIRD, 5)
    started.applied = [7, 9, 5]
    assert not started.moves.holds(THIRD)


def test_of_stays_that_begin_at_one_offset_the_later_move_counts() -> None:
    """Nothing came to the queue in the second write group."""
    ahead, late = Replicas(), Replicas()
    for replicas in (ahead, late):
        replicas.fence(FIRST, 7, SECOND, 1)
        replicas.arrive(SECOND, 4, 1, 10)
    ahead.fence(SECOND, 5, THIRD, 2)
    ahead.arrive(THIRD, 5, 2, 10)
    late.install(ahead, THIRD, 5)
    assert late.placement.history(QUEUE) == (Stay(FIRST, 0), Stay(THIRD, 10))
    ahead.install(late, SECOND, 4)
    assert ahead.placement.history(QUEUE) == (Stay(FIRST, 0), Stay(THIRD, 10))


def reading_late() -> Replicas:
    """A node whose replicas begin anew, and are not said to be waited for: no leader is known to have added them."""
    late = Replicas()
    late.moves.reached = lambda group, index: True
    late.moves.has_applied = lambda group, index: late.applied[group] >= index
    late.moves.unsettled = lambda slot: late.unsettled
    return late


def moved(group: int, number: int) -> tuple[list[int], int, dict[int, int]]:
    return [group if slot == SLOT else FIRST for slot in range(SLOTS)], 3, {SLOT: number}


def test_a_replica_that_begins_anew_is_not_passed_over_while_it_is_to_keep_what_was_before() -> None:
    ahead, late = Replicas(), reading_late()
    ahead.fence(FIRST, 7, SECOND, 1)
    command = ahead.arrive(SECOND, 4, 1, 10)
    assert not late.moves.awaits(SECOND, command), "it follows the second write group for other queues"
    late.moves.keeps = lambda group: group == SECOND
    assert late.moves.awaits(SECOND, command), "the metadata here has not heard of the move"
    late.placement.grow(*moved(SECOND, 1))
    late.unsettled = [FIRST]
    assert late.moves.awaits(SECOND, command)
    late.unsettled = []
    assert not late.moves.awaits(SECOND, command), "nothing is left in the first write group"
    late.unsettled = [FIRST]
    late.applied[FIRST] = 7
    assert not late.moves.awaits(SECOND, command)


def test_metadata_that_lags_by_two_moves_names_where_the_slot_was_then() -> None:
    ahead, late = Replicas(), reading_late()
    ahead.fence(FIRST, 7, SECOND, 1)
    ahead.arrive(SECOND, 4, 1, 10)
    ahead.fence(SECOND, 9, THIRD, 2)
    second = ahead.arrive(THIRD, 5, 2, 30)
    late.moves.keeps = lambda group: group == THIRD
    late.applied[SECOND] = 9
    assert late.moves.awaits(THIRD, second), "the first write group has records, and the metadata here has it there yet"
    late.applied[FIRST] = 7
    assert not late.moves.awaits(THIRD, second)


def test_what_follows_a_snapshot_passes_over_no_replica_that_begins_anew_either() -> None:
    ahead, late = moved_twice(), reading_late()
    late.install(ahead, THIRD, 5)
    assert not late.moves.holds(THIRD), "it follows the third write group for other queues"
    late.moves.keeps = lambda group: group == THIRD
    late.placement.grow(*moved(THIRD, 2))
    late.unsettled = [FIRST, SECOND]
    for group, index in ((FIRST, 7), (SECOND, 9)):
        assert late.moves.holds(THIRD)
        late.applied[group] = index
    assert not late.moves.holds(THIRD)
    late.applied[FIRST] = 0
    assert late.moves.holds(THIRD)
    late.placement.grow(*moved(FIRST, 3))
    assert not late.moves.holds(THIRD), "other nodes read the queue by now"


def test_a_replica_that_left_with_its_log_forgets_what_stood_in_it_and_takes_it_in_again() -> None:
    here = moved_twice()
    slot = here.table.find(QUEUE)
    assert here.table.get(slot, COMMITTED_END) == 30
    here.moves.forget(SECOND)
    assert SECOND not in here.moves.left, "no fence of a log that is not here keeps the slot from being settled"
    assert SECOND not in here.moves.came, "nor does a replica that comes anew wait for what an earlier one needed"
    assert here.placement.history(QUEUE)[-1] == Stay(THIRD, 30)
    last = here.moves.came[THIRD].slots[SLOT][-1]
    arrived = QueuesArrived(SLOT, SECOND, last.number, ((QUEUE, 30),), behind=last.behind)
    assert here.apply(THIRD, 5, arrived) == "the slot has moved since"
    here.moves.forget(THIRD)
    here.table.set(slot, COMMITTED_END, 0)  # the queue is given back to what is here still
    assert here.apply(THIRD, 5, arrived) == DONE
    assert here.table.get(slot, COMMITTED_END) == 30


def test_a_slot_on_its_way_from_a_write_group_that_left_is_not_shut_here() -> None:
    here = Replicas()
    here.fence(FIRST, 7, SECOND, 1)
    here.moves.forget(SECOND)
    assert here.moves.shut == {SLOT}
    here.moves.forget(FIRST)
    assert not here.moves.shut


def test_a_replica_without_the_earlier_log_knows_that_its_records_are_gone_once_the_slot_is_settled() -> None:
    leader = Replicas()
    leader.fence(FIRST, 14, SECOND, 1)
    arrival = leader.arrive(SECOND, 87, 1, end=6)
    for settled, has_log, start in ((True, False, 6), (False, False, 0), (True, True, 0)):
        replica = Replicas()
        slots = [SECOND, THIRD, *[FIRST] * (SLOTS - 2)]
        slots[SLOT] = SECOND
        replica.placement.grow(slots, 3, {SLOT: 1}, {} if settled else {SLOT: [FIRST]})
        replica.moves.unsettled = {SLOT: [] if settled else [FIRST]}.__getitem__
        replica.applied[FIRST] = 14 if has_log else 0
        replica.moves.has_applied = replica.moves.reached
        replica.moves.arrived(SECOND, 87, arrival)
        place = replica.table.find(QUEUE)
        assert replica.table.get(place, LOG_START) == start
        assert replica.table.get(place, COMMITTED_END) == replica.table.get(place, NEXT_OFFSET) == 6
