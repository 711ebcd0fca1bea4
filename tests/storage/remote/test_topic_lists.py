"""The store says which topics a cluster has, whoever wrote it and whatever went wrong on the way."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.fakes.object_store import SimulatedBucket, SimulatedObjectStore
from tests.storage.remote.remote_files import packed
from tests.storage.small_node import SmallNode, simulated, topic

from mainstem.model import SLOTS, Topic, TopicsAsOf
from mainstem.storage.errors import FormatError, StorageError
from mainstem.storage.object_stores.errors import ObjectStoreError
from mainstem.storage.remote.chain.topic_list_format import (
    decode_topic_list,
    encode_topic_head,
    encode_topic_list,
    listed,
)
from mainstem.storage.remote.chain.topic_list_reading import read_topic_list
from mainstem.storage.remote.chain.topic_list_writing import TopicListWriter
from mainstem.storage.store_files.object_names import TOPIC_HEAD, topic_list_object

Story = Callable[["Listing"], Awaitable[None]]


class Listing:
    """A node whose topics are listed when a test says so."""

    def __init__(self, node: SmallNode) -> None:
        self.node = node
        self.bucket = SimulatedBucket(node.clock, random.Random(1))
        self.store = SimulatedObjectStore(self.bucket)
        self.version = 100
        self.topics: list[Topic] = [topic(1), topic(2, remote_storage_enable=True)]
        self.groups = 1
        self.slots: tuple[int, ...] = ()
        self.writer: TopicListWriter
        node.opened = self.opened

    def opened(self) -> None:
        self.writer = self.another_writer()

    def another_writer(self, as_of: Callable[[], Awaitable[TopicsAsOf]] | None = None) -> TopicListWriter:
        storage = self.node.storage
        return TopicListWriter(storage.remote, self.store, storage.groups, as_of or self.as_of)

    async def as_of(self) -> TopicsAsOf:
        return TopicsAsOf(
            self.version, 1 + max(known.number for known in self.topics), self.groups, tuple(self.topics), self.slots
        )

    def change(self, *topics: Topic) -> None:
        """The list to which another entry of the metadata's log leads."""
        self.version += 1
        self.topics = list(topics)

    async def check(self) -> None:
        """The store says what is true."""
        found, now = await read_topic_list(self.store), await self.as_of()
        assert found is not None
        assert (found.next_number, found.write_groups, found.slots) == (now.next_number, now.write_groups, now.slots)
        assert list(found.topics) == [listed(known) for known in sorted(now.topics, key=lambda known: known.number)]

    def versions(self) -> list[int]:
        return [int(name.rpartition("/")[2]) for name in sorted(self.bucket.objects) if "/lists/" in name]


def told(directory: Path, story: Story) -> None:
    listings: list[Listing] = []

    async def on(_node: SmallNode) -> None:
        await story(listings[0])

    simulated(directory, on, lambda node: listings.append(Listing(node)))


def test_topics_are_listed_when_they_change_and_two_lists_stay(tmp_path: Path) -> None:
    async def story(there: Listing) -> None:
        assert await read_topic_list(there.store) is None
        await there.writer.follow()
        await there.check()
        asked = there.bucket.asked
        await there.writer.follow()
        there.version += 7
        await there.writer.follow()
        assert (there.versions(), there.bucket.asked) == ([100], asked)
        there.change(*there.topics, topic(5))
        await there.writer.follow()
        await there.check()
        there.change(topic(2, remote_storage_enable=True), topic(5, 40))
        await there.writer.follow()
        await there.check()
        changed = dataclasses.replace(topic(5, 40), configs={"retention.ms": "1", "cleanup.policy": "delete"})
        there.change(topic(2, remote_storage_enable=True), changed)
        await there.writer.follow()
        await there.check()
        assert there.versions() == [109, 110]
        assert there.writer.lists_written == 4

    told(tmp_path, story)


def test_slots_of_write_groups_that_were_added_are_listed(tmp_path: Path) -> None:
    async def story(there: Listing) -> None:
        await there.writer.follow()
        there.version += 1
        there.groups, there.slots = 2, tuple(int(slot > 4000) for slot in range(SLOTS))
        await there.writer.follow()
        await there.check()
        await there.another_writer().follow()
        assert there.versions() == [100, 101]

    told(tmp_path, story)
    for slots in ((0,) * 7, (5,) * SLOTS):
        content = b"".join(encode_topic_list(TopicsAsOf(3, 2, 2, (), slots)))
        with pytest.raises(FormatError, match="slots of write groups that there are not"):
            decode_topic_list(content, "it", 3)


def test_many_topics_take_several_frames(tmp_path: Path) -> None:
    async def story(there: Listing) -> None:
        there.change(*(topic(number, remote_storage_enable=number == 7) for number in range(2500, 0, -1)))
        await there.writer.follow()
        await there.check()
        await there.another_writer().follow()
        assert there.versions() == [101]

    told(tmp_path, story)


def test_a_cluster_without_a_remote_tier_lists_nothing(tmp_path: Path) -> None:
    async def story(there: Listing) -> None:
        there.change(topic(1))
        await there.writer.follow()
        assert not there.bucket.asked
        tier, file = there.node.storage.remote, packed("1")
        assert await tier.record(0, intended=[file.name]) == "recorded"
        await there.writer.follow()
        await there.check()

    told(tmp_path, story)


def test_the_next_leader_writes_only_what_is_new(tmp_path: Path) -> None:
    async def story(there: Listing) -> None:
        await there.writer.follow()
        await there.node.restart()
        there.version += 3
        await there.writer.follow()
        assert (there.versions(), there.writer.lists_written) == ([100], 0)
        for _ in range(3):
            there.change(*there.topics, topic(there.version))
            await there.node.restart()
            await there.writer.follow()
            await there.check()
        assert there.versions() == [105, 106]

    told(tmp_path, story)


def test_a_leader_that_is_behind_hides_nothing(tmp_path: Path) -> None:
    async def story(there: Listing) -> None:
        before = await there.as_of()

        async def behind() -> TopicsAsOf:
            return before

        deposed = there.another_writer(behind)
        there.change(*there.topics, topic(9))
        await there.writer.follow()
        await deposed.follow()
        await there.check()
        assert (deposed.lists_written, there.versions()) == (0, [101])

        there.change(*there.topics, topic(10))
        before = (await there.as_of())._replace(version=101, topics=(topic(1, remote_storage_enable=True),))
        late = there.another_writer(behind)
        with pytest.raises(StorageError, match="another cluster's"):
            await late.follow()
        await there.writer.follow()
        await there.check()

    told(tmp_path, story)


def test_of_two_that_write_the_same_version_none_does_harm(tmp_path: Path) -> None:
    async def story(there: Listing) -> None:
        writers = [there.another_writer() for _ in range(2)]
        await asyncio.gather(*(writer.follow() for writer in writers))
        await there.check()
        assert sum(writer.lists_written for writer in writers) == 1
        there.change(topic(2, 9, remote_storage_enable=True))
        for _ in range(2):
            await asyncio.gather(*(writer.follow() for writer in writers))
        await there.check()
        assert there.versions() == [100, 101]

    told(tmp_path, story)


@pytest.mark.parametrize("head", ["lost", "damaged", "never replaced", "behind"])
def test_without_a_good_head_the_newest_list_is_found(tmp_path: Path, head: str) -> None:
    async def story(there: Listing) -> None:
        there.bucket.weather.replaces = head != "never replaced"
        for _ in range(4):
            there.change(*there.topics, topic(there.version))
            await there.writer.follow()
        match head:
            case "lost":
                there.bucket.lose(TOPIC_HEAD)
            case "damaged":
                there.bucket.put(TOPIC_HEAD, b"\0" * 40)
            case "behind":
                there.bucket.put(TOPIC_HEAD, encode_topic_head(103))
        await there.check()
        await there.node.restart()
        there.change(topic(2, 8, remote_storage_enable=True))
        await there.writer.follow()
        await there.check()
        assert there.versions() == [104, 105]

    told(tmp_path, story)


def test_bad_weather_delays_the_list_and_nothing_else(tmp_path: Path) -> None:
    async def story(there: Listing) -> None:
        weather = there.bucket.weather
        weather.lost_answers = weather.lost_requests = weather.failures = 0.15
        for number in range(60):
            there.change(*there.topics[-20:], topic(200 + number, remote_storage_enable=True))
            try:
                await there.writer.follow()
            except ObjectStoreError:
                await asyncio.sleep(1)
        weather.lost_answers = weather.lost_requests = weather.failures = 0.0
        for _ in range(2):  # a head whose answer was lost is looked for once more
            await there.writer.follow()
        await there.check()
        assert len(there.versions()) == 2

    told(tmp_path, story)


def test_a_list_whose_answer_was_lost_is_not_left_to_be_the_newest(tmp_path: Path) -> None:
    async def story(there: Listing) -> None:
        await there.writer.follow()
        before = there.topics
        there.change(*before, topic(7))
        there.bucket.weather.lost_answers = 1.0
        with pytest.raises(ObjectStoreError):
            await there.writer.follow()
        assert there.versions() == [100, 101]
        there.bucket.weather.lost_answers = 0.0
        there.change(*before)
        await there.writer.follow()
        await there.check()
        assert there.versions() == [100, 102]

    told(tmp_path, story)


def test_a_bit_that_is_another_is_found_and_named(tmp_path: Path) -> None:
    async def story(there: Listing) -> None:
        await there.writer.follow()
        name = topic_list_object(100)
        content = there.bucket.objects[name].content
        for at in range(0, len(content), 5):
            there.bucket.put(name, content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
            with pytest.raises(FormatError, match=name):
                await read_topic_list(there.store)
        there.bucket.put(name, content[:-1])
        with pytest.raises(FormatError, match=name):
            await read_topic_list(there.store)
        await there.node.restart()
        there.version += 1
        await there.writer.follow()
        await there.check()
        assert there.versions() == [100, 101]

    told(tmp_path, story)
