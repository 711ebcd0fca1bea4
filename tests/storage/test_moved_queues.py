"""A queue that has been in two write groups is read from both, each for its offsets."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy
import pytest
from tests.storage.queue_store.runs import Batch, write_run
from tests.storage.small_node import QUEUE, SmallNode, new_batch, simulated

from mainstem.kernel import COMMITTED_END, LOG_START, NEXT_OFFSET
from mainstem.model import SLOTS, QueueRead, slot_of
from mainstem.storage.placement import Placement, Stay
from mainstem.storage.reading.offset_lookup import OffsetLookup
from mainstem.storage.reading.read_path import ReadPath
from mainstem.storage.reading.sealed_segments import SealedSegments

OTHER = QUEUE + 1
SLOTS_OF_TWO = [slot % 2 for slot in range(SLOTS)]
HERE = SLOTS_OF_TWO[slot_of(QUEUE)]
"""The write group of the queue's slot."""
BEFORE = 1 - HERE
MOVED_AT = 3
END = 6


def moved() -> Placement:
    return Placement(SLOTS_OF_TWO, {QUEUE: [Stay(BEFORE, 0), Stay(HERE, MOVED_AT)]})


def test_a_queue_that_never_moved_has_one_stay() -> None:
    placement = Placement(SLOTS_OF_TWO)
    assert placement.history(QUEUE) == placement.stays_from(QUEUE, 1 << 40) == (Stay(HERE, 0),)
    assert placement.group_of(QUEUE) == placement.group_at(QUEUE, 0) == placement.group_at(QUEUE, 99) == HERE


def test_a_moved_queue_takes_appends_in_its_last_group_and_is_found_in_all() -> None:
    placement = moved()
    assert placement.history(QUEUE) == (Stay(BEFORE, 0), Stay(HERE, MOVED_AT))
    assert placement.stays_from(QUEUE, MOVED_AT - 1) == placement.history(QUEUE)
    assert placement.stays_from(QUEUE, MOVED_AT) == (Stay(HERE, MOVED_AT),)
    assert placement.group_of(QUEUE) == HERE
    assert [placement.group_at(QUEUE, offset) for offset in range(END)] == [BEFORE] * 3 + [HERE] * 3


def test_the_metadata_says_where_batches_go_and_the_logs_where_they_are() -> None:
    """A replica that lags hears of moves from the metadata before its logs have them."""
    first, second, third = HERE, BEFORE, 2
    slot, queue_ids = slot_of(QUEUE), numpy.array([QUEUE], numpy.uint64)
    placement = Placement(SLOTS_OF_TWO)
    slots = list(SLOTS_OF_TWO)
    slots[slot] = third
    placement.grow(slots, 3, {slot: 2}, {slot: (first, second)})
    assert placement.group_of(QUEUE) == placement.routes_of(queue_ids)[0] == third
    assert placement.history(QUEUE) == (Stay(first, 0),)
    assert placement.groups_of(queue_ids)[0] == first
    assert placement.ever_in(queue_ids, {first})[0]
    assert not placement.ever_in(queue_ids, {third})[0]
    placement.arrive(QUEUE, first, second, MOVED_AT)
    placement.place(slot, second, 1)
    assert placement.group_of(QUEUE) == third
    assert placement.history(QUEUE) == (Stay(first, 0), Stay(second, MOVED_AT))
    placement.arrive(QUEUE, second, third, END)
    placement.place(slot, third, 2)
    assert placement.history(QUEUE)[-1] == Stay(third, END)
    assert placement.groups_of(queue_ids)[0] == third


def test_arrays_of_queues_are_answered_as_each_is() -> None:
    placement = moved()
    queue_ids = numpy.array([QUEUE, OTHER] * END, numpy.uint64)
    offsets = numpy.arange(2 * END, dtype=numpy.int64) // 2
    asked = list(zip(queue_ids.tolist(), offsets.tolist(), strict=True))
    assert placement.groups_of(queue_ids).tolist() == [placement.group_of(queue_id) for queue_id, _ in asked]
    assert placement.groups_at(queue_ids, offsets).tolist() == [placement.group_at(*one) for one in asked]
    pair = numpy.array([QUEUE, OTHER], numpy.uint64)
    other = placement.group_of(OTHER)
    assert placement.ever_in(pair, {BEFORE}).tolist() == [True, other == BEFORE]
    assert placement.ever_in(pair, {HERE}).tolist() == [True, other == HERE]
    assert placement.ever_in(pair, ()).tolist() == [False, False]


def test_many_moved_queues_are_answered_as_each_is() -> None:
    """Arrays answer by rows of all histories, which change as queues move, and as their histories end."""
    rng = random.Random(1)
    placement = Placement([slot % 5 for slot in range(SLOTS)])
    ids = [QUEUE + number for number in range(300)]
    queue_ids = numpy.array(ids, numpy.uint64)
    for _ in range(40):
        for queue_id in rng.sample(ids, 20):
            before = placement.history(queue_id)[-1].group
            away = {stay.group for stay in placement.history(queue_id)}
            end = placement.history(queue_id)[-1].first_offset + rng.randint(0, 9)
            if len(away) < 5 and end:
                placement.arrive(queue_id, before, rng.choice(sorted(set(range(5)) - away)), end)
            elif rng.random() < 0.5:
                placement.cut(queue_id, rng.randint(0, 20))
        offsets = numpy.array([rng.randint(0, 40) for _ in ids], numpy.int64)
        assert placement.groups_of(queue_ids).tolist() == [placement.history(queue_id)[-1].group for queue_id in ids]
        at = [placement.group_at(queue_id, offset) for queue_id, offset in zip(ids, offsets.tolist(), strict=True)]
        assert placement.groups_at(queue_ids, offsets).tolist() == at
        some = rng.sample(ids, 3)
        stays = {stay.group for queue_id in some for stay in placement.history(queue_id)}
        assert placement.ever_of(numpy.array(sorted(some), numpy.uint64)).tolist() == sorted(stays)
        for group in range(5):
            ever = [any(stay.group == group for stay in placement.history(queue_id)) for queue_id in ids]
            assert placement.ever_in(queue_ids, {group}).tolist() == ever
            firsts, ends = placement.bounds_in(group, queue_ids)
            inside = (firsts <= offsets) & (offsets < ends)
            assert inside.tolist() == [it == group for it in at]


def test_the_later_move_counts_whoever_tells_of_it() -> None:
    slot = slot_of(QUEUE)
    placement = Placement([0] * SLOTS)
    placement.grow([0] * SLOTS, 3)
    placement.place(slot, 1, 1)
    assert placement.group_of(QUEUE) == 1, "the metadata has not heard of the move"
    told = [2 if it == slot else 0 for it in range(SLOTS)]
    placement.grow(told, 3, {slot: 2})
    assert placement.group_of(QUEUE) == 2, "the metadata knows of a later move"
    placement.place(slot, 1, 1)
    assert placement.group_of(QUEUE) == 2
    placement.place(slot, 1, 3)
    assert placement.group_of(QUEUE) == 1


@pytest.mark.parametrize(
    "stays", [[Stay(0, 1)], [Stay(0, 0), Stay(1, 5), Stay(0, 5)], [Stay(0, 0), Stay(1, 5), Stay(0, 2)]]
)
def test_a_history_begins_at_the_first_offset_and_goes_on(stays: list[Stay]) -> None:
    with pytest.raises(AssertionError, match="no history"):
        Placement(SLOTS_OF_TWO, {QUEUE: stays})


def stored(offset: int) -> Batch:
    """A batch of one record, as a run has it; its timestamp is a thousand times its offset."""
    data = bytearray(new_batch(QUEUE, 100, timestamp=1000 * offset).data)
    data[:8] = offset.to_bytes(8, "big")
    data[12:16] = (1).to_bytes(4, "big")
    return Batch(QUEUE, offset, offset, 1000 * offset, 1, bytes(data))


async def recorded(node: SmallNode, name: str, offsets: Iterable[int], *groups: int) -> None:
    """Have a node's queue store get a run with these offsets of the queue that counts for these write groups."""
    splits = node.storage.queue_store.splits
    run = write_run(node.disk2, name, [stored(offset) for offset in offsets])
    for group in groups:
        position = splits.split_position(group)
        await splits.record(group, position, position + 1, [run], applied_index=position + 1)


async def with_history(node: SmallNode, first_of_here: int = MOVED_AT) -> tuple[ReadPath, OffsetLookup]:
    """Readers of a node whose queue store has a queue in both write groups, up to `END`."""
    for group, offsets in ((BEFORE, range(MOVED_AT)), (HERE, range(first_of_here, END))):
        await recorded(node, f"of-group-{group}.run", offsets, group)
    return readers(node)


def readers(node: SmallNode) -> tuple[ReadPath, OffsetLookup]:
    storage = node.storage
    slot = storage.table.find(QUEUE)
    for cell in (NEXT_OFFSET, COMMITTED_END):
        storage.table.set(slot, cell, END)
    sealed = SealedSegments(storage.journal, storage.queue_store.cache, storage.index)
    path = ReadPath(
        storage.table, storage.index, storage.journal, sealed, storage.queue_store, moved(), lambda _: 1, storage.pacing
    )
    lookup = OffsetLookup(
        storage.table,
        storage.index,
        storage.journal,
        storage.queue_store.history,
        path,
        moved(),
        storage.record_lookups,
    )  # fmt: skip
    return path, lookup


def two_groups(node: SmallNode) -> None:
    node.groups = 2


async def read_offsets(path: ReadPath, offset: int = 0) -> list[int]:
    found: list[int] = []
    while offset < END:
        part = await path.read(QueueRead(QUEUE, offset, 1 << 20), 1 << 20, True)
        assert part.batches, part
        found += [int.from_bytes(batch[:8], "big") for batch in part.batches]
        offset = part.next_offset
    return found


def test_reads_go_through_the_groups_of_a_queue(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        path, _lookup = await with_history(node)
        assert await read_offsets(path) == list(range(END))
        assert await read_offsets(path, MOVED_AT) == list(range(MOVED_AT, END))
        assert await read_offsets(path, MOVED_AT - 1) == list(range(MOVED_AT - 1, END))

    simulated(tmp_path, story, two_groups)


def test_a_read_goes_on_in_the_next_group_where_the_older_has_nothing(tmp_path: Path) -> None:
    """A gap is passed over as within a write group: what comes next is served."""

    async def story(node: SmallNode) -> None:
        path, _lookup = await with_history(node, MOVED_AT + 1)
        assert await read_offsets(path) == [0, 1, 2, 4, 5]

    simulated(tmp_path, story, two_groups)


def test_timestamps_are_looked_up_in_all_groups_of_a_queue(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        _path, lookup = await with_history(node)
        for offset in range(END):
            found = await lookup.offset_for_timestamp(QUEUE, 1000 * offset)
            assert found is not None
            assert found.offset == offset
        largest = await lookup.offset_for_timestamp(QUEUE, -3)
        assert largest is not None
        assert largest.offset == END - 1

    simulated(tmp_path, story, two_groups)


def test_retention_keeps_a_run_for_a_queue_that_has_moved_away_from_its_group(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await with_history(node)
        store, placement = node.storage.queue_store, moved()

        def starts(at: int) -> object:
            return lambda queue_ids: numpy.full(len(queue_ids), at, numpy.int64)

        assert await store.retention.retain(starts(0), ever_in=placement.ever_in) == []  # type: ignore[arg-type]
        dropped = await store.retention.retain(starts(MOVED_AT), ever_in=placement.ever_in)  # type: ignore[arg-type]
        assert [file.name for file in dropped] == [f"of-group-{BEFORE}.run"]
        node.storage.table.set(node.storage.table.find(QUEUE), LOG_START, MOVED_AT)
        rows = [rows async for rows in store.stored.all_rows(placement.groups_at)]
        assert [row["base_offset"] for part in rows for row in part] != []

    simulated(tmp_path, story, two_groups)


OF_BOTH = {
    "what was before comes again": [([0], [BEFORE]), (range(END), [HERE]), ([1, 2], [BEFORE, HERE])],
    "what came later is split first": [([0, 3, 4], [BEFORE, HERE]), ([1, 2, 5], [BEFORE, HERE])],
}
"""Runs of blocks of two write groups that do not count for both, or have the blocks of one in another order than the
other's: offsets, and the write groups that each counts for."""


@pytest.mark.parametrize("is_forgotten", [False, True], ids=["known", "forgotten"])
@pytest.mark.parametrize("runs", OF_BOTH.values(), ids=OF_BOTH)
def test_what_a_run_has_of_another_stay_hides_nothing(
    tmp_path: Path, runs: list[tuple[Sequence[int], list[int]]], is_forgotten: bool
) -> None:
    """A run may be refused for one of its write groups, as retention has had that one's split move on meanwhile: then
    these blocks come again in a later run. `is_forgotten`: retention has removed all of the first stay, and the queue
    has no history any more."""

    async def story(node: SmallNode) -> None:
        for number, (offsets, groups) in enumerate(runs):
            await recorded(node, f"{number}.run", offsets, *groups)
        path, _lookup = readers(node)
        if is_forgotten:
            path.placement.cut(QUEUE, MOVED_AT)
            path.placement.place(slot_of(QUEUE), HERE, 1)
            node.storage.table.set(node.storage.table.find(QUEUE), LOG_START, MOVED_AT)
        for offset in range(MOVED_AT if is_forgotten else 0, END):
            assert await read_offsets(path, offset) == list(range(offset, END))

    simulated(tmp_path, story, two_groups)


THERE_AND_BACK = [Stay(BEFORE, 0), Stay(HERE, MOVED_AT), Stay(BEFORE, MOVED_AT + 1)]

LOST = {
    "another has what was before, and comes later": (
        [([3, 4], [HERE]), ([5], [HERE]), ([1, 2], [BEFORE, HERE])], moved().history(QUEUE), HERE, [(5, 6)]
    ),
    "another has what came later, and comes before": (
        [([0, 3, 4], [BEFORE, HERE]), ([1, 2, 5], [BEFORE, HERE])], moved().history(QUEUE), BEFORE, [(1, 3)]
    ),
    "what was compacted lies before what another has since the queue is back": (
        [([0, 4], [BEFORE]), ([5], [BEFORE])], THERE_AND_BACK, BEFORE, [(5, 6)]
    ),
}  # fmt: skip
"""Runs as in `OF_BOTH`, of which the second is damaged; the queue's history; a write group, and what it has lost."""


@pytest.mark.parametrize(("runs", "history", "group", "expected"), LOST.values(), ids=LOST)
def test_what_a_damaged_run_has_lost_is_told_by_the_order_of_its_write_group(
    tmp_path: Path,
    runs: list[tuple[Sequence[int], list[int]]],
    history: Sequence[Stay],
    group: int,
    expected: list[tuple[int, int]],
) -> None:
    """Other runs may have offsets of another stay, which are not in that order: they neither hide what was lost, nor
    have offsets made anew that are there."""

    async def story(node: SmallNode) -> None:
        for number, (offsets, groups) in enumerate(runs):
            await recorded(node, f"{number}.run", offsets, *groups)
        path, _lookup = readers(node)
        path.placement.remember(QUEUE, history)
        mending = node.storage.queue_store.mending
        parts = [
            (part.first, min(part.end, END)) for part in path.placement.stretches_from(QUEUE, 0) if part.group == group
        ]
        found = await mending.lost("1.run", group, [(QUEUE, first, end) for first, end in parts], ["1.run"])
        assert found == [(QUEUE, first, end) for first, end in expected]

    simulated(tmp_path, story, two_groups)
