"""Long polls: woken by enough bytes on their own queues, by a log start that moves, or by time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from tests.fakes.simulated_loop import SimulatedLoop

from mainstem.kernel import COMMITTED_END, ENTRIES, WATCHED, QueueTable
from mainstem.model import queue_id_of
from mainstem.storage.state.waiters import Waiters


def rows(*batches: tuple[int, int]) -> list[tuple[int, int]]:
    """The news of an applied block: (queue, length) of each batch."""
    return list(batches)


def new_waiters() -> tuple[QueueTable, Waiters]:
    table = QueueTable()
    for topic in range(3):
        table.create(topic, 0, 8)
    return table, Waiters(table)


def at_end(*queues: int) -> dict[int, int]:
    """Their high watermarks, as long as nothing was committed."""
    return dict.fromkeys(queues, 0)


def waited(
    queues: Iterable[int],
    bytes_min: int,
    events: list[tuple[float, list[tuple[int, int]] | int]],
    timeout: float = 10.0,
) -> float:
    """Seconds until a wait for `queues` is over, while at each time rows are committed, or a queue is woken."""
    loop = SimulatedLoop()
    table, waiters = new_waiters()
    for time, event in events:
        if isinstance(event, int):
            loop.call_later(time, waiters.wake, [event])
        else:
            loop.call_later(time, waiters.committed, event)

    async def story() -> float:
        await waiters.wait(at_end(*queues), bytes_min, timeout)
        assert len(waiters) == 0, "nothing is left behind"
        assert not any(table.get(slot, ENTRIES) & WATCHED for slot in range(8)), "nobody is watched any more"
        return loop.time()

    try:
        return round(loop.run_until_complete(story()), 6)
    finally:
        loop.close()


def test_enough_bytes_on_any_of_its_queues_wake_a_reader() -> None:
    assert waited([1, 2], 100, [(1, rows((1, 60))), (2, rows((2, 39))), (3, rows((2, 1)))]) == 3
    assert waited([1, 2], 100, [(1, rows((1, 60), (3, 500), (2, 40)))]) == 1
    assert waited([1], 0, [(1, rows((2, 1000))), (4, rows((1, 1)))]) == 4, "at least one batch"


def test_time_ends_a_wait() -> None:
    assert waited([1], 100, [(1, rows((1, 99)))]) == 10
    assert waited([1], 1, [], timeout=0) == 0


def test_a_queue_that_changed_otherwise_wakes_its_readers() -> None:
    assert waited([1, 2], 1000, [(1, 3), (2, 2)]) == 2


def test_a_deleted_topic_wakes_its_readers_and_no_others() -> None:
    loop = SimulatedLoop()
    _, waiters = new_waiters()

    async def story() -> float:
        one = waiters.wait(at_end(queue_id_of(1, 7)), 1000, 10)
        other = waiters.wait(at_end(queue_id_of(2, 7)), 1000, 10)
        await asyncio.sleep(1)
        waiters.wake_topic(1)
        assert not one.done(), "listeners are told when whoever changed the topic is done"
        await asyncio.sleep(0)
        assert one.done()
        assert not other.done()
        assert len(waiters) == 1
        other.cancel()
        assert len(waiters) == 0
        return loop.time()

    try:
        assert loop.run_until_complete(story()) == 1
    finally:
        loop.close()


def test_what_is_there_already_is_not_waited_for() -> None:
    loop = SimulatedLoop()
    table, waiters = new_waiters()
    table.set(table.find(queue_id_of(1, 3)), COMMITTED_END, 5)

    async def story() -> None:
        assert waiters.wait({queue_id_of(1, 3): 4}, 1, 10).done(), "it is further"
        assert waiters.wait({queue_id_of(1, 2): 0, queue_id_of(1, 99): 0}, 1, 10).done(), "it is gone"
        waiting = waiters.wait({queue_id_of(1, 3): 5}, 1, 10)
        assert not waiting.done()
        waiting.cancel()

    try:
        loop.run_until_complete(story())
    finally:
        loop.close()


def test_readers_of_one_queue_are_independent_and_a_cancelled_one_leaves_no_trace() -> None:
    loop = SimulatedLoop()
    table, waiters = new_waiters()

    async def story() -> None:
        waits = [waiters.wait(at_end(1, 2), size, 10) for size in (1, 50, 1)]
        waits[2].cancel()
        waiters.committed(rows((1, 10)))
        waiters.committed(rows((1, 10)))  # to one who was woken and has not been told yet
        await asyncio.sleep(0)
        assert [wait.done() for wait in waits] == [True, False, True]
        assert len(waiters) == 2
        assert table.get(table.find(1), ENTRIES) & WATCHED
        waiters.committed(rows((2, 30)))
        await waits[1]
        assert len(waiters) == 0
        waiters.committed(rows((1, 10)))

    try:
        loop.run_until_complete(story())
    finally:
        loop.close()


def test_one_who_gives_up_before_being_told_is_not_told() -> None:
    loop = SimulatedLoop()
    _, waiters = new_waiters()

    async def story() -> None:
        one, other = (waiters.wait(at_end(1), 1, 10) for _ in range(2))
        one.add_done_callback(lambda _: other.cancel())
        other.add_done_callback(lambda _: one.cancel())
        waiters.committed(rows((1, 10)))
        await asyncio.sleep(0)
        assert [one.cancelled(), other.cancelled()].count(True) == 1

    try:
        loop.run_until_complete(story())
    finally:
        loop.close()


def test_everybody_is_woken_when_the_node_serves_something_else() -> None:
    loop = SimulatedLoop()
    _, waiters = new_waiters()

    async def story() -> list[float]:
        waits = [waiters.wait(at_end(queue), 100, 10.0) for queue in (1, 2)]
        ended = waiters.wait(at_end(3), 100, 0.5)
        await ended
        loop.call_later(0.5, waiters.wake_all)
        times = []
        for wait in waits:
            await wait
            times.append(round(loop.time(), 6))
        assert len(waiters) == 0
        return times

    try:
        assert loop.run_until_complete(story()) == [1, 1]
    finally:
        loop.close()
