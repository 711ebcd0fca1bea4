"""Each allocation of the compiled kernel fails once. The operation may be lost, the object stays sound: its parts still
fit together, and it goes on. Under the sanitizers (tools/sanitize) this looks for memory that is lost or used after it
was given back."""

from __future__ import annotations

import _testcapi  # type: ignore[import-not-found]  # CPython's own way to make allocations fail
import struct
from array import array
from collections.abc import Callable
from typing import Any

import pytest

import mainstem.kernel.compiled as kernel
from mainstem.kernel.layout import COMMITTED_END, QUEUE_ID
from mainstem.model import SLOTS_OF_ALL, BatchAppend, queue_id_of

FAILURES_MAX = 400
TOPIC = 7
CODES = [0] * 64


def fail_each(make: Callable[[], Any], act: Callable[[Any], None], check: Callable[[Any], None]) -> None:
    """Do the same over and over, with the n-th allocation failing, until nothing fails or it was enough."""
    failed = 0
    for number in range(FAILURES_MAX):
        made = make()
        _testcapi.set_nomemory(number, number + 1)
        try:
            act(made)
        except MemoryError:
            failed += 1
        finally:
            _testcapi.remove_mem_hooks()
        check(made)
    assert failed > FAILURES_MAX // 10


class Place:
    """The fields that the index asks of a block's header."""

    def __init__(self, position: int, batch_count: int) -> None:
        self.position = self.payload_position = position
        self.end = position + 100
        self.batch_count = batch_count


def test_producers() -> None:
    def remember(producers: Any, numbers: range) -> None:
        for number in numbers:
            producers.appended(number, 7 * number, 0, 0, 1, 0, 1, 5)
        for number in numbers:
            producers.applied(number, 7 * number, 0, 0, 1, 0, 1, 5)

    def check(producers: Any) -> None:
        assert len(producers.dump()) == len(producers)
        producers.discard_overlay()
        producers.forget_topics([0])
        assert len(producers) == 0
        remember(producers, range(200))
        assert [row[0] for row in producers.dump()] == list(range(200))

    fail_each(kernel.ProducerStates, lambda producers: remember(producers, range(1500)), check)


def test_queue_table() -> None:
    def act(table: Any) -> None:
        for topic in range(80):
            for count in (3, 5, 7):
                table.create(topic, 0, count)
                table.create(topic + 1, 0, count)
            if topic % 3 == 0:
                table.drop(topic)

    def check(table: Any) -> None:
        queues = [
            queue_id_of(topic, entry.first_partition + number)
            for topic in table.topics()
            for entry in table.ranges(topic)
            for number in range(entry.count)
        ]
        assert [table.get(table.find(queue_id), QUEUE_ID) for queue_id in queues] == queues
        assert len(table) == len(queues)
        for topic in table.topics():
            table.drop(topic)
        assert len(table) == 0

    fail_each(kernel.QueueTable, act, check)


class Index:
    def __init__(self) -> None:
        self.table = kernel.QueueTable()
        self.table.create(TOPIC, 0, 3)
        self.index = kernel.RecentIndex(self.table, 20_000)
        self.ends = [0, 0, 0]
        self.position = 0

    def fill(self) -> None:
        for number in range(25):
            builder = kernel.BlockBuilder(kernel.Arena(4096))
            for batch in range(30):
                queue = (number + batch * batch) % 3
                data = memoryview(bytes(61 + (number * batch) % 50))
                append = BatchAppend(queue_id_of(TOPIC, queue), data, 1, 0, 1, -1, -1, -1, 0, 0, False)
                builder.add(append, self.ends[queue], 1)
                self.ends[queue] += 1
            self.position += 100
            self.index.add(Place(self.position, 30), builder.directory, builder.payload)
            if number % 8 == 7:
                self.index.release(self.position - 500)
        for queue, end in enumerate(self.ends):
            self.table.set(self.table.find(queue_id_of(TOPIC, queue)), COMMITTED_END, end)

    def read(self) -> None:
        for queue, end in enumerate(self.ends):
            slot = self.table.find(queue_id_of(TOPIC, queue))
            for offset in range(0, end, 17):
                self.index.read(slot, offset, 3000, True)
                self.index.window(slot, offset)


def test_index() -> None:
    def check(made: Index) -> None:
        made.read()
        made.fill()
        made.read()

    fail_each(Index, Index.fill, check)


def test_scattered_bytes() -> None:
    """Nothing is lost of what has not left, and no owner is held in the end: a bytearray that is held cannot grow."""
    owners = [bytearray(b"%05d" % number) for number in range(300)]
    whole = b"".join(owners)

    def act(made: list[Any]) -> None:
        made.append(kernel.ScatteredBytes(owners))
        made[0].take(777)

    def check(made: list[Any]) -> None:
        if made:
            assert len(made[0]) in (len(whole), len(whole) - 777)
            size = len(made[0])
            assert b"".join(made[0].take(len(whole))) == whole[-size:]
        made.clear()
        for owner in owners:
            owner.append(0)
            owner.pop()

    fail_each(list, act, check)


def plan_of(topics: range, partitions: int) -> Any:
    body = struct.pack(">iiiibiii", -1, 500, 1, 1 << 20, 0, 0, 0, len(topics))
    for topic in topics:
        name = b"t%d" % topic
        body += struct.pack(">h", len(name)) + name + struct.pack(">i", partitions)
        body += b"".join(struct.pack(">iqqi", partition, 0, 0, 1 << 20) for partition in range(partitions))
    return kernel.scan_fetch(memoryview(body + struct.pack(">i", 0)), 0, 7).plan


@pytest.mark.parametrize("remembered", [False, True])
def test_plan_of_a_session(remembered: bool) -> None:
    """Growing, forgetting most of it, and growing again: the arrays are made anew each time."""
    forgotten = [(f"t{topic}", list(range(40))) for topic in range(59)]

    def make() -> tuple[Any, Any]:
        plan = plan_of(range(30), 20)
        if remembered:
            plan.remember()
        return plan, plan_of(range(20, 60), 40)

    def act(made: tuple[Any, Any]) -> None:
        plan, more = made
        if not remembered:
            plan.remember()
        plan.update(more, [])
        plan.update(plan_of(range(0), 0), forgotten)
        plan.update(plan_of(range(3), 20), [])

    def check(made: tuple[Any, Any]) -> None:
        plan, _ = made
        table = kernel.QueueTable()
        table.create(1, 0, 40)
        log = kernel.WriteGroupLog(0, table, kernel.ProducerStates(), None, block_bytes_max=1, batch_bytes_max=1)
        for _ in range(2):
            plan.begin(lambda key: kernel.PlannedTopic(1, 40), 1000)
            assert len(plan.partitions()) == len(plan)
            plan.read_cached(
                table, kernel.RecentIndex(table, 0), [log], memoryview(array("H", bytes(2 * SLOTS_OF_ALL)))
            )
            assert plan.settled
            plan.response(7, 1, CODES)
            try:
                plan.update(plan_of(range(50), 30), forgotten[:5])
            except ValueError:
                plan.remember()  # it had not become a session's before

    fail_each(make, act, check)


def test_watches() -> None:
    def make() -> tuple[Any, list[Any]]:
        table = kernel.QueueTable()
        table.create(1, 0, 500)
        return kernel.Watches(table), [None] * 20

    def act(made: tuple[Any, list[Any]]) -> None:
        watches, begun = made
        for number in range(20):
            queues = {queue_id_of(1, partition): 0 for partition in range(1 + 20 * number)}
            begun[number] = watches.begin(queues, 1, number)
        for watch in begun[:10]:
            watches.end(watch)

    def check(made: tuple[Any, list[Any]]) -> None:
        watches, begun = made
        assert set(watches.topic_gone(1)) <= set(range(20))
        for watch in filter(None, begun):
            watches.end(watch)
        assert len(watches) == 0

    fail_each(make, act, check)
