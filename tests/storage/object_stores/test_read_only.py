"""A store that is only read sends no request that would change it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
from tests.fakes.object_store import SimulatedBucket, SimulatedObjectStore
from tests.fakes.simulated_loop import SimulatedLoop

from mainstem.ports import ObjectRange
from mainstem.storage.object_stores.guards.read_only import ReadOnlyStore, StoreIsReadOnly


def test_it_is_read_and_never_written() -> None:
    loop = SimulatedLoop()
    bucket = SimulatedBucket(loop, random.Random(1))
    bucket.put("a/b", b"content")
    store = ReadOnlyStore(SimulatedObjectStore(bucket))

    async def parts() -> AsyncIterator[bytes]:
        yield b"part"

    async def story() -> None:
        assert [bytes(found) for found in await store.read("a/b", [ObjectRange(0, 7)])] == [b"content"]
        info = await store.info("a/b")
        assert [it.name for it in await store.page_for_upkeep("a")] == ["a/b"]
        for change in (
            store.write("a/c", b"new"),
            store.write("a/b", b"other", replaces=info.tag),
            store.write_parts("a/d", parts),
            store.delete(["a/b"]),
        ):
            with pytest.raises(StoreIsReadOnly, match="reads the object store only"):
                await change
        assert {name: stored.content for name, stored in bucket.objects.items()} == {"a/b": b"content"}

    try:
        loop.run_until_complete(asyncio.wait_for(story(), 600))
    finally:
        loop.close()
