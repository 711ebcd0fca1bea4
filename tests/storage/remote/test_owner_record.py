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
from mainstem.storage.remote.chain.owner_beats import BEAT_SECONDS, LOOK_SECONDS, SEEN_TO_TELL, OwnerBeats
from mainstem.storage.remote.chain.owner_record import (
    FoundOwner,
    OwnerRecord,
    decode_owner,
    encode_owner,
    read_owner,
    replace_owner,
    take_over,
)
from mainstem.storage.state.logs_behind import LOST_TERMS
from mainstem.storage.store_files.object_names import OWNER, OWNERS, owner_object

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


@pytest.fixture(params=[True, False], ids=["replaces", "creates"])
def replaces(request: pytest.FixtureRequest) -> bool:
    """Whether the store can compare and replace; HDFS cannot."""
    return bool(request.param)


def told(directory: Path, story: Story, *, replaces: bool = True) -> None:
    owned: list[Owned] = []

    async def on(_node: SmallNode) -> None:
        owned[0].bucket.weather.replaces = replaces
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


def test_a_cluster_that_lives_is_not_taken_over(tmp_path: Path, replaces: bool) -> None:
    async def story(there: Owned) -> None:
        read_first = await read_owner(there.store)
        await there.beats.beat()
        found = await take_over(there.store, read_first, there.adoption())
        assert found == await there.found(), "it began to say so in between"
        for beats in range(1, 6):
            read_first = await read_owner(there.store)
            for _ in range(beats):
                await there.beats.beat()
            alive = await there.found()
            assert await take_over(there.store, read_first, there.adoption()) == alive
            assert await there.found() == alive

    told(tmp_path, story, replaces=replaces)


def test_a_cluster_that_was_adopted_finds_that_out_and_leaves_the_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, replaces: bool
) -> None:
    async def story(there: Owned) -> None:
        for _ in range(3):
            await there.beats.beat()
        adoption = there.adoption()
        assert await take_over(there.store, await read_owner(there.store), adoption) is None
        first = SEEN_TO_TELL + replaces  # by the first beat that fails it knows that the record is another's, not whose
        for number in range(SEEN_TO_TELL + 2):
            assert there.beats.adopted_elsewhere == (number >= first)
            await there.beats.beat()
            assert await there.found() == adoption
        assert caplog.text.count(f"node {OTHER} goes on with this cluster, in term {adoption.term}") == 1

    told(tmp_path, story, replaces=replaces)


def test_several_nodes_adopt_together_until_one_of_them_has_begun(tmp_path: Path, replaces: bool) -> None:
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
        assert await replace_owner(there.store, read_first, begun) is not None
        assert await take_over(there.store, read_first, mine) == begun

    told(tmp_path, story, replaces=replaces)


def test_where_nothing_is_replaced_the_highest_number_counts_and_lower_ones_go(tmp_path: Path) -> None:
    async def story(there: Owned) -> None:
        for beats in range(1, 7):
            await there.beats.beat()
            assert (await there.found()).beats == beats
            numbers = sorted(name for name in there.bucket.objects if name.startswith(f"{OWNERS}/"))
            assert len(numbers) <= 2, "an object that was just listed can be read"
        stuck = await read_owner(there.store)
        for _ in range(4):
            await there.another().beat()
        owner = await there.found()
        assert await replace_owner(there.store, stuck, there.adoption()) is not None, "its number was there, and is not"
        assert await there.found() == owner, "it counts for nothing"
        await there.another().beat()
        assert len([name for name in there.bucket.objects if name.startswith(f"{OWNERS}/")]) == 2

    told(tmp_path, story, replaces=False)


@pytest.mark.parametrize("seed", range(30))
def test_of_a_leader_and_adoptions_at_once_one_goes_on(tmp_path: Path, seed: int, replaces: bool) -> None:
    """The requests of a leader and of two operators come to the store in any order. An adoption that succeeds is
    found by all others, who leave it alone."""
    chance = random.Random(seed)

    async def story(there: Owned) -> None:
        there.bucket.weather.latency_seconds = (0.0, 2.0)
        adopted: list[OwnerRecord] = []

        async def lead() -> None:
            for _ in range(4):
                await there.beats.beat()

        async def adopt(node: int) -> None:
            await asyncio.sleep(chance.uniform(0.0, 12.0))
            read_first = await read_owner(there.store)
            record = OwnerRecord(there.term + node * LOST_TERMS, 0, node, there.node.clock.now_ms())
            await asyncio.sleep(chance.uniform(0.0, 6.0))
            if await take_over(there.store, read_first, record) is None:
                adopted.append(record)

        await asyncio.gather(lead(), adopt(2), adopt(3))
        there.bucket.weather.latency_seconds = (0.0, 0.0)
        owner = await there.found()
        if adopted:
            assert owner in adopted
            await there.beats.beat()
            assert await there.found() == owner
        else:
            assert owner.beats

    told(tmp_path, story, replaces=replaces)


def test_answers_that_are_lost_and_damage_do_not_end_it(tmp_path: Path, replaces: bool) -> None:
    async def story(there: Owned) -> None:
        await there.beats.beat()
        there.bucket.weather.lost_answers = 1.0
        with pytest.raises(ObjectStoreError):
            await there.beats.beat()
        there.bucket.weather.lost_answers = 0.0
        await there.beats.beat()
        assert (await there.found()).term == there.term
        number = (await read_owner(there.store)).number
        there.bucket.put(owner_object(number) if number else OWNER, b"rot")
        assert (await read_owner(there.store)).record is None
        await there.beats.beat()
        await there.beats.beat()
        assert (await there.found()).term == there.term

    told(tmp_path, story, replaces=replaces)
    with pytest.raises(FormatError, match="owner"):
        decode_owner(encode_owner(OwnerRecord(1, 2, 3, 4))[:-1], "owner")
