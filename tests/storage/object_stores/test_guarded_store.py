"""Retries, the bound on requests in flight, the breaker and the measurements, over a simulated store in bad weather."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import pytest
from tests.fakes.object_store import SimulatedBucket, SimulatedObjectStore
from tests.fakes.simulated_loop import SimulatedLoop

from mainstem.model import Buffer, Sample
from mainstem.ports import ObjectRange
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.object_stores.errors import (
    ObjectAbsent,
    ObjectChanged,
    ObjectExists,
    ObjectStoreDown,
    ObjectStoreError,
    ObjectStoreRefused,
    ObjectStoreThrottled,
    ObjectStoreTimedOut,
    ObjectStoreUnavailable,
)
from mainstem.storage.object_stores.guards.retries import TOKENS_MAX
from mainstem.storage.object_stores.guards.wrapped import StoreRequest
from mainstem.storage.object_stores.urls import GuardedStore

T = TypeVar("T")


class World:
    """A bucket, and a store onto it with all that guards it, in simulated time."""

    def __init__(self, loop: SimulatedLoop, seed: int = 1, **settings: float) -> None:
        self.loop = loop
        self.bucket = SimulatedBucket(loop, random.Random(seed))
        self.weather = self.bucket.weather
        self.plain = SimulatedObjectStore(self.bucket)
        self.config = ObjectStoreConfig(**settings)  # type: ignore[arg-type]
        self.store = GuardedStore(self.plain, self.config, jitter=random.Random(seed), monotonic=loop.monotonic)

    def sample(self, name: str, **labels: str) -> float:
        return sum(
            sample.value
            for sample in self.store.samples()
            if isinstance(sample, Sample)
            and sample.name == f"mainstem_object_store_{name}"
            and labels.items() <= dict(sample.labels).items()
        )


def play(story: Callable[[World], Awaitable[T]], *, seed: int = 1, **settings: float) -> T:
    loop = SimulatedLoop()
    try:
        return loop.run_until_complete(story(World(loop, seed, **settings)))
    finally:
        loop.close()


def test_what_fails_now_and_then_is_done_all_the_same() -> None:
    async def story(world: World) -> None:
        world.weather.failures = world.weather.lost_requests = world.weather.lost_answers = 0.1
        for number in range(60):
            await world.store.write(f"a/{number}", b"%d" % number)
        assert {name: stored.content for name, stored in world.bucket.objects.items()} == {
            f"a/{number}": b"%d" % number for number in range(60)
        }
        assert world.store.retrying.retries > 0

    play(story, failures_max=100)


def test_a_create_whose_answer_was_lost_and_that_finds_its_own_bytes_is_done() -> None:
    async def story(world: World) -> None:
        world.weather.lost_answers = 1.0
        write = asyncio.ensure_future(world.store.write("manifest/1", b"mine"))
        await asyncio.sleep(world.weather.timeout_seconds / 2)
        assert world.bucket.objects["manifest/1"].content == b"mine"
        world.weather.lost_answers = 0.0
        assert await write == await world.plain.info("manifest/1")

    play(story)


def test_a_create_whose_answer_was_lost_and_that_finds_the_bytes_of_another_is_refused() -> None:
    async def story(world: World) -> None:
        for other in (b"hers", b"yours", b""):
            world.weather.lost_requests = 1.0
            write = asyncio.ensure_future(world.store.write("manifest/1", b"mine"))
            await asyncio.sleep(world.weather.timeout_seconds / 2)
            world.weather.lost_requests = 0.0
            await world.plain.write("manifest/1", other)
            with pytest.raises(ObjectExists):
                await write
            assert world.bucket.objects["manifest/1"].content == other
            await world.plain.delete(["manifest/1"])

    play(story)


def test_a_create_that_was_never_in_doubt_is_refused_even_by_its_own_bytes() -> None:
    async def story(world: World) -> None:
        await world.plain.write("manifest/1", b"mine")
        with pytest.raises(ObjectExists):
            await world.store.write("manifest/1", b"mine")

    play(story)


def test_a_replacement_whose_answer_was_lost_is_done_once() -> None:
    async def story(world: World) -> None:
        first = await world.store.write("pointer", b"to 1")
        world.weather.lost_answers = 1.0
        write = asyncio.ensure_future(world.store.write("pointer", b"to 2", replaces=first.tag))
        await asyncio.sleep(world.weather.timeout_seconds / 2)
        world.weather.lost_answers = 0.0
        second = await write
        assert second == await world.plain.info("pointer")
        with pytest.raises(ObjectChanged):
            await world.store.write("pointer", b"to 3", replaces=first.tag)

    play(story)


def test_an_upload_in_parts_begins_anew_after_an_outage() -> None:
    async def parts() -> AsyncIterator[Buffer]:
        for number in range(10):
            yield bytes([number]) * 100

    async def story(world: World) -> None:
        world.weather.failures = 0.1
        for number in range(20):
            info = await world.store.write_parts(f"large/{number}", parts)
            assert info.size_bytes == 1000
            assert world.bucket.objects[f"large/{number}"].content == b"".join(bytes([it]) * 100 for it in range(10))

    play(story, failures_max=100, retry_seconds=600)


def test_a_call_ends_within_its_time() -> None:
    async def story(world: World) -> None:
        world.weather.down = True
        with pytest.raises(ObjectStoreTimedOut):
            await world.store.info("a")
        assert world.loop.time() <= 20 + world.weather.timeout_seconds
        assert world.bucket.asked > 3

    play(story, retry_seconds=20, failures_max=1000)


def test_while_everything_fails_retries_add_little_to_the_load() -> None:
    async def story(world: World) -> None:
        world.weather.failures = 1.0
        calls = 1000
        for _ in range(calls):
            with pytest.raises(ObjectStoreUnavailable):
                await world.store.info("a")
        assert world.bucket.asked <= calls + TOKENS_MAX
        world.weather.failures = 0.0
        await world.plain.write("a", b"")
        for _ in range(100):
            await world.store.info("a")
        assert world.store.retrying.tokens == pytest.approx(10)

    play(story, failures_max=1_000_000)


def test_no_answer_that_is_final_is_asked_for_again() -> None:
    async def story(world: World) -> None:
        with pytest.raises(ObjectAbsent):
            await world.store.info("a")
        assert world.bucket.asked == 1
        world.weather.refuses = True
        with pytest.raises(ObjectStoreRefused):
            await world.store.write("a", b"")
        assert world.bucket.asked == 2

    play(story)


def test_a_store_that_is_down_is_asked_by_one_probe_at_a_time_and_everyone_else_is_told_at_once() -> None:
    async def story(world: World) -> None:
        await world.plain.write("a", b"content")
        world.weather.down = True
        failed: list[ObjectStoreError] = []
        readers = [asyncio.ensure_future(_reads(world, failed)) for _ in range(5)]
        await asyncio.sleep(60)
        assert world.store.breaker.down
        asked = world.bucket.asked
        began = world.loop.time()
        with pytest.raises(ObjectStoreDown):
            await world.store.info("a")
        assert world.loop.time() == began
        await asyncio.sleep(200)
        assert world.bucket.asked - asked <= 200 / world.config.probe_seconds_max + 1
        world.weather.down = False
        await asyncio.gather(*readers)
        assert not world.store.breaker.down
        assert world.loop.time() - began <= 200 + 2 * world.config.probe_seconds_max
        assert all(isinstance(error, ObjectStoreDown | ObjectStoreTimedOut) for error in failed)

    play(story)


async def _reads(world: World, failed: list[ObjectStoreError]) -> None:
    """Asks again and again, every second, until it is answered."""
    while True:
        try:
            await world.store.read("a", [ObjectRange(0, 7)])
        except ObjectStoreError as error:
            failed.append(error)
            await asyncio.sleep(1)
        else:
            return


def test_a_probe_that_is_cancelled_lets_another_be_sent() -> None:
    async def story(world: World) -> None:
        world.weather.down = True
        with pytest.raises(ObjectStoreDown):
            await world.store.info("a")
        await asyncio.sleep(world.config.probe_seconds)
        probe = asyncio.ensure_future(world.store.info("a"))
        await asyncio.sleep(world.weather.timeout_seconds / 2)
        probe.cancel()
        await asyncio.wait([probe])
        world.weather.down = False
        with pytest.raises(ObjectAbsent):
            await world.store.info("a")

    play(story, failures_max=3)


def test_answers_show_that_a_store_is_up_whatever_they_say() -> None:
    async def story(world: World) -> None:
        for _ in range(20):
            world.weather.failures = 1.0
            with pytest.raises(ObjectStoreUnavailable):
                await world.store.breaker.info("a")
            world.weather.failures = 0.0
            with pytest.raises(ObjectAbsent):
                await world.store.breaker.info("a")
        assert not world.store.breaker.down

    play(story, failures_max=2)


def test_a_store_says_why_the_last_request_got_no_answer_or_was_refused_until_one_is_answered() -> None:
    async def story(world: World) -> None:
        assert world.store.fault == ""
        for trouble, error in (("refuses", ObjectStoreRefused), ("down", ObjectStoreTimedOut)):
            setattr(world.weather, trouble, True)
            with pytest.raises(error) as raised:
                await world.store.breaker.info("a")
            assert world.store.fault == str(raised.value) != ""
            setattr(world.weather, trouble, False)
            with pytest.raises(ObjectAbsent):
                await world.store.breaker.info("a")
            assert world.store.fault == ""

    play(story)


def test_a_store_that_asks_for_fewer_requests_is_sent_fewer_and_all_are_done() -> None:
    async def story(world: World) -> None:
        world.weather.requests_per_second_max = 20
        world.weather.latency_seconds = (0.05, 0.15)
        await asyncio.gather(*(world.store.write(f"a/{number}", b"") for number in range(300)))
        assert len(world.bucket.objects) == 300
        throttled = world.sample("requests_total", outcome="throttled")
        assert world.store.in_flight.bound < 10
        assert throttled <= 300  # without the bound, 64 requests in flight are turned down several times each

    play(story, retry_seconds=600)


def test_no_more_requests_are_under_way_than_may_be_and_those_that_are_cancelled_free_their_place() -> None:
    async def story(world: World) -> None:
        world.weather.latency_seconds = (1.0, 1.0)
        calls = [asyncio.ensure_future(world.store.write(f"a/{number}", b"")) for number in range(10)]
        await asyncio.sleep(0.25)
        assert world.bucket.asked == 4
        for call in calls[2:6]:
            call.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0.25)
        assert world.bucket.asked == 6
        await asyncio.wait(calls)
        assert world.store.in_flight.under_way == 0
        assert {*world.bucket.objects} >= {f"a/{number}" for number in (0, 1, 6, 7, 8, 9)}

    play(story, requests_in_flight_max=4)


def test_a_request_that_is_cancelled_just_when_its_turn_comes_gives_it_on() -> None:
    async def story(world: World) -> None:
        world.weather.latency_seconds = (1.0, 1.0)

        async def write_and_cancel() -> None:
            await world.store.write("a/first", b"")
            second.cancel()  # its turn has come, and it has not run yet

        first = asyncio.ensure_future(write_and_cancel())
        await asyncio.sleep(0.25)
        second = asyncio.ensure_future(world.store.write("a/second", b""))
        await asyncio.wait([first, second])
        assert second.cancelled()
        assert "a/second" not in world.bucket.objects
        assert world.store.in_flight.under_way == 0
        await world.store.write("a/third", b"")

    play(story, requests_in_flight_max=1)


def test_requests_bytes_and_outcomes_are_counted() -> None:
    async def story(world: World) -> None:
        await world.store.write("a/b", bytes(1000))
        await world.store.read("a/b", [ObjectRange(0, 10), ObjectRange(500, 20)])
        with pytest.raises(ObjectExists):
            await world.store.write("a/b", b"")
        with pytest.raises(ObjectAbsent):
            await world.store.info("c")
        await world.store.page_for_upkeep("a")
        await world.store.delete(["a/b"])
        counts = {
            (request, outcome): count for (request, outcome), count in world.store.metered.requests.items() if count
        }
        assert counts == {
            (StoreRequest.WRITE, "done"): 1,
            (StoreRequest.WRITE, "exists"): 1,
            (StoreRequest.READ, "done"): 1,
            (StoreRequest.INFO, "absent"): 1,
            (StoreRequest.LIST, "done"): 1,
            (StoreRequest.DELETE, "done"): 1,
        }
        assert world.sample("written_bytes_total") == 1000
        assert world.sample("read_bytes_total") == 30

    play(story)


def test_throttling_alone_does_not_make_a_store_count_as_down() -> None:
    async def story(world: World) -> None:
        world.weather.requests_per_second_max = 0
        for _ in range(20):
            with pytest.raises(ObjectStoreThrottled):
                await world.store.breaker.info("a")
        assert not world.store.breaker.down

    play(story, failures_max=2)
