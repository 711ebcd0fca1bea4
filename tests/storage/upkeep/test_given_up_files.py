"""Files of an object store that are lost for good are given up, and readers pass over what they had: no more than that,
alike on each replica, and for good."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import cast

import msgspec
import numpy
import pytest
from tests.fakes.object_store import SimulatedBucket, SimulatedObjectStore
from tests.storage.remote.stored_cluster import CLUSTER
from tests.storage.remote.test_shared_queue_store import Splitter, shared
from tests.storage.remote.tiered_node import let_go, local_ranges, split_in_parts, tier, with_bucket
from tests.storage.small_node import QUEUE, SmallNode, simulated, topic

from mainstem.kernel import crc32c
from mainstem.model import Outcome
from mainstem.protocol.records import walk_batches
from mainstem.rpc.errors import CallFailed
from mainstem.rpc.messages.repair import StretchesPart
from mainstem.rpc.messages.tier import GivenUpFile
from mainstem.rpc.other_nodes import Calls
from mainstem.storage.errors import SegmentGone, StorageError
from mainstem.storage.queue_store.copies.file_mending import STRETCH
from mainstem.storage.remote.chain.chain_reading import read_chain
from mainstem.storage.remote.chain.remote_chain import RemoteChain
from mainstem.storage.remote.decided.remote_pages import RemoteImage, pages
from mainstem.storage.store_files.object_names import file_objects, object_of
from mainstem.storage.store_files.store_file import path_of
from mainstem.storage.upkeep import given_up_files
from mainstem.storage.upkeep.given_up_files import GivenUpFiles, LocalAndOtherCopies, NotLost

OTHER = QUEUE + 1
BY = "an operator"


async def records(node: SmallNode, queue_id: int, start: int = 0) -> tuple[list[int], int]:
    """The offsets of all records that a consumer gets from here on, and where it is then."""
    position, found = start, list[int]()
    while position < node.offsets(queue_id).high_watermark:
        part = await node.read(position, queue_id, 1)
        assert part.outcome is Outcome.OK, position
        for batch in part.batches:
            for _at, header in walk_batches(batch):
                assert header.next_offset > position
                found += range(header.base_offset, header.base_offset + header.record_count)
        assert part.next_offset > position, "clients would stay here for ever"
        position = part.next_offset
    return found, position


def giving(node: SmallNode) -> GivenUpFiles:
    found = node.storage.given_up_files
    assert found is not None
    return found


async def give_up(node: SmallNode, *names: str) -> list[GivenUpFile]:
    lost = await giving(node).judge(names, BY, ())
    await giving(node).give_up(lost)
    return [one for _group, one in lost]


async def leave_the_journal(node: SmallNode, splitter: Splitter) -> None:
    """Have the journal go on in later segments, and prune those before them."""
    await node.fill(20, QUEUE + 2, 2000)
    assert await splitter.split() == ["committed"]
    await node.rounds()


@pytest.mark.parametrize("seed", range(8))
def test_readers_get_all_that_is_not_given_up_and_nothing_else(tmp_path: Path, seed: int) -> None:
    bucket: list[SimulatedBucket] = []
    rng = random.Random(seed)

    async def story(node: SmallNode) -> None:
        splitter = Splitter(node, bucket[0], tmp_path)
        has: dict[str, dict[int, list[int]]] = {}
        for _ in range(rng.randint(2, 6)):
            before = {queue_id: node.offsets(queue_id).end for queue_id in (QUEUE, OTHER)}
            await node.fill(rng.randint(1, 8), QUEUE)
            await node.fill(rng.choice([0, 0, 3]), OTHER)
            known = set(node.storage.remote.manifest.files)
            assert await splitter.split() == ["committed"]
            (name,) = set(node.storage.remote.manifest.files) - known
            has[name] = {queue_id: list(range(first, node.offsets(queue_id).end)) for queue_id, first in before.items()}
        await leave_the_journal(node, splitter)
        lost = [name for name in has if rng.random() < 0.5] or [rng.choice(list(has))]
        for name in lost:
            path = object_of(0, path_of(name))
            content = bytes(bucket[0].objects[path].content)
            bucket[0].remove(path)
            if rng.random() < 0.3:
                bucket[0].put(path, content[: len(content) // 2])
        await node.restart()
        first = min(offset for name in lost for offset in has[name][QUEUE])
        assert (await node.read(first)).outcome is Outcome.STORAGE_FAILED
        ends = {queue_id: node.offsets(queue_id).end for queue_id in (QUEUE, OTHER)}
        for _ in range(2):
            if not node.storage.remote.given_up(0):
                noted = await give_up(node, *lost)
                assert sorted(one.name for one in noted) == sorted(lost)
            for queue_id, end in ends.items():
                kept = sorted(offset for name in has if name not in lost for offset in has[name][queue_id])
                assert await records(node, queue_id) == (kept, end)
                middle = rng.randint(0, max(end - 1, 0))
                assert (await records(node, queue_id, middle))[0] == [offset for offset in kept if offset >= middle]
            await node.restart()
        await node.fill(3, QUEUE)
        kept = sorted(offset for name in has if name not in lost for offset in has[name][QUEUE])
        assert (await records(node, QUEUE))[0] == [*kept, *range(ends[QUEUE], ends[QUEUE] + 3)]
        assert node.offsets().end == ends[QUEUE] + 3, "offsets of what was lost are not given again"

    def prepare(node: SmallNode) -> None:
        shared(bucket)(node)
        node.topics = [topic(partitions=3, retention_ms=-1)]

    simulated(tmp_path, story, prepare)


def test_what_is_given_up_is_noted_for_good_and_told_by_log_rows_snapshots_and_store(tmp_path: Path) -> None:
    bucket: list[SimulatedBucket] = []

    async def story(node: SmallNode) -> None:
        splitter = Splitter(node, bucket[0], tmp_path)
        for _ in range(3):
            await node.fill(10)
            assert await splitter.split() == ["committed"]
        names = list(node.storage.remote.manifest.files)
        bucket[0].remove(object_of(0, path_of(names[1])))
        (noted,) = await give_up(node, f"{CLUSTER}/{object_of(0, path_of(names[1]))}")
        assert (noted.name, noted.by, noted.record_count) == (names[1], BY, 10)
        assert "missing" in noted.fault
        assert noted.first_queue <= QUEUE <= noted.last_queue
        with pytest.raises(NotLost, match="no file that counts"):
            await give_up(node, names[1])
        remote = node.storage.remote
        assert list(remote.given_up(0)) == [noted]
        assert names[1] in remote.leaving(0)
        image: RemoteImage | None = None
        async for page in pages(remote, 0):
            image = image or RemoteImage.begun(page.standing)
            image.take(page.standing, page.ranges)
        assert image is not None
        assert image.notes.given_up == [noted]
        assert await splitter.merge() == "merged", "no merge waits for it"
        await asyncio.sleep(300.0)
        left = {one for name in remote.manifest.files for one in file_objects(0, name)}
        assert {name for name in bucket[0].objects if "/files/" in name} == left
        assert node.remote_store is not None
        tier = await read_chain(node.remote_store, 0)
        assert tier is not None
        assert list(tier.notes.given_up) == [noted]
        again = RemoteChain(remote, node.remote_store, node.storage.groups, changes_per_image=1)
        await again.follow(0)
        assert again.images_written
        tier = await read_chain(node.remote_store, 0)
        assert tier is not None
        assert list(tier.notes.given_up) == [noted], "an image has it as well"
        await remote.supersede(0, image.position, image.notes, image.files)
        assert list(remote.given_up(0)) == [noted]
        await node.restart()
        assert list(node.storage.remote.given_up(0)) == [noted]

    simulated(tmp_path, story, shared(bucket))


def test_whole_files_and_a_store_that_is_out_are_refused_and_nothing_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket: list[SimulatedBucket] = []

    async def story(node: SmallNode) -> None:
        splitter = Splitter(node, bucket[0], tmp_path)
        for _ in range(2):
            await node.fill(10)
            assert await splitter.split() == ["committed"]
        lost, whole = node.storage.remote.manifest.files
        await leave_the_journal(node, splitter)
        content = bytes(bucket[0].objects[object_of(0, path_of(lost))].content)
        bucket[0].remove(object_of(0, path_of(lost)))
        with pytest.raises(NotLost, match=f"{whole}: it is not lost"):
            await give_up(node, lost, whole)
        with pytest.raises(NotLost, match="groups/0/files/runs/none: no file that counts"):
            await give_up(node, lost, "groups/0/files/runs/none")
        bucket[0].weather.down = True
        with pytest.raises(NotLost, match="does not say whether it is lost"):
            await give_up(node, lost)
        bucket[0].weather.down = False
        monkeypatch.setattr(given_up_files, "GIVEN_UP_MAX", 0)
        with pytest.raises(NotLost, match="0 files were given up"):
            await give_up(node, lost)
        monkeypatch.undo()
        assert not node.storage.remote.given_up(0)
        judged = await giving(node).judge([lost], BY, ())
        bucket[0].put(object_of(0, path_of(lost)), content)
        with pytest.raises(NotLost, match="it is not lost"):
            await give_up(node, lost)
        assert await node.read_offsets() == list(range(20)), "a restored object is read as ever"
        await giving(node).give_up(judged)
        assert (await records(node, QUEUE))[0] == list(range(10, 20)), "and once it is given up it is not"

    def prepare(node: SmallNode) -> None:
        shared(bucket)(node)
        node.topics = [topic(partitions=3, retention_ms=-1)]

    simulated(tmp_path, story, prepare)


@pytest.mark.parametrize("asked_late", [False, True], ids=["tiered", "tiered-later"])
def test_a_file_of_which_disk_2_has_the_records_is_not_lost(tmp_path: Path, *, asked_late: bool) -> None:
    """Files of a topic that asked for the tier when they were there already have another class on disk 2."""
    tiered = topic(1, 2, retention_ms=-1, remote_storage_enable=True, local_retention_ms=1000)

    def prepare(node: SmallNode) -> None:
        with_bucket(node)
        node.topics = [topic(1, 2, retention_ms=-1) if asked_late else tiered]

    async def story(node: SmallNode) -> None:
        await split_in_parts(node, 3, 10)
        node.topics = [tiered]
        ranges = local_ranges(node)
        files = await tier(node, ranges)
        assert isinstance(node.remote_store, SimulatedObjectStore)
        node.remote_store.bucket.remove(object_of(0, path_of(files[0].name)))
        with pytest.raises(NotLost, match=f"disk 2 of node 1 has records of the same blocks in {ranges[0].name}"):
            await give_up(node, files[0].name)
        await let_go(node, ranges)
        await give_up(node, files[0].name)
        end = node.offsets().end
        found, reached = await records(node, QUEUE)
        assert (found, reached) == (list(range(10, end)), end)

    simulated(tmp_path, story, prepare)


class OtherNode:
    """Calls to a node that says which queues it has of some blocks, or is down."""

    def __init__(self, queue_ids: Sequence[int], *, down: bool = False) -> None:
        self._queue_ids = queue_ids
        self._down = down

    async def stream(
        self, node_id: int, method: object, request: object, *, timeout_seconds: float
    ) -> AsyncIterator[tuple[StretchesPart, bytes]]:
        if self._down:
            raise CallFailed(f"node {node_id} does not answer")
        rows = numpy.zeros(len(self._queue_ids), STRETCH)
        rows["queue_id"] = self._queue_ids
        yield StretchesPart(10, crc32c(rows.tobytes())), rows.tobytes()


@pytest.mark.parametrize(
    ("other", "without", "said"),
    [
        (OtherNode([QUEUE]), (), "node 2 has records of the same blocks"),
        (OtherNode([QUEUE], down=True), (), "node 2 may have its records, and cannot be asked"),
        (OtherNode([QUEUE], down=True), (2,), ""),
        (OtherNode([5 << 32]), (), ""),
        (OtherNode([]), (), ""),
    ],
)
def test_other_replicas_are_asked_what_they_have_on_disk_2(
    tmp_path: Path, other: OtherNode, without: Sequence[int], said: str
) -> None:
    async def story(node: SmallNode) -> None:
        await split_in_parts(node, 2, 5)
        ranges = local_ranges(node)
        (file, *_more) = await tier(node, ranges)
        await let_go(node, ranges)
        calls = cast(Calls, other)
        copies = LocalAndOtherCopies(1, node.storage.queue_store, lambda group: [1, 2], calls, lambda: node.topics)
        found = await copies.holder(0, ranges[0].after, ranges[0].upto, file, without)
        assert found.startswith(said)
        assert bool(found) == bool(said)

    def prepare(node: SmallNode) -> None:
        with_bucket(node)
        node.topics = [topic(1, 2, retention_ms=-1, remote_storage_enable=True)]

    simulated(tmp_path, story, prepare)


def test_a_read_that_reached_no_end_passes_over_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket: list[SimulatedBucket] = []

    async def story(node: SmallNode) -> None:
        splitter = Splitter(node, bucket[0], tmp_path)
        await node.fill(10)
        assert await splitter.split() == ["committed"]
        (lost,) = node.storage.remote.manifest.files
        bucket[0].remove(object_of(0, path_of(lost)))
        await give_up(node, lost)
        await node.fill(10)
        await leave_the_journal(node, splitter)
        await node.restart()

        async def gone(*_arguments: object) -> None:
            raise SegmentGone("a segment left while it was read")

        with monkeypatch.context() as patched:
            patched.setattr(node.storage.read_path, "_below", gone)
            for offset in (0, 10):
                found = await node.read(offset)
                assert (found.outcome, found.batches) == (Outcome.STORAGE_FAILED, []), offset
        assert (await records(node, QUEUE))[0] == list(range(10, node.offsets().end))

    def prepare(node: SmallNode) -> None:
        shared(bucket)(node)
        node.topics = [topic(partitions=3, retention_ms=-1)]

    simulated(tmp_path, story, prepare)


def test_a_log_that_does_not_take_it_gives_nothing_up(tmp_path: Path) -> None:
    bucket: list[SimulatedBucket] = []

    async def story(node: SmallNode) -> None:
        splitter = Splitter(node, bucket[0], tmp_path)
        await node.fill(10)
        assert await splitter.split() == ["committed"]
        (lost,) = node.storage.remote.manifest.files
        bucket[0].remove(object_of(0, path_of(lost)))
        judged = await giving(node).judge([lost], BY, ())
        node.level = type(node.level)(3)
        with pytest.raises(StorageError, match="feature level"):
            await giving(node).give_up(judged)
        assert not node.storage.remote.given_up(0)
        assert lost in node.storage.remote.manifest.files
        ((group, one),) = judged
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=GivenUpFile) == one
        assert group == 0

    simulated(tmp_path, story, shared(bucket))
