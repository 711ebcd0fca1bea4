"""The queue table against a dictionary."""

from __future__ import annotations

import numpy
from hypothesis import given
from hypothesis import strategies as st

from mainstem.kernel import (
    CHUNK_SLOTS,
    COMMITTED_END,
    LOG_START,
    NEXT_OFFSET,
    NO_SLOT,
    QUEUE_ID,
    TAIL_LINK,
    QueueTable,
)
from mainstem.model import queue_id_of

changes = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.integers(1, 5), st.integers(1, 40)),
        st.tuples(st.just("drop"), st.integers(1, 5), st.just(0)),
        st.tuples(st.just("set"), st.integers(1, 5), st.integers(0, 39)),
    ),
    max_size=30,
)


@given(changes)
def test_behaves_like_a_dictionary(steps: list[tuple[str, int, int]]) -> None:
    table, model = QueueTable(), {}
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


def test_a_range_may_span_chunks_and_survives_a_dump() -> None:
    table = QueueTable()
    table.create(1, 0, 3)
    table.create(2, 0, CHUNK_SLOTS + 10)
    table.create(2, 0, CHUNK_SLOTS + 20)
    last = queue_id_of(2, CHUNK_SLOTS + 19)
    slot = table.find(last)
    table.set(slot, COMMITTED_END, 5)
    table.set(slot, NEXT_OFFSET, 9)
    table.set(slot, TAIL_LINK, 77)

    copy = QueueTable()
    copy.load(*table.dump())

    assert len(copy) == len(table)
    assert copy.get(copy.find(last), COMMITTED_END) == 5
    assert copy.get(copy.find(last), NEXT_OFFSET) == 5, "what was not committed is not part of a checkpoint"
    assert copy.get(copy.find(last), TAIL_LINK) == 0


def test_slots_of_a_dropped_topic_come_back_empty() -> None:
    table = QueueTable()
    table.create(1, 0, 10)
    table.set(table.find(queue_id_of(1, 3)), COMMITTED_END, 99)
    table.drop(1)
    table.create(2, 0, 10)
    assert {table.get(table.find(queue_id_of(2, partition)), COMMITTED_END) for partition in range(10)} == {0}


def test_what_small_topics_leave_is_room_for_a_large_one() -> None:
    table = QueueTable()
    for topic in range(1, 11):
        table.create(topic, 0, 10)
    used = table.find(queue_id_of(10, 9))
    for topic in (3, 1, 2, 5, 4):
        table.drop(topic)
    table.create(11, 0, 50)
    assert max(table.find(queue_id_of(11, partition)) for partition in range(50)) < used
