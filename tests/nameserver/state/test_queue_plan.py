"""A queue goes to another write group only where nothing else helps a node that is too busy, and where that does."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from mainstem.model import Location, slot_of
from mainstem.nameserver.state.plans.drain_plan import keeps_apart
from mainstem.nameserver.state.plans.load_plan import (
    BAND,
    GAIN,
    LoadModel,
    Loads,
    NodeMeasure,
    WriteGroupTraffic,
)
from mainstem.nameserver.state.plans.queue_plan import (
    SHIFTS_MAX,
    TARGETS_MAX,
    QueueShift,
    plan_queue_shifts,
)
from mainstem.rpc.messages.loads import ToldQueuePart

MB = 1e6
IDLE = NodeMeasure(0.0, 0.0, True)
APART = partial(keeps_apart, dict.fromkeys(range(1, 10), Location()))

FIRST, SECOND = 1 << 32, 1 << 32 | 1
"""Queues of one topic, in slots of their own."""


def slots(**groups: int) -> list[int]:
    """The write group of each slot: 0, but for those of these queues."""
    found = [0] * 4096
    for queue, group in groups.items():
        found[slot_of(int(queue.removeprefix("q")))] = group
    return found


TRIO = {0: (1, 2, 3), 1: (2, 3, 1), 2: (3, 1, 2)}


def loads(*rates: float) -> Loads:
    """Write groups that take in so much, which nobody reads."""
    return Loads(dict.fromkeys((1, 2, 3), IDLE), {group: WriteGroupTraffic(rate) for group, rate in enumerate(rates)})


def test_one_of_two_busy_queues_goes_to_the_idlest_write_group_of_another_leader() -> None:
    busiest = {0: [ToldQueuePart(FIRST, 0.5), ToldQueuePart(SECOND, 0.4)]}
    first, *others = plan_queue_shifts(TRIO, loads(90 * MB, 5 * MB, 6 * MB), busiest, slots(), APART)
    assert (first.old, first.new, first.node, first.copies) == (0, 1, 1, False)
    assert first.queue_id in (FIRST, SECOND)
    assert first.why == (
        "sent on node 1 180.0 MB/s, the mean 67.3 MB/s, and it brings 50 % of write group 0; afterwards 90.0 MB/s"
    )
    assert len(others) == 3, "two queues, to each of the other write groups"


SIX = {**TRIO, 3: (1, 3, 2), 4: (2, 1, 3), 5: (3, 2, 1)}


def test_a_queue_that_may_be_refused_leaves_room_for_others() -> None:
    busiest = {0: [ToldQueuePart(FIRST, 0.5), ToldQueuePart(SECOND, 0.3)]}
    found = plan_queue_shifts(SIX, loads(90 * MB, 5 * MB, 6 * MB), busiest, slots(), APART)
    assert [it.queue_id for it in found] == [FIRST] * TARGETS_MAX + [SECOND] * TARGETS_MAX
    assert len(set(found)) == len(found)


def test_queues_of_the_next_busy_node_come_behind_those_of_the_busiest() -> None:
    placements = {group: (group + 1,) for group in range(5)}
    busy = Loads(
        dict.fromkeys(range(1, 6), IDLE),
        {group: WriteGroupTraffic(rate * MB) for group, rate in enumerate((90, 80, 2, 2, 2))},
    )
    busiest = {0: [ToldQueuePart(FIRST, 0.5)], 1: [ToldQueuePart(SECOND, 0.5)]}
    found = plan_queue_shifts(placements, busy, busiest, slots(**{f"q{SECOND}": 1}), APART)
    assert [(it.queue_id, it.node) for it in found] == [(FIRST, 1)] * TARGETS_MAX + [(SECOND, 2)] * TARGETS_MAX
    many = {group: [ToldQueuePart(number << 32 | group, 0.3) for number in range(1, 9)] for group in (0, 1)}
    where = slots(**{f"q{it.queue_id}": 1 for it in many[1]})
    assert len(plan_queue_shifts(placements, busy, many, where, APART)) == SHIFTS_MAX


def test_a_queue_that_rests_is_passed_over_for_the_next_best() -> None:
    busiest = {0: [ToldQueuePart(FIRST, 0.5), ToldQueuePart(SECOND, 0.3)]}
    busy = loads(90 * MB, 5 * MB, 6 * MB)
    found = plan_queue_shifts(TRIO, busy, busiest, slots(), APART, {slot_of(FIRST)})
    assert [it.queue_id for it in found] == [SECOND, SECOND, FIRST, FIRST]


def test_nodes_without_room_copy_nothing_for_a_queue() -> None:
    placements = {0: (1,), 1: (2,), 2: (3,)}
    nodes = {1: IDLE, 2: IDLE._replace(has_room=False), 3: IDLE}
    busy = Loads(nodes, {0: WriteGroupTraffic(90 * MB), 2: WriteGroupTraffic(5 * MB)})
    (shift,) = plan_queue_shifts(placements, busy, {0: [ToldQueuePart(FIRST, 0.5)]}, slots(), APART)
    assert (shift.new, shift.copies) == (2, True)
    full = Loads(dict.fromkeys((1, 2), IDLE._replace(has_room=False)), {0: WriteGroupTraffic(90 * MB)})
    (shift,) = plan_queue_shifts({0: (1, 2), 1: (2, 1)}, full, {0: [ToldQueuePart(FIRST, 0.5)]}, slots(), APART)
    assert (shift.new, shift.copies) == (1, False), "nothing is copied"


def test_a_queue_that_is_all_that_its_write_group_has_stays() -> None:
    assert (
        plan_queue_shifts(TRIO, loads(90 * MB, 5 * MB, 6 * MB), {0: [ToldQueuePart(FIRST, 1.0)]}, slots(), APART) == []
    )


def test_nothing_moves_where_no_node_is_too_busy() -> None:
    assert (
        plan_queue_shifts(TRIO, loads(30 * MB, 29 * MB, 31 * MB), {0: [ToldQueuePart(FIRST, 0.5)]}, slots(), APART)
        == []
    )


def test_a_leader_changes_before_a_queue_moves() -> None:
    placements = {**TRIO, 3: (1, 2, 3)}
    busy = loads(40 * MB, 1 * MB, 1 * MB, 40 * MB)
    assert plan_queue_shifts(placements, busy, {0: [ToldQueuePart(FIRST, 0.5)]}, slots(), APART) == []


def test_a_queue_that_is_not_in_the_write_group_any_more_is_no_candidate() -> None:
    moved = slots(**{f"q{FIRST}": 1})
    busy = loads(90 * MB, 5 * MB, 6 * MB)
    assert plan_queue_shifts(TRIO, busy, {0: [ToldQueuePart(FIRST, 0.5)]}, moved, APART) == []


def test_write_groups_with_another_number_of_replicas_take_nothing_and_those_on_other_nodes_come_last() -> None:
    placements = {0: (1, 2), 1: (2, 1), 2: (3, 4), 3: (3,)}
    busy = Loads(
        dict.fromkeys((1, 2, 3, 4), IDLE),
        {0: WriteGroupTraffic(90 * MB), 1: WriteGroupTraffic(3 * MB), 2: WriteGroupTraffic(90 * MB)},
    )
    found = plan_queue_shifts(placements, busy, {0: [ToldQueuePart(FIRST, 0.5)]}, slots(), APART)
    assert {it.new for it in found} <= {1, 2}
    assert sorted(found, key=lambda it: it.copies) == found


@given(
    st.lists(st.floats(0, 200 * MB), min_size=3, max_size=3),
    st.dictionaries(st.integers(0, 2), st.floats(0.1, 1.0), min_size=1),
)
def test_each_shift_makes_the_fullest_of_its_nodes_lighter(rates: list[float], parts: dict[int, float]) -> None:
    queues = {group: group + 1 << 32 for group in parts}
    busiest = {group: [ToldQueuePart(queues[group], part)] for group, part in parts.items()}
    where = slots(**{f"q{queue}": group for group, queue in queues.items()})
    before = loads(*rates)
    model = LoadModel(before, TRIO)
    values = model.values(TRIO)
    for shift in plan_queue_shifts(TRIO, before, busiest, where, APART):
        moved = rates[shift.old] * parts[shift.old]
        after = list(rates)
        after[shift.old] -= moved
        after[shift.new] += moved
        then = LoadModel(loads(*after), TRIO)
        fuller = max(map(model.load, then.values(TRIO).values()))
        assert model.load(values[shift.node]) > 1 + BAND
        assert fuller <= model.load(values[shift.node]) - GAIN + 1e-6
        assert shift == QueueShift(shift.queue_id, shift.old, shift.new, shift.node, False, shift.why)
