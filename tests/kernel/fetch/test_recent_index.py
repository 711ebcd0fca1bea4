"""The in-memory index of both kernels, against a plain list per queue, whatever is cached, evicted or released."""

from __future__ import annotations

import gc
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mainstem.kernel.compiled as compiled
import mainstem.kernel.pure as pure
from mainstem.kernel import COMMITTED_END
from mainstem.kernel.layout import ENTRIES, ONE_ENTRY, ROW_BYTES, SKIP_EVERY, WATCHED
from mainstem.model import BatchAppend, queue_id_of
from mainstem.storage.journal.encoding.format import (
    BLOCK_HEADER_BYTES,
    DIRECTORY_ROW_BYTES,
    KIND_DATA,
    BlockHeader,
    aligned,
)

QUEUES = 3

both = pytest.mark.parametrize("kernel", [pure, compiled], ids=["pure", "compiled"])


class Filler:
    """Adds blocks with batches of one or more records and remembers every batch per queue."""

    def __init__(self, kernel: ModuleType, cache_bytes: int) -> None:
        self.kernel = kernel
        self.arena = kernel.Arena(1000)
        self.table = kernel.QueueTable()
        self.table.create(1, 0, QUEUES)
        self.index = kernel.RecentIndex(self.table, cache_bytes)
        self.next = [0] * QUEUES
        self.batches: list[list[tuple[int, int, int]]] = [[] for _ in range(QUEUES)]
        self.position = 4096
        self.count = 0

    def add(self, partitions: list[int], records: int) -> None:
        builder = self.kernel.BlockBuilder(self.arena)
        for partition in partitions:
            data = bytearray(61 + self.count % 50)
            if not builder.fits(len(data)):
                continue
            batch = BatchAppend(queue_id_of(1, partition), memoryview(data), records, records - 1, 5, -1, -1, -1, 0, 0)
            base = self.next[partition]
            builder.add(batch, base, 1)
            self.next[partition] = base + records
            self.table.set(self.table.find(queue_id_of(1, partition)), COMMITTED_END, base + records)
            self.batches[partition].append((base, base + records - 1, self.position))
        self.count += 1
        length = aligned(BLOCK_HEADER_BYTES + DIRECTORY_ROW_BYTES * builder.batch_count + len(builder.payload))
        header = BlockHeader(
            KIND_DATA,
            0,
            1,
            self.count,
            length,
            builder.batch_count,
            len(builder.payload),
            0,
            self.position,
            0,
            0,
            0,
        )
        self.position = header.end
        self.index.add(header, builder.directory, builder.payload)


@both
def test_a_blocks_rows_are_copied_as_they_lie(kernel: ModuleType) -> None:
    filler = Filler(kernel, cache_bytes=0)
    filler.add([0, 1, 2, 1], records=2)
    filler.add([], records=1)
    one, none = filler.index.blocks()
    assert one.rows_copied() == bytes(one.cells)
    assert len(one.rows_copied()) == 4 * DIRECTORY_ROW_BYTES
    assert none.rows_copied() == b""


@both
def test_no_entry_behind_a_gap_is_given_with_those_before_it(kernel: ModuleType) -> None:
    """Blocks that a snapshot stands for are not indexed: what lies between is in files."""
    filler = Filler(kernel, cache_bytes=1 << 20)
    slot = filler.table.find(queue_id_of(1, 0))
    filler.add([0, 0], records=2)
    filler.next[0] = 50
    filler.add([0, 0, 0], records=2)

    def bases(offset: int) -> list[int]:
        return [entry.base_offset for entry in filler.index.window(slot, offset)]

    assert (bases(0), bases(2), bases(51)) == ([0, 2], [2], [50, 52, 54])
    assert bases(4) == bases(30) == [50, 52, 54], "the caller sees that the first begins behind the offset"
    stretches, position = filler.index.read(slot, 0, 1 << 20, whole_first=False)
    assert position == 4
    assert filler.index.read(slot, 4, 1 << 20, whole_first=False) is None
    assert filler.index.read(slot, 50, 1 << 20, whole_first=False)[1] == 56
    assert sum(map(len, stretches)) == 2 * 61


def test_the_garbage_collector_visits_neither_blocks_nor_their_headers() -> None:
    """There are thousands of them each second, and none is garbage."""
    before = gc.get_objects()  # of other tests, perhaps released; held, so that no id is given twice
    known = set(map(id, before))
    filler = Filler(compiled, cache_bytes=0)
    filler.add([0, 1], records=1)
    (block,) = filler.index.blocks()
    assert block.header.batch_count == 2
    assert not gc.is_tracked(block)
    assert not gc.is_tracked(block.header)
    watched = [one for one in gc.get_objects() if id(one) not in known]
    assert not [one for one in watched if type(one) is memoryview and one.nbytes == 2 * DIRECTORY_ROW_BYTES]


def test_the_garbage_collector_visits_nothing_for_cached_payloads() -> None:
    filler = Filler(compiled, cache_bytes=1 << 20)
    filler.add([0], records=1)  # the arena has its chunk from now on
    gc.collect()
    before = gc.get_objects()
    known = set(map(id, before))
    for _ in range(5):
        filler.add([0, 1], records=1)
    gathered = [one for one in gc.get_objects() if id(one) not in known and one is not before]
    assert not [one for one in gathered if type(one).__name__ in ("memoryview", "managedbuffer")]
    assert all(block.payload is not None for block in filler.index.blocks())


@both
@pytest.mark.parametrize("whole", [bytes(range(200)), bytearray(range(200))], ids=["bytes", "bytearray"])
def test_a_payload_that_lies_inside_other_bytes_is_read_from_where_it_lies(kernel: ModuleType, whole: Any) -> None:
    filler = Filler(kernel, cache_bytes=0)
    filler.add([0, 0], records=1)
    (block,) = filler.index.blocks()
    table = kernel.QueueTable()
    table.create(1, 0, QUEUES)
    slot = table.find(queue_id_of(1, 0))
    table.set(slot, COMMITTED_END, 2)
    index = kernel.RecentIndex(table, 1 << 20)
    index.add(block.header, block.rows_copied(), memoryview(whole)[20:142])
    (added,) = index.blocks()
    assert added.payload == whole[20:142]
    assert index.read(slot, 1, 1 << 20, False) == ([whole[81:142]], 2)


def test_a_header_that_might_be_part_of_a_cycle_stays_with_the_garbage_collector() -> None:
    class Header(NamedTuple):
        end: int
        batch_count: int
        more: list[object]

    header = Header(100, 0, [])
    header.more.append(header)
    compiled.RecentIndex(compiled.QueueTable(), 0).add(header, b"", None)
    assert gc.is_tracked(header)


blocks_of_batches = st.lists(
    st.tuples(st.lists(st.integers(0, QUEUES - 1), min_size=1, max_size=8), st.integers(1, 3)),
    min_size=1,
    max_size=120,
)


@both
@given(
    blocks_of_batches,
    st.integers(0, 3000),
    st.floats(0, 1),
)
def test_windows_hold_what_was_added(
    kernel: ModuleType, blocks: list[tuple[list[int], int]], cache_bytes: int, released: float
) -> None:
    filler = Filler(kernel, cache_bytes)
    for partitions, records in blocks:
        filler.add(partitions, records)
    filler.index.release(4096 + int((filler.position - 4096) * released))
    assert filler.index.cached_bytes <= cache_bytes
    first = filler.index.first_position()
    indexed = list(filler.index.blocks())
    ends = [4096, *(block.header.end for block in indexed), filler.position]
    start, stop = ends[len(ends) // 3], ends[2 * len(ends) // 3]
    between = [block for block in indexed if start < block.header.end <= stop]
    assert filler.index.blocks_between(start, stop) == between
    for partition in range(QUEUES):
        slot = filler.table.find(queue_id_of(1, partition))
        known = [batch for batch in filler.batches[partition] if first is not None and batch[2] >= first]
        for offset in range(filler.next[partition] + 1):
            expected = [batch[:2] for batch in known if batch[1] >= offset]
            window = [(entry.base_offset, entry.last_offset) for entry in filler.index.window(slot, offset)]
            assert window == expected[: len(window)]
            assert bool(window) == bool(expected)
            assert len(window) <= 129


@both
def test_a_long_queue_is_read_window_by_window(kernel: ModuleType) -> None:
    filler = Filler(kernel, 1 << 20)
    for _ in range(700):
        filler.add([0, 1, 0], 2)
    slot = filler.table.find(queue_id_of(1, 0))
    offset, seen = 0, []
    while window := filler.index.window(slot, offset):
        seen += [(entry.base_offset, entry.last_offset) for entry in window]
        offset = window[-1].last_offset + 1
    assert seen == [batch[:2] for batch in filler.batches[0]]


@both
def test_views_outlive_the_cache(kernel: ModuleType) -> None:
    filler = Filler(kernel, 100)
    filler.add([0], 1)
    entry = filler.index.window(filler.table.find(queue_id_of(1, 0)), 0)[0]
    assert entry.block.payload is not None
    view = entry.block.payload[entry.position : entry.position + entry.length]
    before = bytes(view)
    for _ in range(10):
        filler.add([1], 1)
    assert entry.block.payload is None
    assert bytes(view) == before


@given(
    blocks_of_batches,
    st.integers(0, 3000),
    st.lists(
        st.tuples(st.integers(0, QUEUES - 1), st.integers(0, 200), st.integers(0, 2000), st.booleans()),
        max_size=30,
    ),
)
def test_both_read_the_same(
    blocks: list[tuple[list[int], int]], cache_bytes: int, reads: list[tuple[int, int, int, bool]]
) -> None:
    fillers = [Filler(kernel, cache_bytes) for kernel in (pure, compiled)]
    for partitions, records in blocks:
        for filler in fillers:
            filler.add(partitions, records)
    assert fillers[0].index.cached_bytes == fillers[1].index.cached_bytes
    for partition, offset, budget, whole_first in reads:
        found = [
            filler.index.read(filler.table.find(queue_id_of(1, partition)), offset, budget, whole_first)
            for filler in fillers
        ]
        plain = [answer and ([bytes(view) for view in answer[0]], answer[1]) for answer in found]
        assert plain[0] == plain[1]


@both
def test_neighbours_come_back_as_one_view(kernel: ModuleType) -> None:
    filler = Filler(kernel, 1 << 20)
    filler.add([0, 0, 1, 0], 1)
    slot = filler.table.find(queue_id_of(1, 0))
    views, next_offset = filler.index.read(slot, 0, 1 << 20, False)
    assert [len(view) for view in views] == [122, 61]
    assert next_offset == 3
    assert filler.index.read(slot, 0, 100, False) == ([filler.index.window(slot, 0)[0].block.payload[:61]], 1)
    assert filler.index.read(slot, 0, 10, False) == ([], 0), "nothing fits"
    assert filler.index.read(slot, 3, 100, True) is None, "nothing is there yet"


@pytest.mark.parametrize("offset", [0, 1, 63, 4000, 8191, 10_000])
def test_a_read_of_many_windows(offset: int) -> None:
    """More than the skip links that the compiled kernel remembers from its way to the first window."""
    fillers = [Filler(kernel, 1 << 24) for kernel in (pure, compiled)]
    for filler in fillers:
        filler.arena = filler.kernel.Arena(1 << 16)
        for _ in range(50):
            filler.add([0, 0, 1] * 100, 2)
    found = [
        filler.index.read(filler.table.find(queue_id_of(1, 0)), offset, budget, True)
        for filler in fillers
        for budget in (1 << 24, 300_000)
    ]
    plain = [answer and ([bytes(view) for view in answer[0]], answer[1]) for answer in found]
    assert plain[:2] == plain[2:]
    assert found[0] is not None
    assert found[0][1] == fillers[0].next[0]
    assert len(fillers[0].batches[0]) > SKIP_EVERY * 64


@both
def test_nobody_can_take_the_payload_away(kernel: ModuleType) -> None:
    filler = Filler(kernel, 1 << 20)
    filler.add([0], 1)
    slot = filler.table.find(queue_id_of(1, 0))
    payload = filler.index.window(slot, 0)[0].block.payload
    assert payload is not None
    expected = bytes(payload)
    if kernel is compiled:  # the other one's memory is safe without
        payload.release()
    found = filler.index.read(slot, 0, 1 << 20, True)
    assert found is not None
    assert b"".join(map(bytes, found[0])) == expected


def test_directories_have_their_rows() -> None:
    filler = Filler(compiled, 1 << 20)

    class Header(NamedTuple):
        batch_count: int
        position: int = 4096
        end: int = 8192

    for batch_count in (2, -1, 1 << 24):
        with pytest.raises(ValueError, match="batches"):
            filler.index.add(Header(batch_count), bytes(ROW_BYTES), None)
    filler.index.add(Header(1), bytes(ROW_BYTES), None)
    assert len(filler.index) == 1


@both
def test_watchers_come_and_go_without_a_change_to_what_is_found(kernel: ModuleType) -> None:
    """Whether somebody waits for a queue stands beside the count of its entries, which decides on skip links."""
    filler = Filler(kernel, 0)
    slot = filler.table.find(queue_id_of(1, 0))
    for number in range(3 * SKIP_EVERY + 5):
        if number % 3 != 2:
            filler.table.set(slot, ENTRIES, filler.table.get(slot, ENTRIES) ^ WATCHED)
        watched = filler.table.get(slot, ENTRIES) & WATCHED
        filler.add([0], 1)
        assert filler.table.get(slot, ENTRIES) == (number + 1) * ONE_ENTRY | watched
    offset, seen = 0, []
    while window := filler.index.window(slot, offset):
        seen += [(entry.base_offset, entry.last_offset) for entry in window]
        offset = window[-1].last_offset + 1
    assert seen == [batch[:2] for batch in filler.batches[0]]
