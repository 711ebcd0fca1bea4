"""A cluster of which all files lie in a shared store goes on from it."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from tests.fakes.files import SimulatedFiles
from tests.fakes.object_store import SimulatedBucket, SimulatedObjectStore
from tests.storage.adopting.test_disk_one import GOES_ON_AT, appended, copied, elsewhere
from tests.storage.remote.stored_cluster import CLUSTER
from tests.storage.remote.test_shared_queue_store import Splitter, shared
from tests.storage.small_node import QUEUE as QUEUE_1
from tests.storage.small_node import SmallNode, simulated, topic
from tests.storage.upkeep.test_given_up_files import give_up, leave_the_journal, records

from mainstem.storage.adopting.disk_one import raised_to, write_disk_one
from mainstem.storage.adopting.lost_cluster import read_lost_cluster
from mainstem.storage.object_stores.store_folder import StoreFolder
from mainstem.storage.remote.chain.remote_chain import RemoteChain
from mainstem.storage.setup import remote_manifest_beside
from mainstem.storage.store_files.object_names import object_of
from mainstem.storage.store_files.store_file import path_of


class Folder:
    """A bucket's folder, as `Splitter` puts objects there."""

    def __init__(self, bucket: SimulatedBucket) -> None:
        self._bucket = bucket

    def put(self, name: str, content: bytes) -> None:
        self._bucket.put(f"{CLUSTER}/{name}", content)


def test_a_shared_store_is_the_whole_cluster(tmp_path: Path) -> None:
    """All that was split is there, and it is split and merged on; what was not split is lost, and its offsets are not
    given again."""
    buckets: list[SimulatedBucket] = []

    async def story(node: SmallNode) -> None:
        splitter = Splitter(node, buckets[0], tmp_path)
        await node.fill(30)
        assert await splitter.split() == ["committed"]
        await node.fill(10)
        assert await splitter.split() == ["committed"]
        await node.fill(5)
        folder, found = await copied(node, buckets[0])
        assert found.queues.tolist() == [[QUEUE_1, 0, 40]]
        await node.storage.close()
        node.disk1, node.disk2, node.manifest_path = SimulatedFiles(5), SimulatedFiles(6), elsewhere(node.manifest_path)
        node.remote_store = StoreFolder(SimulatedObjectStore(folder), CLUSTER)
        manifest = remote_manifest_beside(str(node.manifest_path))
        await write_disk_one(node.disk1, manifest, found, 1, node.clock.now_ms(), raises=True)
        await node.start()
        assert await appended(node, QUEUE_1) == GOES_ON_AT + 1
        assert await node.read_offsets() == [*range(40), GOES_ON_AT, GOES_ON_AT + 1]
        await node.fill(19)
        splitter = Splitter(node, cast("SimulatedBucket", Folder(folder)), tmp_path)
        assert await splitter.split() == ["committed"]
        await node.rounds()
        assert len(node.segments()) < 3, "what is split needs no journal"
        await node.restart()
        expected = [*range(40), *range(GOES_ON_AT, GOES_ON_AT + 21)]
        assert await node.read_offsets() == expected
        chain = RemoteChain(node.storage.remote, node.remote_store, node.storage.groups)
        for group in node.storage.groups:
            await chain.follow(group.group)
        again = await read_lost_cluster(SimulatedObjectStore(folder), CLUSTER)
        assert again.queues.tolist()[0] == [QUEUE_1, 0, GOES_ON_AT + 21]
        assert again.term > found.term
        assert raised_to(again) > GOES_ON_AT + (1 << 32)

    def prepare(node: SmallNode) -> None:
        shared(buckets)(node)
        node.groups = 2  # one has nothing in the store

    simulated(tmp_path, story, prepare)


def test_readers_of_an_adopted_store_pass_over_what_was_given_up_as_they_did_in_the_cluster(tmp_path: Path) -> None:
    buckets: list[SimulatedBucket] = []

    async def bounds(node: SmallNode) -> tuple[int, list[int]]:
        return node.offsets().log_start, (await records(node, QUEUE_1))[0]

    async def story(node: SmallNode) -> None:
        splitter = Splitter(node, buckets[0], tmp_path)
        await node.fill(10)
        assert await splitter.split() == ["committed"]
        (lost,) = list(node.storage.remote.manifest.files)
        await node.fill(20)
        assert await splitter.split() == ["committed"]
        await leave_the_journal(node, splitter)
        buckets[0].remove(object_of(0, path_of(lost)))
        await node.restart()
        await give_up(node, lost)
        before = await bounds(node)
        assert before == (0, [*range(10, 30)]), "offset 0 is in range"
        folder, found = await copied(node, buckets[0])
        await node.storage.close()
        node.disk1, node.disk2, node.manifest_path = SimulatedFiles(5), SimulatedFiles(6), elsewhere(node.manifest_path)
        node.remote_store = StoreFolder(SimulatedObjectStore(folder), CLUSTER)
        manifest = remote_manifest_beside(str(node.manifest_path))
        await write_disk_one(node.disk1, manifest, found, 1, node.clock.now_ms(), raises=False)
        await node.start()
        assert await bounds(node) == before

    def prepare(node: SmallNode) -> None:
        shared(buckets)(node)
        node.topics = [topic(partitions=3, retention_ms=-1)]

    simulated(tmp_path, story, prepare)
