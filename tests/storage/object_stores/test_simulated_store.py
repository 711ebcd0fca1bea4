"""The conduct of the simulated store besides what its contract asks for: requests that arrive late, objects that are
lost, an observer that sees every change."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from tests.fakes.object_store import SimulatedBucket, SimulatedObjectStore
from tests.fakes.simulated_loop import SimulatedLoop

from mainstem.ports import ObjectRange
from mainstem.storage.object_stores.errors import ObjectAbsent, ObjectStoreTimedOut


def play(story: Callable[[SimulatedBucket, SimulatedObjectStore], Awaitable[None]]) -> None:
    loop = SimulatedLoop()
    bucket = SimulatedBucket(loop, random.Random(1))
    try:
        loop.run_until_complete(story(bucket, SimulatedObjectStore(bucket)))
    finally:
        loop.close()


def test_a_late_request_is_done_after_its_caller_was_told_that_it_timed_out() -> None:
    async def story(bucket: SimulatedBucket, store: SimulatedObjectStore) -> None:
        bucket.weather.late_requests = 1.0
        with pytest.raises(ObjectStoreTimedOut):
            await store.write("chain/1", b"first")
        assert not bucket.objects
        await asyncio.sleep(bucket.weather.late_seconds)
        assert bucket.objects["chain/1"].content == b"first"
        with pytest.raises(ObjectStoreTimedOut):
            await store.delete(["chain/1"])
        assert list(bucket.objects) == ["chain/1"]
        await asyncio.sleep(bucket.weather.late_seconds)
        assert not bucket.objects

    play(story)


def test_a_late_create_leaves_what_came_before_it() -> None:
    async def story(bucket: SimulatedBucket, store: SimulatedObjectStore) -> None:
        bucket.weather.late_requests = 1.0
        with pytest.raises(ObjectStoreTimedOut):
            await store.write("chain/1", b"first")
        bucket.weather.late_requests = 0.0
        await store.write("chain/1", b"second")
        await asyncio.sleep(bucket.weather.late_seconds)
        assert bucket.objects["chain/1"].content == b"second"

    play(story)


def test_a_request_that_was_sent_arrives_whoever_gives_up_its_caller() -> None:
    async def story(bucket: SimulatedBucket, store: SimulatedObjectStore) -> None:
        bucket.weather.late_requests = 1.0
        write = asyncio.ensure_future(store.write("chain/1", b"first"))
        await asyncio.sleep(0.1)
        write.cancel()
        await asyncio.sleep(bucket.weather.timeout_seconds + bucket.weather.late_seconds)
        assert bucket.objects["chain/1"].content == b"first"

    play(story)


def test_an_object_that_the_store_has_lost_is_absent() -> None:
    async def story(bucket: SimulatedBucket, store: SimulatedObjectStore) -> None:
        await store.write("packed/1.pack", b"content")
        bucket.lose("packed/1.pack")
        with pytest.raises(ObjectAbsent):
            await store.read("packed/1.pack", [ObjectRange(0, 1)])

    play(story)


def test_an_observer_sees_what_changes_the_store_and_nothing_else() -> None:
    seen: list[tuple[str, bytes | None]] = []

    async def story(bucket: SimulatedBucket, store: SimulatedObjectStore) -> None:
        bucket.changing = lambda name, content: seen.append((name, content))
        await store.write("a", b"1")
        await store.info("a")
        await store.read("a", [ObjectRange(0, 1)])
        await store.delete(["a", "b"])
        await store.page_for_upkeep("a")

    play(story)
    assert seen == [("a", b"1"), ("a", None)]
