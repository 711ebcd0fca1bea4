"""Watches of both kernels against each other, and against a plain model: who is told, and which queues are marked."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernel.fetch.fetch_requests import KERNELS

from mainstem.kernel import COMMITTED_END, ENTRIES, WATCHED, Verdict
from mainstem.model import Outcome, QueueOffsets, QueueSlice, queue_id_of
from mainstem.protocol import codec
from mainstem.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic

both = pytest.mark.parametrize("kernel", KERNELS, ids=["pure", "compiled"])

TOPICS = 3
PARTITIONS = 4
QUEUES = [queue_id_of(topic, partition) for topic in range(TOPICS) for partition in range(PARTITIONS)]


def table_of(kernel: ModuleType) -> Any:
    table = kernel.QueueTable()
    for topic in range(TOPICS):
        table.create(topic, 0, PARTITIONS)
    return table


class Model:
    """The waiting requests and what each waits for, as dictionaries."""

    def __init__(self) -> None:
        self.missing: dict[int, int] = {}
        self.queues: dict[int, set[int]] = {}
        self.fired: set[int] = set()

    def hear(self, queue_id: int, size: int | None) -> set[int]:
        """The watches that fire by so many bytes, or by any change (None)."""
        found = set()
        for number in [number for number, queues in self.queues.items() if queue_id in queues]:
            self.missing[number] -= size or 0
            if number not in self.fired and (size is None or self.missing[number] <= 0):
                found.add(number)
        self.fired |= found
        return found


queues = st.sampled_from(QUEUES)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.sets(queues, max_size=8), st.integers(-1, 60)),
        st.tuples(st.just("end"), st.integers(0, 20), st.none()),
        st.tuples(st.just("committed"), st.lists(st.tuples(queues, st.integers(1, 40)), max_size=6), st.none()),
        st.tuples(st.just("changed"), st.lists(queues, max_size=3), st.none()),
        st.tuples(st.just("topic_gone"), st.integers(0, TOPICS), st.none()),
    ),
    max_size=30,
)


@given(all_steps=steps)
def test_those_are_told_who_wait_for_it(all_steps: list[tuple[str, Any, Any]]) -> None:
    tables = [table_of(kernel) for kernel in KERNELS]
    watches = [kernel.Watches(table) for kernel, table in zip(KERNELS, tables, strict=True)]
    model = Model()
    begun: list[list[Any]] = []
    for what, argument, bytes_min in all_steps:
        told: set[int] = set()
        if what == "begin":
            begun.append([each.begin(dict.fromkeys(argument, 0), bytes_min, len(begun)) for each in watches])
            model.queues[len(begun) - 1] = set(argument)
            model.missing[len(begun) - 1] = max(bytes_min, 1)
        elif what == "end":
            for each, watch in zip(watches, begun[argument] if argument < len(begun) else (), strict=False):
                each.end(watch)
            model.queues.pop(argument, None)
        elif what == "committed":
            for queue_id, size in argument:
                told |= model.hear(queue_id, size)
        else:
            changed = argument if what == "changed" else [queue for queue in QUEUES if queue >> 32 == argument]
            for queue_id in changed:
                told |= model.hear(queue_id, None)
        if what in ("committed", "changed", "topic_gone"):
            for each in watches:
                found = getattr(each, what)(argument)
                assert sorted(found) == sorted(told)
        for each, table in zip(watches, tables, strict=True):
            assert len(each) == sum(map(len, model.queues.values()))
            marked = {queue for queue in QUEUES if table.get(table.find(queue), ENTRIES) & WATCHED}
            assert marked == set().union(*model.queues.values())


@both
def test_a_queue_that_is_further_or_gone_is_not_watched(kernel: ModuleType) -> None:
    table = table_of(kernel)
    watches = kernel.Watches(table)
    table.set(table.find(QUEUES[1]), COMMITTED_END, 5)
    assert watches.begin({QUEUES[0]: 0, QUEUES[1]: 4}, 1, "further") is None
    assert watches.begin({QUEUES[0]: 0, queue_id_of(9, 9): 4}, 1, "gone") is None
    assert len(watches) == 0
    assert not table.get(table.find(QUEUES[0]), ENTRIES) & WATCHED
    assert watches.begin({QUEUES[1]: 5}, 1, "at its end") is not None
    table.drop(0)  # whoever waits for its queues may end its watch all the same
    assert watches.topic_gone(0) == ["at its end"]


@both
def test_the_watch_of_a_dropped_queue_can_be_ended(kernel: ModuleType) -> None:
    table = table_of(kernel)
    watches = kernel.Watches(table)
    watch = watches.begin({QUEUES[0]: 0, QUEUES[5]: 0}, 1, "reader")
    table.drop(0)
    watches.end(watch)
    watches.end(watch)
    assert len(watches) == 0
    assert not table.get(table.find(QUEUES[5]), ENTRIES) & WATCHED


@both
def test_a_plans_queues_are_watched_once_each(kernel: ModuleType) -> None:
    """From the high watermarks that its round found; partitions that were refused are not."""
    asked = tuple(FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=9) for n in (0, 1, 0, 77))
    request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=(FetchTopic(topic="t", partitions=asked),) * 2)
    plan = kernel.scan_fetch(memoryview(codec.write(request, 12)), 0, 12).plan
    table = table_of(kernel)
    watches = kernel.Watches(table)
    topic = kernel.PlannedTopic(1, PARTITIONS, Verdict.OK)

    def round_of(high_watermark: int) -> None:
        plan.begin(lambda key: topic, 100)
        while (read := plan.pending()) is not None:
            offsets = QueueOffsets(0, high_watermark, high_watermark, 1, high_watermark)
            plan.put(QueueSlice(read.queue_id, Outcome.OK, [], offsets, None, high_watermark))

    table.set(table.find(queue_id_of(1, 1)), COMMITTED_END, 5)
    round_of(4)
    assert watches.begin(plan, 1, "behind") is None
    round_of(5)
    plan.release()
    watch = watches.begin(plan, 20, "reader")
    assert len(watches) == 2
    assert watches.committed([(queue_id_of(1, 0), 19)]) == []
    assert watches.committed([(queue_id_of(1, 1), 1)]) == ["reader"]
    watches.end(watch)
    assert len(watches) == 0


@both
def test_many_readers_of_many_queues(kernel: ModuleType) -> None:
    """More watches than there are buckets at first, of queues in no order."""
    table = kernel.QueueTable()
    table.create(1, 0, 1000)
    watches = kernel.Watches(table)
    begun = [
        watches.begin({queue_id_of(1, (7 * reader + n) % 1000): 0 for n in range(50)}, 1, reader)
        for reader in range(200)
    ]
    assert len(watches) == 200 * 50
    told = watches.committed([(queue_id_of(1, 500), 1)])
    assert sorted(told) == [reader for reader in range(200) if (500 - 7 * reader) % 1000 < 50]
    for watch in begun[::2]:
        watches.end(watch)
    assert len(watches) == 100 * 50
    for watch in begun:
        watches.end(watch)
    assert len(watches) == 0
    assert not any(table.get(slot, ENTRIES) & WATCHED for slot in range(1000))
