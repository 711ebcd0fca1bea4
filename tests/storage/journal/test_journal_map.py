"""Planning splits: slices leave nothing out, take nothing twice, and control blocks are never work."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from mainstem.storage.journal.encoding.format import KIND_CONTROL, KIND_DATA, BlockHeader, position_of
from mainstem.storage.journal.journal_map import MARK_BYTES, JournalMap

GROUPS = 3
blocks = st.lists(
    st.tuples(st.integers(0, GROUPS - 1), st.booleans(), st.integers(80, MARK_BYTES // 2), st.booleans()),
    max_size=60,
)


def filled(steps: list[tuple[int, bool, int, bool]]) -> tuple[JournalMap, list[BlockHeader]]:
    journal_map = JournalMap(GROUPS)
    headers: list[BlockHeader] = []
    last = [0] * GROUPS
    sequence, offset = 1, 4096
    for number, (group, data, length, roll) in enumerate(steps):
        if roll:
            sequence, offset = sequence + 1, 4096
        last[group] += 1
        kind = KIND_DATA if data else KIND_CONTROL
        header = BlockHeader(kind, group, 1, last[group], length, 0, 0, 0, position_of(sequence, offset), 0, 0, number)
        offset += length
        journal_map.add(header)
        headers.append(header)
    return journal_map, headers


@given(
    blocks,
    st.lists(st.integers(0, 20), min_size=GROUPS, max_size=GROUPS),
    st.integers(1, 8 * MARK_BYTES),
    st.integers(1, 4 * MARK_BYTES),
)
def test_slices_cover_every_data_block_once(
    steps: list[tuple[int, bool, int, bool]], start: list[int], bytes_max: int, slice_bytes: int
) -> None:
    journal_map, headers = filled(steps)
    bound = [sum(1 for header in headers if header.group == group) for group in range(GROUPS)]
    after = {group: min(start[group], bound[group]) for group in range(GROUPS)}
    taken: list[tuple[int, int]] = []
    position = after
    for _ in range(len(headers) + 1):
        upto = journal_map.limit(position, bound, bytes_max)
        if upto == position:
            break
        for stretch in journal_map.stretches(position, upto, slice_bytes):
            within = [
                header
                for header in headers
                if any(first <= header.position and header.end <= end for first, end in stretch.places)
            ]
            for entry in stretch.ranges:
                there = {header.index for header in within if header.group == entry.group}
                assert set(range(entry.after + 1, entry.upto + 1)) <= there, "a block of a range lies elsewhere"
                taken += [
                    (header.group, header.index)
                    for header in within
                    if header.kind == KIND_DATA
                    and header.group == entry.group
                    and entry.after < header.index <= entry.upto
                ]
        position = upto
    expected = [
        (header.group, header.index)
        for header in headers
        if header.kind == KIND_DATA and header.index > after[header.group]
    ]
    assert sorted(taken) == sorted(expected)


@given(blocks)
def test_control_blocks_alone_are_no_work(steps: list[tuple[int, bool, int, bool]]) -> None:
    journal_map, headers = filled([(group, False, length, roll) for group, _data, length, roll in steps])
    bound = [len(headers)] * GROUPS
    after = dict.fromkeys(range(GROUPS), 0)
    assert journal_map.limit(after, bound, 1 << 30) == after
    assert journal_map.stretches(after, after, 1 << 30) == []
    assert all(journal_map.data_after(group, 0) == (0, -1) for group in range(GROUPS))


@given(blocks, st.integers(0, 60), st.integers(0, 60))
def test_a_map_that_came_to_more_write_groups_is_as_if_it_had_always_had_them(
    steps: list[tuple[int, bool, int, bool]], grown_at: int, saved_at: int
) -> None:
    always, headers = filled(steps)
    first = next((number for number, step in enumerate(steps) if step[0] == GROUPS - 1), len(steps))
    journal_map = JournalMap(GROUPS - 1)
    for number, header in enumerate(headers):
        if number == min(first, grown_at):
            journal_map.grow(GROUPS)
        if number == saved_at:  # a start may know of more write groups than the checkpoint, or of fewer
            image = journal_map.dump()
            begun_again = JournalMap(journal_map.groups)
            begun_again.load(image)
            used = any(before.group == GROUPS - 1 for before in headers[:number])
            fewer = JournalMap(GROUPS if used else GROUPS - 1)
            fewer.load(image)
            fewer.grow(GROUPS)
            begun_again.grow(GROUPS)
            assert fewer.dump() == begun_again.dump()
        journal_map.add(header)
    journal_map.grow(GROUPS)
    assert journal_map.dump() == always.dump()
    upto = dict.fromkeys(range(GROUPS), len(headers))
    after = dict.fromkeys(range(GROUPS), 0)
    assert journal_map.stretches(after, upto, MARK_BYTES) == always.stretches(after, upto, MARK_BYTES)


@given(blocks, st.integers(0, 10))
def test_a_dump_restores_the_map_and_dropping_keeps_the_rest(
    steps: list[tuple[int, bool, int, bool]], before: int
) -> None:
    journal_map, headers = filled(steps)
    copy = JournalMap(GROUPS)
    copy.load(journal_map.dump())
    assert copy.dump() == journal_map.dump()
    copy.drop(before)
    kept = [header for header in headers if header.position >= position_of(before, 0)]
    assert [mark.start for mark in copy.dump().marks][:1] == [header.position for header in kept][:1]


@given(blocks.filter(bool), st.integers(0, 59), st.integers(0, 2))
@example([(0, True, 80, False), (0, False, 80, False), (0, True, 80, False)], 2, 0)
@example([(0, True, 80, False), (1, True, 80, True), (0, False, 80, False), (0, True, 80, False)], 3, 2)
def test_the_last_data_block_before_what_a_new_leader_replaced_is_no_control_block(
    steps: list[tuple[int, bool, int, bool]], replaced_from: int, dropped: int
) -> None:
    """However many control blocks are in between: a mark that names one of them stands for data that nobody splits."""
    journal_map, headers = filled(steps)
    journal_map.drop(dropped)
    replaced = headers[replaced_from % len(headers)]
    group, first_index = replaced.group, max(replaced.index, journal_map.pruned(replaced.group) + 1)
    live = [header for header in headers if header.group != group or header.index < first_index]

    def last_data(of: int, blocks: list[BlockHeader]) -> int:
        return max((it.index for it in blocks if it.group == of and it.kind == KIND_DATA), default=0)

    known = last_data(group, [header for header in live if header.position >= position_of(dropped, 0)])
    places = [header.position for header in headers if header not in live]
    journal_map.superseded(group, first_index, places, known)
    for mark in journal_map.dump().marks:
        before = [header for header in live if header.position < mark.end]
        assert mark.last_data == tuple(last_data(of, before) for of in range(GROUPS))
    index = journal_map.dump().marks[-1].last[group] + 1 if journal_map.dump().marks else first_index
    journal_map.add(BlockHeader(KIND_CONTROL, group, 2, index, 80, 0, 0, 0, position_of(99, 4096), 0, 0, 100))
    assert journal_map.dump().marks[-1].last_data[group] == last_data(group, live)


def test_a_cut_begins_a_mark_so_that_lag_is_told_exactly() -> None:
    journal_map = JournalMap(1)
    journal_map.add(BlockHeader(KIND_DATA, 0, 1, 1, 800, 0, 0, 0, position_of(1, 4096), 0, 0, 100))
    journal_map.cut()
    journal_map.add(BlockHeader(KIND_DATA, 0, 1, 2, 160, 0, 0, 0, position_of(1, 4896), 0, 0, 200))
    assert journal_map.data_after(0, 1) == (160, 200)
    assert journal_map.data_after(0, 0) == (960, 100)


def test_what_was_dropped_is_remembered_and_is_no_lag() -> None:
    journal_map = JournalMap(2)
    for index in range(1, 5):
        journal_map.add(BlockHeader(KIND_DATA, 0, 1, index, 800, 0, 0, 0, position_of(index, 4096), 0, 0, index))
    journal_map.add(BlockHeader(KIND_CONTROL, 1, 1, 1, 80, 0, 0, 0, position_of(4, 4896), 0, 0, 9))
    journal_map.drop(3)
    copy = JournalMap(2)
    copy.load(journal_map.dump())
    for same in (journal_map, copy):
        assert (same.pruned(0), same.pruned(1)) == (2, 0)
        assert same.data_after(0, 2) == (1600, 3)
        assert same.indexes_at(position_of(3, 4096), [4, 1]) == [2, 0]
        same.drop(9)
        assert (same.pruned(0), same.pruned(1)) == (4, 1)
        assert same.data_after(0, 4) == (0, -1)
        same.add(BlockHeader(KIND_DATA, 1, 1, 2, 400, 0, 0, 0, position_of(9, 4096), 0, 0, 10))
        assert same.dump().marks[-1].last == (4, 2), "the other group still stands where it stood"
        assert same.data_after(1, 1) == (400, 10)
