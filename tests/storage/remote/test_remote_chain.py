"""The chain in the store says what the log says, whoever wrote it and whatever went wrong on the way."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.fakes.object_store import SimulatedBucket, SimulatedObjectStore
from tests.storage.remote.remote_files import packed, span
from tests.storage.small_node import SmallNode, simulated

from mainstem.storage.errors import FormatError, StorageError
from mainstem.storage.remote.chain.chain_reading import read_chain
from mainstem.storage.remote.chain.remote_chain import RemoteChain
from mainstem.storage.remote.decided.remote_tier import RemoteTier
from mainstem.storage.store_files.object_names import change_object, head_object, image_object

Story = Callable[["Chained"], Awaitable[None]]


class Chained:
    """A node whose chain is written when a test says so, a few changes to an image."""

    def __init__(self, node: SmallNode, *, changes_per_image: int, held_max: int) -> None:
        self.node = node
        self._settings = {"changes_per_image": changes_per_image, "held_max": held_max}
        self.bucket = SimulatedBucket(node.clock, random.Random(1))
        self.store = SimulatedObjectStore(self.bucket)
        self._uploads = 0
        self.chain: RemoteChain
        node.opened = self.opened

    def opened(self) -> None:
        storage = self.node.storage
        self.chain = RemoteChain(storage.remote, self.store, storage.groups, **self._settings)

    @property
    def tier(self) -> RemoteTier:
        return self.node.storage.remote

    async def upload(self, count: int = 1) -> None:
        """Two changes for each file."""
        for _ in range(count):
            self._uploads += 1
            file, upto = packed(f"{self._uploads:04}"), 10 * self._uploads
            assert await self.tier.record(0, intended=[file.name]) == "recorded"
            assert await self.tier.record(0, upto=upto, spans=[span(upto - 10, upto, file)]) == "recorded"

    async def check(self) -> None:
        """The store says what the log has decided."""
        found = await read_chain(self.store, 0)
        assert found is not None
        position, notes, spans = await self.tier.image(0)
        assert found.position == position
        assert list(found.files) == list(spans.described())
        for said, known in ((found.notes.intended, notes.intended), (found.notes.leaving, notes.leaving)):
            assert {name: noted.epoch for name, noted in said.items()} == {
                name: noted.epoch for name, noted in known.items()
            }

    def names(self) -> list[str]:
        return sorted(name.removeprefix("groups/0/") for name in self.bucket.objects)


def told(directory: Path, story: Story, *, changes_per_image: int = 1000, held_max: int = 1000) -> None:
    chained: list[Chained] = []

    def prepare(node: SmallNode) -> None:
        chained.append(Chained(node, changes_per_image=changes_per_image, held_max=held_max))

    async def on(_node: SmallNode) -> None:
        await story(chained[0])

    simulated(directory, on, prepare)


def test_changes_are_written_once_each_in_their_order(tmp_path: Path) -> None:
    async def story(node: Chained) -> None:
        assert await read_chain(node.store, 0) is None
        await node.chain.follow(0)
        assert not node.names()
        for _ in range(3):
            await node.upload(2)
            assert node.chain.behind() == 4
            await node.chain.follow(0)
            assert not node.chain.behind()
            await node.chain.follow(0)
            await node.check()
        assert await node.tier.record(0, gone=["0001.pack"], intended=["x.pack"]) == "recorded"
        await node.chain.follow(0)
        await node.check()
        assert node.chain.changes_written == 13
        assert node.chain.images_written == 0
        assert node.names() == [*(f"chain/{number:020}" for number in range(1, 14)), "head"]

    told(tmp_path, story)


def test_the_next_leader_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    async def story(node: Chained) -> None:
        await node.upload(3)
        await node.chain.follow(0)
        await node.node.restart()
        await node.upload(2)
        await node.chain.follow(0)
        await node.check()
        assert node.chain.changes_written == 4
        assert node.chain.images_written == 0

    told(tmp_path, story)


def test_a_leader_that_does_not_have_the_changes_begins_with_an_image(tmp_path: Path) -> None:
    async def story(node: Chained) -> None:
        await node.upload(3)
        await node.chain.follow(0)
        await node.upload(2)
        await node.node.restart()
        await node.chain.follow(0)
        await node.check()
        assert node.chain.images_written == 1
        await node.upload()
        await node.chain.follow(0)
        await node.check()
        assert node.chain.images_written == 1

    told(tmp_path, story)


def test_more_changes_than_are_held_become_an_image(tmp_path: Path) -> None:
    async def story(node: Chained) -> None:
        await node.upload(1)
        await node.chain.follow(0)
        await node.upload(6)
        await node.chain.follow(0)
        assert node.chain.images_written == 1
        await node.check()

    told(tmp_path, story, held_max=10)


def test_changes_that_a_snapshot_took_the_place_of_become_an_image(tmp_path: Path) -> None:
    async def story(node: Chained) -> None:
        await node.upload(1)
        await node.chain.follow(0)
        await node.upload(1)
        position, notes, spans = await node.tier.image(0)
        later = position._replace(number=position.number + 7)
        await node.tier.supersede(0, later, notes, list(spans.described()))
        await node.upload(2)
        await node.chain.follow(0)
        assert node.chain.images_written == 1
        await node.check()
        await node.upload(1)
        await node.chain.follow(0)
        assert node.chain.images_written == 1
        await node.check()

    told(tmp_path, story)


def test_images_keep_the_chain_short(tmp_path: Path) -> None:
    async def story(node: Chained) -> None:
        for _ in range(30):
            await node.upload(2)
            await node.chain.follow(0)
            await node.check()
        assert node.chain.images_written == 10
        assert node.names() == [
            *(f"chain/{number:020}" for number in range(108, 121)),
            "head",
            f"images/{108:020}",
            f"images/{120:020}",
        ]

    told(tmp_path, story, changes_per_image=12)


@pytest.mark.parametrize("head", ["lost", "damaged", "never replaced"])
def test_without_a_head_the_chain_is_found(tmp_path: Path, head: str) -> None:
    async def story(node: Chained) -> None:
        node.bucket.weather.replaces = head != "never replaced"
        for _ in range(8):
            await node.upload(2)
            await node.chain.follow(0)
        if head == "lost":
            node.bucket.lose(head_object(0))
        if head == "damaged":
            node.bucket.put(head_object(0), b"\0" * 40)
        await node.check()
        await node.node.restart()
        await node.upload()
        await node.chain.follow(0)
        await node.check()

    told(tmp_path, story, changes_per_image=12)


@pytest.mark.parametrize("head", ["replaced", "never replaced", "lost"])
def test_many_leaders_leave_no_more_in_the_store_than_one_would(tmp_path: Path, head: str) -> None:
    async def story(node: Chained) -> None:
        node.bucket.weather.replaces = head != "never replaced"
        for _ in range(4):
            for _ in range(20):
                await node.upload(2)
                await node.chain.follow(0)
            await node.check()
            if head == "lost":
                node.bucket.lose(head_object(0))
            await node.node.restart()
        left = node.names()
        images = [name for name in left if name.startswith("images/")]
        changes = [name for name in left if name.startswith("chain/")]
        assert len(images) == 2, left
        assert changes[0].removeprefix("chain/") >= images[0].removeprefix("images/")

    told(tmp_path, story, changes_per_image=12)


def test_bad_weather_delays_the_chain_and_nothing_else(tmp_path: Path) -> None:
    async def story(node: Chained) -> None:
        weather = node.bucket.weather
        weather.lost_answers = weather.lost_requests = weather.failures = 0.1
        for _ in range(40):
            await node.upload()
            try:
                await node.chain.follow(0)
            except StorageError:
                await asyncio.sleep(1)
        weather.lost_answers = weather.lost_requests = weather.failures = 0.0
        for _ in range(2):  # a head whose answer was lost is looked for once more
            await node.chain.follow(0)
        await node.check()
        assert node.chain.images_written

    told(tmp_path, story, changes_per_image=12)


@pytest.mark.parametrize("what", [change_object(0, 4), image_object(0, 12)])
def test_a_bit_that_is_another_is_found_and_named(tmp_path: Path, what: str) -> None:
    async def story(node: Chained) -> None:
        await node.upload(2 if "chain" in what else 6)
        await node.chain.follow(0)
        content = node.bucket.objects[what].content
        for at in range(0, len(content), 7):
            node.bucket.put(what, content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
            with pytest.raises(FormatError, match=what):
                await node.check()
        node.bucket.put(what, content[:-1])
        with pytest.raises(FormatError, match=what):
            await node.check()
        node.bucket.put(what, content)
        await node.check()

    told(tmp_path, story, changes_per_image=12)


def test_what_another_cluster_has_written_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    async def story(node: Chained) -> None:
        await node.upload()
        node.bucket.put(change_object(0, 1), b"x" * 500)
        node.bucket.put(change_object(0, 2), b"x" * 500)
        node.bucket.lose(change_object(0, 1))
        with pytest.raises(StorageError, match="another cluster's"):
            await node.chain.follow(0)

    told(tmp_path, story)
