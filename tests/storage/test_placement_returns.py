"""Queues that have returned to a write group: which offsets are in its log, and which others lie between them."""

from __future__ import annotations

import numpy

from mainstem.model import SLOTS, slot_of
from mainstem.storage.extents.extent_format import EXTENT_ROW
from mainstem.storage.extents.offset_gaps import NO_GAPS, OffsetGaps, joined_gaps, unpacked
from mainstem.storage.placement import ENDLESS, Placement, Stay, StayPart

QUEUE, SECOND, STILL = 1 << 32, 2 << 32, 3 << 32
HOME, AWAY, FAR = 0, 1, 2


def returned() -> Placement:
    placement = Placement([HOME] * SLOTS)
    placement.grow([HOME] * (SLOTS - 2) + [AWAY, FAR], 3)
    placement.arrive(QUEUE, HOME, AWAY, 10)
    placement.arrive(QUEUE, AWAY, HOME, 20)
    placement.arrive(QUEUE, HOME, FAR, 30)
    placement.arrive(QUEUE, FAR, AWAY, 40)
    placement.arrive(QUEUE, AWAY, HOME, 50)
    placement.arrive(SECOND, HOME, AWAY, 7)
    placement.arrive(SECOND, AWAY, HOME, 9)
    return placement


def rows_of(*extents: tuple[int, int]) -> numpy.ndarray:
    rows = numpy.zeros(len(extents), EXTENT_ROW)
    rows["queue_id"], rows["base_offset"] = zip(*extents, strict=True)
    return rows


def test_each_offset_is_in_the_stay_that_has_it() -> None:
    placement = returned()
    assert list(placement.stretches_from(QUEUE, 25)) == [
        StayPart(HOME, 25, 30), StayPart(FAR, 30, 40), StayPart(AWAY, 40, 50), StayPart(HOME, 50, ENDLESS),
    ]  # fmt: skip
    assert list(placement.stretches_from(STILL, 5)) == [StayPart(HOME, 5, ENDLESS)]
    assert [placement.group_at(QUEUE, offset) for offset in (9, 10, 20, 35, 40, 99)] == [
        HOME, AWAY, HOME, FAR, AWAY, HOME,
    ]  # fmt: skip


def test_a_queue_that_had_no_record_elsewhere_has_a_new_stay_all_the_same() -> None:
    placement = Placement([HOME, AWAY] * (SLOTS // 2))
    home = placement.group_of(QUEUE)
    queue_ids = numpy.array([QUEUE], numpy.uint64)
    for _ in range(2):  # an arrival that is applied again changes nothing
        placement.arrive(QUEUE, home, 1 - home, 10)
        assert placement.history(QUEUE) == (Stay(home, 0), Stay(1 - home, 10))
        placement.arrive(QUEUE, 1 - home, home, 10)
        assert placement.history(QUEUE) == (Stay(home, 0), Stay(home, 10)), "snapshots tell by this that it is back"
    assert placement.gaps_in(home, queue_ids) is NO_GAPS
    placement.cut(QUEUE, 10)
    assert placement.history(QUEUE) == (Stay(home, 0),)
    assert not placement.moved


def test_what_others_have_between_two_stays_is_no_part_of_a_write_group() -> None:
    placement = returned()
    queue_ids = numpy.array([QUEUE, SECOND, STILL], numpy.uint64)
    firsts, ends = placement.bounds_in(HOME, queue_ids)
    assert (firsts.tolist(), ends.tolist()) == ([0, 0, 0], [ENDLESS] * 3)
    gaps = placement.gaps_in(HOME, queue_ids)
    assert list(zip(*(column.tolist() for column in gaps), strict=True)) == [
        (QUEUE, 10, 20), (QUEUE, 30, 50), (SECOND, 7, 9),
    ]  # fmt: skip
    rows = rows_of((QUEUE, 9), (QUEUE, 10), (QUEUE, 20), (QUEUE, 35), (QUEUE, 50), (SECOND, 7), (SECOND, 9), (STILL, 8))
    assert gaps.cover(rows).tolist() == [False, True, False, True, False, True, False, False]
    assert placement.gaps_in(AWAY, queue_ids) == OffsetGaps(*(numpy.array(values) for values in ([QUEUE], [20], [40])))
    assert placement.gaps_in(FAR, queue_ids) is NO_GAPS


def test_gaps_are_told_and_joined() -> None:
    gaps = returned().gaps_in(HOME, numpy.array([QUEUE, SECOND], numpy.uint64))
    told = unpacked(gaps.packed())
    assert [column.tolist() for column in told] == [column.tolist() for column in gaps]
    alone = [
        OffsetGaps(gaps.queue_ids[at : at + 1], gaps.firsts[at : at + 1], gaps.ends[at : at + 1]) for at in (2, 1, 0)
    ]
    assert [column.tolist() for column in joined_gaps([NO_GAPS, *alone])] == [column.tolist() for column in gaps]
    assert not NO_GAPS.cover(rows_of((QUEUE, 1))).any()
    assert not len(unpacked(b"").queue_ids)


def test_no_slot_is_taken_for_another() -> None:
    assert len({slot_of(queue) for queue in (QUEUE, SECOND, STILL)}) > 1
