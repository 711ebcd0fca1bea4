"""A cluster says in the store that it lives, and an adoption notices if it does, or takes its place there."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.fakes.object_store import SimulatedBucket, SimulatedObjectStore
from tests.storage.small_node import SmallNode, simulated

from mainstem.storage.errors import FormatError
from mainstem.storage.object_stores.errors import ObjectStoreError
from mainstem.storage.remote.chain.owner_record import (
    BEAT_SECONDS,
    LOOK_SECONDS,
    SEEN_TO_TELL,
    FoundOwner,
    OwnerBeats,
    OwnerRecord,
    decode_owner,
    encode_owner,
    read_owner,
    take_over,
)
from mainstem.storage.state.logs_behind import LOST_TERMS
from mainstem.storage.store_files.object_names import OWNER

Story = Callable[["Owned"], Awaitable[None]]

NODE, OTHER = 7, 8


class Owned:
    """A node that leads write group 0, and tells the store that its cluster lives when a test says so."""

    def __init__(self, node: SmallNode) -> None:
        self.node = node
        self.bucket = SimulatedBucket(node.clock, random.Random(1))
        self.store = SimulatedObjectStore(self.bucket)
        self.is_there = True
        self.beats: OwnerBeats
        node.opened = self.opened

    def opened(self) -> None:
        self.beats = self.another()

    def another(self) -> OwnerBeats:
        return OwnerBeats(self.store, self.node.storage.groups, lambda: self.is_there, NODE, self.node.clock.now_ms)

    @property
    def term(self) -> int:
        return self.node.storage.groups[0].term

    async def found(self) -> OwnerRecord:
        record = (await read_owner(self.store)).record
        assert record is not None
        return record

    def adoption(self) -> OwnerRecord:
        return OwnerRecord(self.term + LOST_TERMS, 0, OTHER, self.node.clock.now_ms())


def told(directory: Path, story: Story) -> None:
    owned: list[Owned] = []

    async def on(_node: SmallNode) -> None:
        await story(owned[0])

    simulated(directory, on, lambda node: owned.append(Owned(node)))


def test_a_leader_changes_the_record_with_each_beat_and_asks_for_nothing_else(tmp_path: Path) -> None:
    async def story(there: Owned) -> None:
        assert await read_owner(there.store) == FoundOwner(None, None)
        await there.beats.beat()
        first = await read_owner(there.store)
        assert first.record is not None
        assert (first.record.term, first.record.beats, first.record.node_id) == (there.term, 1, NODE)
        asked = there.bucket.asked
        await there.beats.beat()
        assert there.bucket.asked == asked + 1
        second = await read_owner(there.store)
        assert second.record is not None
        assert second.record.beats == 2
        assert second.tag != first.tag
        await there.another().beat()
        assert (await there.found()).beats == 1, "another leader goes on from what is there"
        await there.beats.beat()
        await there.beats.beat()
        assert (await there.found()).beats > 0, "who finds another's record reads it first"

    told(tmp_path, story)


def test_a_leader_beats_while_it_leads_and_there_is_something_to_adopt(tmp_path: Path) -> None:
    async def story(there: Owned) -> None:
        there.is_there = False
        task = asyncio.create_task(there.beats.run())
        await asyncio.sleep(2 * BEAT_SECONDS)
        assert not there.bucket.asked
        there.is_there = True
        await asyncio.sleep(2 * LOOK_SECONDS)
        assert there.beats.beats_written == 1, "a leader says at once that it leads"
        for beats in (2, 3):
            await asyncio.sleep(BEAT_SECONDS + LOOK_SECONDS)
            assert there.beats.beats_written == beats
        there.bucket.weather.down = True
        await asyncio.sleep(4 * BEAT_SECONDS)
        there.bucket.weather.down = False
        asked = there.bucket.asked
        await asyncio.sleep(2 * BEAT_SECONDS)
        assert there.beats.beats_written > 3
        assert there.bucket.asked < asked + 8
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    told(tmp_path, story)


def test_a_cluster_that_lives_is_not_taken_over(tmp_path: Path) -> None:
    async def story(there: Owned) -> None:
        read_first = await read_owner(there.store)
        await there.beats.beat()
        found = await take_over(there.store, read_first, there.adoption())
        assert found == await there.found(), "it began to say so in between"
        read_first = await read_owner(there.store)
        await there.beats.beat()
        before = there.bucket.objects[OWNER]
        found = await take_over(there.store, read_first, there.adoption())
        assert found == await there.found()
        assert there.bucket.objects[OWNER] == before

    told(tmp_path, story)


def test_a_cluster_that_was_adopted_finds_that_out_and_leaves_the_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(there: Owned) -> None:
        await there.beats.beat()
        adoption = there.adoption()
        assert await take_over(there.store, await read_owner(there.store), adoption) is None
        for number in range(SEEN_TO_TELL + 2):
            assert there.beats.adopted_elsewhere == (number > SEEN_TO_TELL)
            await there.beats.beat()
            assert await there.found() == adoption
        assert caplog.text.count(f"node {OTHER} goes on with this cluster, in term {adoption.term}") == 1

    told(tmp_path, story)


def test_several_nodes_adopt_together_until_one_of_them_has_begun(tmp_path: Path) -> None:
    async def story(there: Owned) -> None:
        await there.beats.beat()
        read_first = await read_owner(there.store)
        adoption = there.adoption()
        for node in (1, 2):
            mine = OwnerRecord(adoption.term, 0, node, there.node.clock.now_ms())
            assert await take_over(there.store, read_first, mine) is None
        assert (await there.found()).node_id == 1
        read_first = await read_owner(there.store)
        assert await take_over(there.store, read_first, mine) is None
        begun = OwnerRecord(adoption.term + 1, 1, 1, there.node.clock.now_ms())
        await there.store.write(OWNER, encode_owner(begun), replaces=read_first.tag)
        assert await take_over(there.store, read_first, mine) == begun

    told(tmp_path, story)


def test_a_store_that_cannot_replace_keeps_the_first_record_and_hinders_nobody(tmp_path: Path) -> None:
    async def story(there: Owned) -> None:
        there.bucket.weather.replaces = False
        await there.beats.beat()
        first = await read_owner(there.store)
        await there.beats.beat()
        asked = there.bucket.asked
        await there.beats.beat()
        assert there.bucket.asked == asked
        assert await read_owner(there.store) == first
        assert await take_over(there.store, first, there.adoption()) is None

    told(tmp_path, story)


def test_answers_that_are_lost_and_damage_do_not_end_it(tmp_path: Path) -> None:
    async def story(there: Owned) -> None:
        await there.beats.beat()
        there.bucket.weather.lost_answers = 1.0
        with pytest.raises(ObjectStoreError):
            await there.beats.beat()
        there.bucket.weather.lost_answers = 0.0
        await there.beats.beat()
        assert (await there.found()).term == there.term
        there.bucket.put(OWNER, b"rot")
        assert (await read_owner(there.store)).record is None
        await there.beats.beat()
        await there.beats.beat()
        assert (await there.found()).term == there.term

    told(tmp_path, story)
    with pytest.raises(FormatError, match="owner"):
        decode_owner(encode_owner(OwnerRecord(1, 2, 3, 4))[:-1], "owner")
