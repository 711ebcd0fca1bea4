"""Writers that share a store in bad weather: objects created once make one chain, a pointer replaced on condition
misses no change, and nobody's write is lost, made twice or overwritten. Each seed is a run of its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine

import pytest
from tests.fakes.object_store import SimulatedBucket, SimulatedObjectStore, Weather
from tests.fakes.simulated_loop import SimulatedLoop

from mainstem.model import Buffer
from mainstem.ports import ObjectInfo, ObjectRange, ObjectStore
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.object_stores.errors import (
    ObjectAbsent,
    ObjectChanged,
    ObjectExists,
    ObjectStoreOutage,
    ObjectTooShort,
)
from mainstem.storage.object_stores.urls import GuardedStore

SEEDS = range(20)
WRITERS = 4
WRITES = 12
"""Of each writer."""
POINTER = "pointer"

Writer = Callable[[ObjectStore, int], Coroutine[None, None, None]]


def bad(chance: random.Random) -> Weather:
    return Weather(
        latency_seconds=(0.0, chance.choice([0.02, 0.5])),
        lost_answers=chance.choice([0.0, 0.1, 0.3]),
        lost_requests=chance.choice([0.0, 0.1]),
        failures=chance.choice([0.0, 0.2]),
        requests_per_second_max=chance.choice([10.0, 1000.0]),
        listed_after_seconds=5.0,
        late_requests=chance.choice([0.0, 0.1]),
    )


def together(
    seed: int, writer: Writer, make: Callable[[SimulatedBucket], ObjectStore] = SimulatedObjectStore
) -> SimulatedBucket:
    """The bucket after all writers have done their work, with outages meanwhile."""
    chance = random.Random(seed)
    loop = SimulatedLoop()
    bucket = SimulatedBucket(loop, random.Random(chance.random()), bad(chance))
    config = ObjectStoreConfig(retry_seconds=chance.choice([2.0, 60.0]), failures_max=chance.choice([3, 100]))

    async def life() -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(WRITERS):
                store = GuardedStore(
                    make(bucket), config, jitter=random.Random(chance.random()), monotonic=loop.monotonic
                )
                tasks.create_task(writer(store, number))
            for _ in range(3):
                await asyncio.sleep(chance.uniform(0, 20))
                bucket.weather.down = True
                await asyncio.sleep(chance.uniform(0, 40))
                bucket.weather.down = False

    try:
        loop.run_until_complete(life())
    finally:
        loop.close()
    return bucket


async def content_of(store: ObjectStore, name: str) -> tuple[bytes, str]:
    """An object's bytes and tag, that belong together; asked for until the store answers."""
    while True:
        try:
            info = await store.info(name)
            [content] = await store.read(name, [ObjectRange(0, info.size_bytes)])
            if await store.info(name) == info:
                return bytes(content), info.tag
        except (ObjectStoreOutage, ObjectTooShort):
            await asyncio.sleep(1)


async def append_to_chain(store: ObjectStore, number: int) -> None:
    """Put each entry behind the last one of the chain, whoever's that is."""
    place = 0
    for write in range(WRITES):
        entry = b"%d:%d" % (number, write)
        while True:
            try:
                await store.write(f"chain/{place:08}", entry)
                break
            except ObjectExists:
                if (await content_of(store, f"chain/{place:08}"))[0] == entry:
                    break  # an earlier call that ended in doubt had done it
                place += 1
            except ObjectStoreOutage:
                await asyncio.sleep(1)
        place += 1


async def count_up(store: ObjectStore, number: int) -> None:
    """Add to the pointer's history, as many times as there are writes."""
    for write in range(WRITES):
        entry = b"%d:%d" % (number, write)
        while True:
            history, tag = await content_of(store, POINTER)
            if entry in history.split():
                break
            try:
                await store.write(POINTER, history + b" " + entry, replaces=tag)
                break
            except ObjectChanged:
                continue
            except ObjectStoreOutage:
                await asyncio.sleep(1)


async def begin_and_count_up(store: ObjectStore, number: int) -> None:
    while True:
        try:
            await store.write(POINTER, b"begun")
            break
        except ObjectExists:
            break
        except ObjectStoreOutage:
            await asyncio.sleep(1)
    await count_up(store, number)


def check(entries: list[bytes]) -> None:
    """Each writer's entries are there once and in their order."""
    for number in range(WRITERS):
        mine = [entry for entry in entries if entry.startswith(b"%d:" % number)]
        assert mine == [b"%d:%d" % (number, write) for write in range(WRITES)]
    assert len(entries) == WRITERS * WRITES


def chain(bucket: SimulatedBucket) -> list[bytes]:
    assert sorted(bucket.objects) == [f"chain/{place:08}" for place in range(len(bucket.objects))], "it has gaps"
    return [stored.content for _, stored in sorted(bucket.objects.items())]


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_created_once_makes_one_chain(seed: int) -> None:
    check(chain(together(seed, append_to_chain)))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_pointer_that_is_replaced_on_condition_misses_nothing(seed: int) -> None:
    check(together(seed, begin_and_count_up).objects[POINTER].content.split()[1:])


class Overwriting(SimulatedObjectStore):
    """A planted bug: conditions are not minded."""

    def __init__(self, bucket: SimulatedBucket) -> None:
        super().__init__(bucket)
        self._held = bucket

    async def write(self, name: str, content: Buffer, *, replaces: str | None = None) -> ObjectInfo:
        try:
            return await super().write(name, content, replaces=replaces)
        except (ObjectExists, ObjectChanged, ObjectAbsent):
            return self._held.put(name, bytes(content))


@pytest.mark.parametrize("writer", [append_to_chain, begin_and_count_up])
def test_a_store_that_overwrites_is_found_out(writer: Writer) -> None:
    def found_out(seed: int) -> bool:
        bucket = together(seed, writer, Overwriting)
        try:
            check(chain(bucket) if writer is append_to_chain else bucket.objects[POINTER].content.split()[1:])
        except AssertionError:
            return True
        return False

    assert any(map(found_out, SEEDS))
