"""Objects that do not count go from the object store: nothing else goes, and nothing stays for ever."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from tests.fakes.object_store import SimulatedBucket, SimulatedObjectStore
from tests.storage.remote.remote_files import packed, span
from tests.storage.small_node import SmallNode, simulated

from mainstem.storage.remote.decided.remote_tier import RemoteTier
from mainstem.storage.remote.remote_upkeep import LOOK_SECONDS, READ_MS_MAX, UPLOAD_MS_MAX, RemoteUpkeep
from mainstem.storage.store_files.object_names import file_objects
from mainstem.storage.store_files.store_file import StoreFile, segment_name
from mainstem.storage.write_groups.control import RemoteChanged
from mainstem.storage.write_groups.write_group import WriteGroup

A, B, C = (packed(name) for name in "abc")
SEGMENT = segment_name("flights", 0, "ab", 0)

A_LOOK = 2 * LOOK_SECONDS
A_WHILE = READ_MS_MAX / 1000 + A_LOOK


class CountingStore(SimulatedObjectStore):
    """Counts the requests that delete."""

    deletions = 0

    async def delete(self, names: Sequence[str]) -> None:
        self.deletions += 1
        await super().delete(names)


class Told:
    """A node with an object store, and what was put there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bucket: SimulatedBucket
        self.store: CountingStore
        self.days = 0

    def prepare(self, node: SmallNode) -> None:
        self.bucket = SimulatedBucket(node.clock, random.Random(1))
        node.remote_store = self.store = CountingStore(self.bucket)
        node.opened = lambda: self._tell_time(node.storage.remote)

    def _tell_time(self, tier: RemoteTier) -> None:
        """Some of the days pass within no time."""
        steady = tier.now_ms
        tier.now_ms = lambda: steady() + self.days * UPLOAD_MS_MAX

    async def sleep_a_day(self) -> None:
        self.days += 1
        await asyncio.sleep(A_LOOK)

    def put(self, *names: str) -> None:
        for name in names:
            for one in file_objects(0, name):
                self.bucket.put(one, b"bytes")

    def files(self) -> list[str]:
        """The objects of files; the chain's are beside them."""
        return [name for name in self.bucket.objects if "/files/" in name]

    def there(self, name: str) -> bool:
        found = [one in self.bucket.objects for one in file_objects(0, name)]
        assert len(set(found)) == 1, "some of what belongs to a file is there, some is not"
        return found[0]

    async def upload(self, node: SmallNode, upto: int, *files: StoreFile) -> None:
        names = [file.name for file in files]
        assert await node.storage.remote.record(0, intended=names) == "recorded"
        self.put(*names)
        assert await node.storage.remote.record(0, upto=upto, spans=[span(0, upto, *files)]) == "recorded"


def test_files_that_went_are_deleted_when_their_readers_are_done(tmp_path: Path) -> None:
    told = Told(tmp_path)

    async def story(node: SmallNode) -> None:
        await told.upload(node, 10, A, B)
        assert await node.storage.remote.record(0, gone=[A.name]) == "recorded"
        await asyncio.sleep(READ_MS_MAX / 1000 - 1)
        assert told.there(A.name)
        await asyncio.sleep(A_LOOK)
        assert not told.there(A.name)
        assert not node.storage.remote.leaving(0)
        await told.sleep_a_day()
        await told.sleep_a_day()
        assert told.there(B.name)
        assert node.storage.remote_upkeep is not None
        assert node.storage.remote_upkeep.deleted_files == 1

    simulated(tmp_path, story, told.prepare)


def test_what_an_earlier_leader_intended_is_deleted_now_and_a_day_later(tmp_path: Path) -> None:
    told = Told(tmp_path)

    async def story(node: SmallNode) -> None:
        assert await node.storage.remote.record(0, intended=[A.name, SEGMENT]) == "recorded"
        told.put(A.name, SEGMENT)
        await asyncio.sleep(A_WHILE)
        assert told.there(A.name), "it may be about to count"
        await node.restart()
        await asyncio.sleep(A_LOOK)
        assert not told.there(A.name)
        assert not told.there(SEGMENT)
        told.put(SEGMENT)  # an executor was still uploading
        await asyncio.sleep(A_WHILE)
        assert set(node.storage.remote.intended(0)) == {A.name, SEGMENT}
        await told.sleep_a_day()
        assert not told.files()
        assert not node.storage.remote.intended(0)

    simulated(tmp_path, story, told.prepare)


def test_what_is_given_up_goes_too_and_what_everybody_forgot_after_two_days(tmp_path: Path) -> None:
    told = Told(tmp_path)

    async def story(node: SmallNode) -> None:
        tier = node.storage.remote
        assert await tier.record(0, intended=[A.name, B.name]) == "recorded"
        told.put(A.name, B.name)
        assert await tier.record(0, gone=[A.name]) == "recorded"
        await asyncio.sleep(A_LOOK)
        assert (told.there(A.name), told.there(B.name)) == (False, True)
        await told.sleep_a_day()
        assert not told.files()
        assert not tier.intended(0)
        assert "was not intended" in await tier.record(0, upto=10, spans=[span(0, 10, B)])

    simulated(tmp_path, story, told.prepare)


def test_what_was_noted_while_the_clock_was_ahead_goes_all_the_same(tmp_path: Path) -> None:
    """A node takes its own clock for the time until it has asked the others."""
    told = Told(tmp_path)

    async def story(node: SmallNode) -> None:
        tier = node.storage.remote
        told.days = 366
        await told.upload(node, 10, A)
        assert await tier.record(0, gone=[A.name]) == "recorded"
        assert await tier.record(0, intended=[B.name]) == "recorded"
        told.put(B.name)
        told.days = 0
        await asyncio.sleep(A_LOOK)
        assert told.there(A.name), "somebody may read it"
        await asyncio.sleep(A_WHILE)
        assert not told.there(A.name)
        assert not tier.leaving(0)
        await told.sleep_a_day()
        await asyncio.sleep(A_LOOK)
        assert not told.there(B.name)
        await told.sleep_a_day()
        await asyncio.sleep(A_LOOK)
        assert not tier.intended(0)

    simulated(tmp_path, story, told.prepare)


def test_while_the_store_is_out_names_wait_and_the_node_goes_on(tmp_path: Path) -> None:
    told = Told(tmp_path)

    async def story(node: SmallNode) -> None:
        await told.upload(node, 10, A, B)
        told.bucket.weather.down = True
        assert await node.storage.remote.record(0, gone=[A.name]) == "recorded"
        await asyncio.sleep(A_WHILE)
        assert list(node.storage.remote.leaving(0)) == [A.name]
        assert node.storage.failure is None
        await node.fill(3)
        told.bucket.weather.down = False
        await asyncio.sleep(A_WHILE)
        assert not node.storage.remote.leaving(0)
        assert not told.there(A.name)
        assert told.there(B.name)

    simulated(tmp_path, story, told.prepare)


def test_objects_of_thousands_of_files_go_in_a_few_requests(tmp_path: Path) -> None:
    told = Told(tmp_path)
    files = [packed(f"{number:032x}", first_queue=number << 32) for number in range(1, 1001)]

    async def story(node: SmallNode) -> None:
        await told.upload(node, 10, *files)
        assert await node.storage.remote.record(0, gone=[file.name for file in files]) == "recorded"
        await asyncio.sleep(A_WHILE)
        assert not told.files()
        assert told.store.deletions == 4

    simulated(tmp_path, story, told.prepare)


def test_an_upload_of_a_day_that_comes_to_count_at_the_last_moment_is_not_given_up(tmp_path: Path) -> None:
    """The upkeep waits while another change is recorded."""
    told = Told(tmp_path)

    async def story(node: SmallNode) -> None:
        tier, upkeep = node.storage.remote, node.storage.remote_upkeep
        assert upkeep is not None
        assert await tier.record(0, intended=[A.name, B.name]) == "recorded"
        told.put(A.name, B.name)
        told.days = 1
        counted, _ = await asyncio.gather(tier.record(0, upto=10, spans=[span(0, 10, A)]), upkeep.look(0))
        assert counted == "recorded"
        assert tier.counts(0, A.name)
        assert (told.there(A.name), told.there(B.name)) == (True, False)

    simulated(tmp_path, story, told.prepare)


class LosesLeadership:
    """A tier whose node is deposed while it has a change recorded."""

    def __init__(self, tier: RemoteTier, led: SimpleNamespace) -> None:
        self._tier = tier
        self._led = led
        self.now_ms, self.intended, self.leaving = tier.now_ms, tier.intended, tier.leaving

    async def abandon(self, group: int, names: Sequence[str]) -> str:
        self._led.term += 1
        return "refused: the leadership was lost"


def test_who_is_deposed_while_it_gives_names_up_deletes_nothing_that_comes_to_count(tmp_path: Path) -> None:
    """The next leader's log has what the last one was about to have counted."""
    told = Told(tmp_path)

    async def story(node: SmallNode) -> None:
        now_ms = 0
        tier = await RemoteTier.open(str(tmp_path / "tier"), lambda: now_ms)
        assert tier.applied(0, RemoteChanged(1, 7, 0, intended=(A.name,))) == "recorded"
        now_ms = UPLOAD_MS_MAX
        assert tier.applied(0, RemoteChanged(2, 7, 0, intended=(B.name,))) == "recorded"
        told.put(A.name, B.name)
        led = SimpleNamespace(term=7)
        deposed = cast("RemoteTier", LosesLeadership(tier, led))
        await RemoteUpkeep(deposed, told.store, [cast("WriteGroup", led)]).look(0)
        assert tier.applied(0, RemoteChanged(3, 7, 10, spans=(span(0, 10, B),))) == "recorded"
        assert tier.counts(0, B.name)
        assert told.there(B.name)
        await tier.close()

    simulated(tmp_path, story, told.prepare)
