"""The content of an object store is told by what lies in it alone, damage by its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fakes.files import SimulatedFiles
from tests.storage.queue_store.runs import write_merged
from tests.storage.remote.stored_cluster import CLUSTER, GONE, IDLE, ORDERS, StoredCluster, batches_of, told

from mainstem.storage.object_stores.errors import ObjectStoreOutage
from mainstem.storage.remote.chain.remote_chain import RemoteChain
from mainstem.storage.remote.chain.topic_list_format import listed
from mainstem.storage.remote.survey import store_survey
from mainstem.storage.remote.survey.store_survey import ClusterSurvey, PartitionSurvey, cluster_ids, survey
from mainstem.storage.store_files.object_names import object_of, topic_list_object
from mainstem.storage.store_files.store_file import index_path_of


def check_parts(found: ClusterSurvey) -> None:
    """The survey finds what `fill` has written."""
    parts = {one.number: one.partitions for one in found.topics}
    assert [part[:3] for part in parts[3]] == [(0, 0, 903), (1, 6, 30)]
    assert [part.record_count for part in parts[3]] == [903, 24]
    assert [part.batch_bytes for part in parts[3]] == [301 * 700, 8 * 700]
    assert [part.max_timestamp for part in parts[3]] == [1900, 1027]
    assert parts[GONE] == (PartitionSurvey(0, 0, 3, 700, 3, 1000),)
    assert parts[9] == (PartitionSurvey(2, 5, 8, 700, 3, 1005),)
    assert parts[5] == ()


def test_clusters_groups_topics_and_offsets_are_found(tmp_path: Path) -> None:
    async def story(there: StoredCluster) -> None:
        assert await cluster_ids(there.store) == []
        files = await there.fill()
        assert await cluster_ids(there.store) == [CLUSTER]
        found = await survey(there.store, CLUSTER)
        assert (found.cluster_id, found.topics_version, found.faults) == (CLUSTER, 17, ())
        (group,) = found.groups
        assert (group.group, group.changes, group.upto, group.files) == (0, 6, 30, 3)
        assert group.file_bytes == sum(file.bytes for file in files)
        assert (group.record_count, group.min_timestamp, group.max_timestamp) == (933, 1000, 1900)
        assert [(one.number, one.listed, one.deleted) for one in found.topics] == [
            (3, listed(ORDERS), False), (GONE, None, True), (5, listed(IDLE), False), (9, None, False),
        ]  # fmt: skip
        check_parts(found)

    told(tmp_path, story)


def test_files_that_left_the_tier_are_not_counted(tmp_path: Path) -> None:
    async def story(there: StoredCluster) -> None:
        await there.fill()
        assert await there.node.storage.remote.record(0, gone=["first.pack"]) == "recorded"
        await there.chain().follow(0)
        found = await survey(there.store, CLUSTER)
        assert [part[:3] for one in found.topics for part in one.partitions] == [(0, 60, 903), (2, 5, 8)]

    told(tmp_path, story)


def test_a_long_index_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_survey, "TAIL_BYTES", 200)

    async def story(there: StoredCluster) -> None:
        await there.fill()
        found = await survey(there.store, CLUSTER)
        assert not found.faults
        check_parts(found)

    told(tmp_path, story)


def test_folders_are_found_however_much_is_in_them(tmp_path: Path) -> None:
    async def story(there: StoredCluster) -> None:
        for number in range(2_500):
            there.bucket.put(f"a/groups/1/files/packed/{number}.pack", b"")
        for name in ("a/groups/10/head", "a/groups/2/head", "a-/topics/head", "a0/groups/0/head", "a/other"):
            there.bucket.put(name, b"")
        asked = there.bucket.asked
        assert await cluster_ids(there.store) == ["a-", "a", "a0"]
        assert there.bucket.asked - asked < 20
        found = await survey(there.store, "a")
        assert [group.group for group in found.groups] == [1, 2, 10]

    told(tmp_path, story)


@pytest.mark.parametrize("how", ["lost", "damaged", "cut", "another's", "rewritten"])
@pytest.mark.parametrize(("which", "joined"), [(0, False), (1, False), (1, True)])
def test_a_file_that_is_not_what_it_was_is_named_and_the_rest_is_told(
    tmp_path: Path, how: str, which: int, joined: bool
) -> None:
    async def story(there: StoredCluster) -> None:
        files = await there.fill(joined=joined)
        name = object_of(0, index_path_of(files[which].name))
        content = there.bucket.objects[f"{CLUSTER}/{name}"].content
        match how:
            case "lost":
                there.bucket.lose(f"{CLUSTER}/{name}")
            case "damaged":
                there.bucket.put(f"{CLUSTER}/{name}", content[:-70] + bytes([content[-70] ^ 1]) + content[-69:])
            case "cut":
                there.bucket.put(f"{CLUSTER}/{name}", content[:-1])
            case "another's":
                other = object_of(0, index_path_of(files[2].name))
                there.bucket.put(f"{CLUSTER}/{name}", there.bucket.objects[f"{CLUSTER}/{other}"].content)
            case "rewritten":
                disk, count = SimulatedFiles(), files[which].batch_count
                later = batches_of(3, 0, range(3000, 3000 + 3 * count, 3))
                write_merged(disk, files[which].name, 0, later)
                there.bucket.put(f"{CLUSTER}/{name}", disk.content(index_path_of(files[which].name)))
        found = await survey(there.store, CLUSTER)
        assert [fault.place for fault in found.faults] == [name]
        assert [part[:3] for part in found.topics[-1].partitions] == [(2, 5, 8)]

    told(tmp_path, story)


def test_a_chain_or_a_list_that_is_damaged_is_named_and_the_rest_is_told(tmp_path: Path) -> None:
    async def story(there: StoredCluster) -> None:
        await there.fill()
        topics = f"{CLUSTER}/{topic_list_object(17)}"
        content = there.bucket.objects[topics].content
        there.bucket.put(topics, content[:-1])
        found = await survey(there.store, CLUSTER)
        assert {fault.place for fault in found.faults} == {"topics"}
        assert [one.listed for one in found.topics] == [None] * 3
        there.bucket.put(topics, content)
        chain = next(name for name in sorted(there.bucket.objects) if "/images/" in name or "/chain/" in name)
        there.bucket.put(chain, there.bucket.objects[chain].content[:-1])
        found = await survey(there.store, CLUSTER)
        assert [fault.place for fault in found.faults] == ["groups/0"]
        assert [one.number for one in found.topics] == [3, 5]

    told(tmp_path, story)


def test_without_a_list_of_topics_numbers_are_told(tmp_path: Path) -> None:
    async def story(there: StoredCluster) -> None:
        await there.upload("first.pack", batches_of(3, 0, [0]))
        await RemoteChain(there.node.storage.remote, there.folder, there.node.storage.groups).follow(0)
        found = await survey(there.store, CLUSTER)
        assert [(one.number, one.listed, one.deleted) for one in found.topics] == [(3, None, False)]
        assert [fault.place for fault in found.faults] == ["topics"]

    told(tmp_path, story)


def test_a_store_that_is_out_ends_a_survey(tmp_path: Path) -> None:
    async def story(there: StoredCluster) -> None:
        await there.fill()
        there.bucket.weather.down = True
        with pytest.raises(ObjectStoreOutage):
            await cluster_ids(there.store)
        with pytest.raises(ObjectStoreOutage):
            await survey(there.store, CLUSTER)
        there.bucket.weather.down = False
        seen = there.bucket.objects.copy()
        check_parts(await survey(there.store, CLUSTER))
        assert there.bucket.objects == seen

    told(tmp_path, story)
