"""The queue table of both kernels against a dictionary, and the two against each other."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mainstem.kernel import (
    CELLS,
    CHUNK_SLOTS,
    COMMITTED_END,
    ENTRIES,
    LOG_START,
    NEXT_OFFSET,
    NO_SLOT,
    QUEUE_ID,
    SKIP_LINK,
    TAIL_LINK,
    QueueTable,
    Range,
    compiled,
    pure,
)
from mainstem.model import queue_id_of

LARGEST = 0xFFFFFFFF


@pytest.fixture(params=[pure, compiled], ids=["pure", "compiled"])
def kernel(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module


changes = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.integers(1, 5), st.integers(1, 40)),
        st.tuples(st.just("drop"), st.integers(1, 5), st.just(0)),
        st.tuples(st.just("set"), st.integers(1, 5), st.integers(0, 39)),
    ),
    max_size=30,
)


@pytest.mark.parametrize("kernel", [pure, compiled], ids=["pure", "compiled"])
@given(steps=changes)
def test_behaves_like_a_dictionary(kernel: ModuleType, steps: list[tuple[str, int, int]]) -> None:
    table: QueueTable = kernel.QueueTable()
    model: dict[tuple[int, int], int] = {}
    for number, (kind, topic, value) in enumerate(steps):
        if kind == "create":
            table.create(topic, 0, value)
            for partition in range(value):
                model.setdefault((topic, partition), 0)
        elif kind == "drop":
            table.drop(topic)
            model = {key: start for key, start in model.items() if key[0] != topic}
        elif (topic, value) in model:
            table.set(table.find(queue_id_of(topic, value)), LOG_START, number)
            model[topic, value] = number
    assert len(table) == len(model)
    for topic in range(1, 6):
        for partition in range(41):
            slot = table.find(queue_id_of(topic, partition))
            if (topic, partition) in model:
                assert table.get(slot, LOG_START) == model[topic, partition]
                assert table.get(slot, QUEUE_ID) == queue_id_of(topic, partition)
            else:
                assert slot == NO_SLOT
    wanted = [queue_id_of(topic, partition) for topic in range(1, 6) for partition in range(41)]
    column = table.column(numpy.array(wanted, numpy.uint64), LOG_START, -7)
    assert column.tolist() == [model.get((queue_id >> 32, queue_id & 0xFFFFFFFF), -7) for queue_id in wanted]


def test_a_range_may_span_chunks_and_survives_a_dump(kernel: ModuleType) -> None:
    table = kernel.QueueTable()
    table.create(1, 0, 3)
    table.create(2, 0, CHUNK_SLOTS + 10)
    table.create(2, 0, CHUNK_SLOTS + 20)
    last = queue_id_of(2, CHUNK_SLOTS + 19)
    slot = table.find(last)
    table.set(slot, COMMITTED_END, 5)
    table.set(slot, NEXT_OFFSET, 9)
    table.set(slot, LOG_START, 3)
    table.set_first_unstable(slot, 4)
    for cell in (TAIL_LINK, SKIP_LINK, ENTRIES):
        table.set(slot, cell, 77)

    copy = kernel.QueueTable()
    copy.load(*table.dump())

    assert len(copy) == len(table)
    assert copy.dump() == table.dump()
    assert [copy.get(copy.find(last), cell) for cell in range(CELLS)] == [last, 5, 5, 3, 0, 0, 5, 0], (
        "neither what was not committed nor what only this process knows is part of a checkpoint"
    )


def test_the_last_stable_offset_is_the_high_watermark_or_where_the_oldest_open_transaction_begins(
    kernel: ModuleType,
) -> None:
    table = kernel.QueueTable()
    table.create(1, 0, 2)
    slot, other = (table.find(queue_id_of(1, partition)) for partition in range(2))
    table.set(slot, COMMITTED_END, 10)
    assert table.last_stable(slot) == 10, "no transaction is open"
    for begins, stable in ((0, 0), (7, 7), (9, 9), (10, 10), (12, 10)):  # from 10 on: it is not committed yet
        table.set_first_unstable(slot, begins)
        assert table.last_stable(slot) == stable
    assert (table.get(slot, COMMITTED_END), table.last_stable(other)) == (10, 0), "nothing else has changed"
    table.set_first_unstable(slot, -1)
    assert table.last_stable(slot) == 10
    for absent in (NO_SLOT, CHUNK_SLOTS):
        with pytest.raises(IndexError):
            table.last_stable(absent)
        with pytest.raises(IndexError):
            table.set_first_unstable(absent, 3)


def test_either_kernel_loads_what_the_other_dumped() -> None:
    tables = [pure.QueueTable(), compiled.QueueTable()]
    for table in tables:
        table.create(9, 0, 4)
        table.create(3, 0, 4)
        table.create(9, 0, 6)
        table.set(table.find(queue_id_of(9, 5)), LOG_START, 11)
    assert tables[0].dump() == tables[1].dump()
    for source, target in (tables, reversed(tables)):
        copy = type(target)()
        copy.load(*source.dump())
        assert copy.get(copy.find(queue_id_of(9, 5)), LOG_START) == 11


def test_a_dump_that_does_not_fit_together_is_refused(kernel: ModuleType) -> None:
    row = bytes(CELLS * 8)
    with pytest.raises(ValueError, match="topic 1: 2 queues, and 64 bytes of slots"):
        kernel.QueueTable().load({1: [Range(0, 2, 0)]}, [row])
    with pytest.raises(ValueError, match="topic 1: 1 queues, and 0 bytes"):
        kernel.QueueTable().load({1: [Range(0, 1, 0), Range(1, 1, 1)]}, [row])
    with pytest.raises(ValueError, match="topic 1: ranges that overlap"):
        kernel.QueueTable().load({1: [Range(0, 2, 0), Range(1, 2, 2)]}, [2 * row, 2 * row])


def test_slots_of_a_dropped_topic_come_back_empty(kernel: ModuleType) -> None:
    table = kernel.QueueTable()
    table.create(1, 0, 10)
    table.set(table.find(queue_id_of(1, 3)), COMMITTED_END, 99)
    table.drop(1)
    table.create(2, 0, 10)
    assert {table.get(table.find(queue_id_of(2, partition)), COMMITTED_END) for partition in range(10)} == {0}


def test_what_small_topics_leave_is_room_for_a_large_one(kernel: ModuleType) -> None:
    table = kernel.QueueTable()
    for topic in range(1, 11):
        table.create(topic, 0, 10)
    used = table.find(queue_id_of(10, 9))
    for topic in (3, 1, 2, 5, 4):
        table.drop(topic)
    table.create(11, 0, 50)
    assert max(table.find(queue_id_of(11, partition)) for partition in range(50)) < used


def test_the_largest_numbers_and_their_signed_forms_find_the_same_queue(kernel: ModuleType) -> None:
    table = kernel.QueueTable()
    for topic in (0, 1 << 31, LARGEST):
        table.create(topic, LARGEST - 3, 3)
    for topic in (0, 1 << 31, LARGEST):
        queue_id = queue_id_of(topic, LARGEST - 1)
        signed = queue_id - (1 << 64) if queue_id >> 63 else queue_id
        slot = table.find(queue_id)
        assert slot != NO_SLOT
        assert table.find(signed) == slot
        assert table.get(slot, QUEUE_ID) == signed
        assert table.find(queue_id + 1) == NO_SLOT
        assert table.column(numpy.array([queue_id], numpy.uint64), QUEUE_ID, 5).tolist() == [signed]
        assert table.column(numpy.array([signed], numpy.int64), QUEUE_ID, 5).tolist() == [signed]
    assert table.topics() == [0, 1 << 31, LARGEST]
    with pytest.raises(AssertionError):
        table.create(LARGEST + 1, 0, 1)
    with pytest.raises(AssertionError):
        table.create(1, LARGEST, 1)
    assert len(table) == 9


def test_what_lies_outside_of_the_table_is_refused(kernel: ModuleType) -> None:
    table = kernel.QueueTable()
    with pytest.raises(IndexError):
        table.get(0, LOG_START)
    table.create(1, 0, 1)
    for slot, cell in ((NO_SLOT, 0), (CHUNK_SLOTS, 0), (0, CELLS), (0, -1)):
        with pytest.raises(IndexError):
            table.get(slot, cell)
        with pytest.raises(IndexError):
            table.set(slot, cell, 1)
    for slot in (NO_SLOT, CHUNK_SLOTS):
        with pytest.raises(IndexError):
            table.cells(slot)
    with pytest.raises(IndexError):
        table.column(numpy.array([1 << 32], numpy.uint64), CELLS, 0)
    assert table.column(numpy.array([], numpy.uint64), LOG_START, 0).tolist() == []


def test_cells_stay_where_they_are_while_the_table_grows(kernel: ModuleType) -> None:
    table = kernel.QueueTable()
    table.create(1, 0, 2)
    cells, base = table.cells(1)
    for topic in range(2, 2000):
        table.create(topic, 0, 100)
    cells[base + LOG_START] = 42
    assert table.get(table.find(queue_id_of(1, 1)), LOG_START) == 42
    assert all(table.ranges(topic)[0].first_slot == 100 * topic - 198 for topic in range(2, 2000))
    for topic in range(2, 2000, 2):
        table.drop(topic)
    assert table.topics() == [1, *range(3, 2000, 2)]
    assert all(table.find(queue_id_of(topic, 99)) == 100 * topic - 99 for topic in range(3, 2000, 2))


topics = st.sampled_from([0, 1, 2, 3, 4, 5, 64, 128, 1 << 20, 1 << 31, LARGEST])


class Twins(RuleBasedStateMachine):
    """The same calls on both tables: the same answers and the same slots."""

    @initialize()
    def start(self) -> None:
        self.pure, self.compiled = pure.QueueTable(), compiled.QueueTable()

    def both(self, name: str, *arguments: Any) -> Any:
        answers = [getattr(table, name)(*arguments) for table in (self.pure, self.compiled)]
        assert answers[0] == answers[1], (name, arguments)
        return answers[0]

    @rule(topic=topics, first=st.integers(0, 30), count=st.integers(-1, 40))
    def create(self, topic: int, first: int, count: int) -> None:
        self.both("create", topic, first, count)

    @rule(first=st.integers(6, 60), count=st.integers(1, 70), partitions=st.integers(1, 3))
    def create_many(self, first: int, count: int, partitions: int) -> None:
        """So that the hash table grows."""
        for topic in range(first, first + count):
            self.both("create", topic, 0, partitions)

    @rule(topic=topics)
    def drop(self, topic: int) -> None:
        self.both("drop", topic)

    @rule(first=st.integers(6, 60), step=st.integers(1, 5))
    def drop_many(self, first: int, step: int) -> None:
        for topic in range(first, 130, step):
            self.both("drop", topic)

    @rule(topic=topics, partition=st.integers(0, 60), cell=st.integers(1, CELLS - 1), value=st.integers(-9, 9))
    def set(self, topic: int, partition: int, cell: int, value: int) -> None:
        slot = self.both("find", queue_id_of(topic, partition))
        if slot != NO_SLOT:
            self.both("set", slot, cell, value)
            assert self.both("get", slot, cell) == value
            self.both("last_stable", slot)

    @rule()
    def restart(self) -> None:
        for name in ("pure", "compiled"):
            table = getattr(self, name)
            copy = type(table)()
            copy.load(*table.dump())
            setattr(self, name, copy)

    @rule(cell=st.integers(0, CELLS - 1), order=st.randoms(use_true_random=False))
    def column(self, cell: int, order: Any) -> None:
        wanted = [queue_id_of(topic, partition) for topic in (0, 1, 7, 64, LARGEST) for partition in range(45)]
        order.shuffle(wanted)
        columns = [t.column(numpy.array(wanted, numpy.uint64), cell, -77) for t in (self.pure, self.compiled)]
        assert columns[0].tolist() == columns[1].tolist()

    @invariant()
    def same(self) -> None:
        if hasattr(self, "pure"):
            self.both("__len__")
            self.both("dump")


TestTwins = Twins.TestCase
