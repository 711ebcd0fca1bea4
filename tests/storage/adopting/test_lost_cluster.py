"""The facts in an object store about a cluster are enough for a node to begin with; the others are made up for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.storage.remote.stored_cluster import CLUSTER, StoredCluster, batches_of, told

from mainstem.model import SLOTS, queue_id_of
from mainstem.storage.adopting.lost_cluster import read_lost_cluster
from mainstem.storage.errors import StorageError
from mainstem.storage.state.logs_behind import LOST_TERMS

FOLDER = f"{CLUSTER}/groups/0"


def test_topics_queues_and_terms_are_read(tmp_path: Path) -> None:
    async def story(there: StoredCluster) -> None:
        await there.fill()
        found = await read_lost_cluster(there.store, CLUSTER)
        assert [(topic.number, topic.name, topic.partitions) for topic in found.topics] == [
            (3, "topic-3", 2), (5, "topic-5", 8), (9, "adopted-topic-9", 3),
        ]  # fmt: skip
        assert found.topics[0].configs == {"remote.storage.enable": "true"}
        assert found.unlisted == ("adopted-topic-9",)
        assert found.topics[2].configs == {"retention.ms": "-1"}
        assert (found.next_number, found.write_groups, found.version) == (10, 1, 17)
        assert found.queues.tolist() == [
            [queue_id_of(3, 0), 0, 903], [queue_id_of(3, 1), 6, 30], [queue_id_of(4, 0), 0, 3],
            [queue_id_of(9, 2), 5, 8],
        ]  # fmt: skip
        assert found.numbers() == (6,)
        assert found.upto(0) == 30
        assert found.term == there.node.storage.groups[0].term + LOST_TERMS
        again = await read_lost_cluster(there.store, CLUSTER)
        assert again._replace(queues=found.queues) == found
        assert again.queues.tolist() == found.queues.tolist()

    told(tmp_path, story)


@pytest.mark.parametrize(
    "name",
    [
        f"{FOLDER}/images/00000000000000000006",
        f"{FOLDER}/files/packed/first.pack",
        f"{CLUSTER}/topics/lists/00000000000000000017",
    ],
)
def test_what_is_damaged_is_named_and_nothing_is_adopted(tmp_path: Path, name: str) -> None:
    async def story(there: StoredCluster) -> None:
        await there.fill()
        content = there.bucket.objects[name].content
        there.bucket.put(name, content[:-20] + bytes(20))
        with pytest.raises(StorageError, match=name.removeprefix(f"{CLUSTER}/")):
            await read_lost_cluster(there.store, CLUSTER)

    told(tmp_path, story)


def test_a_missing_index_is_named(tmp_path: Path) -> None:
    async def story(there: StoredCluster) -> None:
        await there.fill()
        await there.store.delete([f"{FOLDER}/files/packed/last.pack"])
        with pytest.raises(StorageError, match=r"packed/last\.pack"):
            await read_lost_cluster(there.store, CLUSTER)

    told(tmp_path, story)


def test_files_of_a_write_group_that_the_list_of_topics_does_not_know_are_not_adopted(tmp_path: Path) -> None:
    async def story(there: StoredCluster) -> None:
        await there.fill()
        storage = there.node.storage
        there.node.founders[1] = (1,)
        storage.grow([0] * SLOTS, 2)
        while not storage.groups[1].serving:  # noqa: ASYNC110 - simulated time
            await asyncio.sleep(0.05)
        assert await storage.remote.record(1, intended=["begun.pack"]) == "recorded"
        await there.chain().follow(1)
        with pytest.raises(
            StorageError, match="files of 2 write groups, and the list of its topics is from when it had"
        ):
            await read_lost_cluster(there.store, CLUSTER)

    told(tmp_path, story)


def test_a_cluster_that_left_no_list_is_not_adopted(tmp_path: Path) -> None:
    async def story(there: StoredCluster) -> None:
        await there.upload("first.pack", batches_of(3, 0, range(0, 60, 3)))
        await there.chain().follow(0)
        with pytest.raises(StorageError, match="there is no list of topics"):
            await read_lost_cluster(there.store, CLUSTER)
        with pytest.raises(StorageError, match="nothing of a cluster nobody"):
            await read_lost_cluster(there.store, "nobody")

    told(tmp_path, story)
