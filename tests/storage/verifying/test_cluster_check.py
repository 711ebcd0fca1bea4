"""A check of what an object store holds of a cluster finds every damage, and says whose offsets it may cost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.storage.remote.stored_cluster import CLUSTER, StoredCluster, batches_of, told

from mainstem.model import SLOTS, queue_id_of
from mainstem.storage.object_stores.errors import ObjectStoreOutage
from mainstem.storage.remote.chain.owner_record import OwnerRecord, encode_owner
from mainstem.storage.remote.chain.remote_chain import RemoteChain
from mainstem.storage.remote.survey.store_survey import cluster_ids
from mainstem.storage.store_files.object_names import head_object, object_of, owner_object, topic_list_object
from mainstem.storage.store_files.store_file import path_of, segment_name
from mainstem.storage.verifying import file_check, object_reading
from mainstem.storage.verifying.cluster_check import ClusterProgress, ClusterReport, check_cluster
from mainstem.storage.verifying.findings import Affected, Finding

SEGMENT = segment_name("orders", 0, "u", 60)
JOINED = segment_name("orders", 0, "u", 60, joined=True)
FIRST, LONG, LONG_JOINED, LAST = (
    f"{CLUSTER}/{object_of(0, path_of(name))}" for name in ("first.pack", SEGMENT, JOINED, "last.pack")
)


def orders(partition: int, first: int, last: int | None) -> Affected:
    return Affected(queue_id_of(3, partition), first, last)


async def checked(there: StoredCluster, jobs: int = 2) -> ClusterReport:
    return await check_cluster(there.store, CLUSTER, jobs)


def content(there: StoredCluster, name: str) -> bytes:
    return bytes(there.bucket.objects[name].content)


def flip(there: StoredCluster, name: str, at: int) -> None:
    damaged = bytearray(content(there, name))
    damaged[at] ^= 1
    there.bucket.put(name, bytes(damaged))


def of_object(found: ClusterReport, name: str) -> list[Finding]:
    assert {one.path for one in found.report.findings} == {name}, "nothing else is said to be damaged"
    return list(found.report.findings)


@pytest.mark.parametrize("joined", [False, True])
def test_a_sound_cluster_is_read_whole(tmp_path: Path, joined: bool) -> None:
    async def story(there: StoredCluster) -> None:
        files = await there.fill(joined=joined)
        seen: list[ClusterProgress] = []
        found = await check_cluster(there.store, CLUSTER, 2, seen.append)
        assert (found.report.findings, found.report.files, found.report.gone) == ([], 3, 0)
        assert found.report.bytes >= sum(file.batch_bytes for file in files)
        assert found.topics == {3: "topic-3", 5: "topic-5"}
        assert seen[-1][:4] == (1, 1, 3, 3)
        assert seen[-1].bytes_total == sum(file.bytes for file in files)

    told(tmp_path, story)


def test_records_of_who_owns_a_folder_are_no_damage_and_make_no_cluster(tmp_path: Path) -> None:
    async def story(there: StoredCluster) -> None:
        await there.fill()
        records = [f"{folder}/{owner_object(number)}" for folder in (CLUSTER, "another") for number in (41, 42)]
        for name in records:
            there.bucket.put(name, encode_owner(OwnerRecord(1, 2, 3, 4)))
        assert await cluster_ids(there.store) == [CLUSTER]
        found = await checked(there)
        assert (found.report.findings, found.report.files, found.report.gone) == ([], 3, 0)
        assert all(name in there.bucket.objects for name in records), "they are left alone"

    told(tmp_path, story)


@pytest.mark.parametrize("joined", [False, True])
def test_large_objects_are_read_a_window_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, joined: bool
) -> None:
    monkeypatch.setattr(file_check, "WINDOW_BYTES", 2_000)
    monkeypatch.setattr(object_reading.ObjectsAsFiles.__init__, "__defaults__", (1_000,))

    async def story(there: StoredCluster) -> None:
        await there.fill(joined=joined)
        assert not (await checked(there)).report.findings
        name = LONG_JOINED if joined else LONG
        flip(there, name, 100 * 700 + 300)
        (finding,) = of_object(await checked(there), name)
        (at,) = finding.affected
        assert at.first_offset <= 60 + 100 * 3 <= (at.last_offset or 0) < 900
        assert "a batch fails its CRC" in finding.what

    told(tmp_path, story)


@pytest.mark.parametrize(("joined", "objects"), [(False, 6), (True, 3)])
@pytest.mark.parametrize("step", [613])
def test_no_flip_goes_unseen(tmp_path: Path, step: int, joined: bool, objects: int) -> None:
    async def story(there: StoredCluster) -> None:
        await there.fill(joined=joined)
        files = [name for name in sorted(there.bucket.objects) if "/files/" in name]
        assert len(files) == objects
        for name in files:
            whole = content(there, name)
            for at in range(0, len(whole), step):
                flip(there, name, at)
                assert of_object(await checked(there), name), (name, at)
                there.bucket.put(name, whole)

    told(tmp_path, story)


def test_a_damaged_batch_is_told_with_its_offsets(tmp_path: Path) -> None:
    async def story(there: StoredCluster) -> None:
        await there.fill()
        flip(there, FIRST, 64 + 20 * 700 + 2 * 700 + 200)
        (finding,) = of_object(await checked(there), FIRST)
        assert finding.position == 64 + 22 * 700
        assert finding.affected == [orders(1, 6, 29)], "of the extent, which is checked as one"
        assert "restore the object under its name" in finding.advice

    told(tmp_path, story)


def lose(there: StoredCluster, name: str) -> None:
    there.bucket.lose(name)


def cut(there: StoredCluster, name: str) -> None:
    there.bucket.put(name, content(there, name)[:-1])


def swap(there: StoredCluster, name: str) -> None:
    """Another object's bytes, as many."""
    other = content(there, LAST if name != LAST else FIRST)
    size = len(content(there, name))
    there.bucket.put(name, (other * (size // len(other) + 1))[-size:])


@pytest.mark.parametrize("damage", [lose, cut, swap])
def test_an_object_without_an_index_is_told_with_the_offsets_that_no_other_has(
    tmp_path: Path, damage: Callable[[StoredCluster, str], None]
) -> None:
    async def story(there: StoredCluster) -> None:
        await there.fill()
        await there.upload("behind.pack", [*batches_of(3, 0, [903]), *batches_of(3, 1, [30, 33])])
        await there.tell()
        damage(there, FIRST)
        first, *_rest = of_object(await checked(there), FIRST)
        assert "; it had 87 records, of blocks (0, 10] of write group 0" in first.what
        assert first.affected == [orders(0, 0, 59)], "what was before the first of partition 1, nobody knows"

    told(tmp_path, story)


@pytest.mark.parametrize("damage", [lose, cut, swap])
def test_a_queue_segment_is_known_by_its_index(tmp_path: Path, damage: Callable[[StoredCluster, str], None]) -> None:
    async def story(there: StoredCluster) -> None:
        await there.fill()
        index = LONG.removesuffix(".log") + ".extents"
        damage(there, index)
        first, *_rest = of_object(await checked(there), index)
        assert first.affected == [orders(0, 60, 899)]

    told(tmp_path, story)


@pytest.mark.parametrize("home", [0, 1])
def test_what_a_queue_had_in_other_write_groups_is_not_said_to_be_lost(tmp_path: Path, home: int) -> None:
    """Partition 0 has been in write group 0, 1 and 0; partition 1 in 0 and 1."""

    async def story(there: StoredCluster) -> None:
        there.slots = (home,) * SLOTS
        await there.upload("early.pack", batches_of(3, 0, range(0, 30, 3)))
        await there.upload("lost.pack", batches_of(3, 0, range(30, 60, 3)))
        await there.upload("back.pack", batches_of(3, 0, range(120, 150, 3)))
        await there.upload("alone.pack", batches_of(3, 1, range(0, 30, 3)))
        await there.upload("away.pack", [*batches_of(3, 0, range(60, 120, 3)), *batches_of(3, 1, [30, 33])], 1)
        await there.tell()
        assert not (await checked(there)).report.findings
        for name in ("lost.pack", "alone.pack"):
            there.bucket.lose(f"{CLUSTER}/{object_of(0, path_of(name))}")
        told_of = {one.name: list(one.affected) for one in (await checked(there)).report.findings}
        goes_on = [orders(1, 36, None)] if home == 0 else []
        assert told_of == {"lost.pack": [orders(0, 30, 59)], "alone.pack": [orders(1, 0, 29), *goes_on]}

    told(tmp_path, story, groups=2)


def test_what_kafka_alone_reads_costs_no_message(tmp_path: Path) -> None:
    async def story(there: StoredCluster) -> None:
        await there.fill()
        name = LONG.removesuffix(".log") + ".timeindex"
        there.bucket.lose(name)
        (finding,) = of_object(await checked(there), name)
        assert finding.affected == ()
        assert "no message is lost" in finding.advice

    told(tmp_path, story)


def test_files_that_left_meanwhile_are_counted_and_no_damage(tmp_path: Path) -> None:
    async def story(there: StoredCluster) -> None:
        await there.fill()
        before = {name: content(there, name) for name in there.bucket.objects if "/files/" not in name}
        assert await there.node.storage.remote.record(0, gone=["last.pack"]) == "recorded"
        await there.chain().follow(0)
        after = {name: content(there, name) for name in there.bucket.objects if "/files/" not in name}
        assert after != before

        def chain_of(objects: dict[str, bytes]) -> None:
            for name in [name for name in there.bucket.objects if "/files/" not in name]:
                there.bucket.lose(name)
            for name, there_now in objects.items():
                there.bucket.put(name, there_now)

        def leave(_at: ClusterProgress) -> None:
            if LAST in there.bucket.objects:
                there.bucket.lose(LAST)
                chain_of(after)

        chain_of(before)
        found = await check_cluster(there.store, CLUSTER, 1, leave)
        assert (found.report.findings, found.report.files, found.report.gone) == ([], 3, 1)
        chain_of(before)
        assert [one.path for one in (await checked(there)).report.findings] == [LAST]

    told(tmp_path, story)


def test_a_lost_change_is_named(tmp_path: Path) -> None:
    async def story(there: StoredCluster) -> None:
        await there.fill()
        chain = RemoteChain(there.node.storage.remote, there.folder, there.node.storage.groups)
        await chain.follow(0)
        await there.upload("more.pack", batches_of(3, 0, [903]))
        await chain.follow(0)
        assert not (await checked(there)).report.findings
        changes = [name for name in sorted(there.bucket.objects) if "/chain/" in name]
        assert len(changes) == 2
        lost = changes[-1]
        kept = content(there, lost)
        there.bucket.lose(lost)
        assert [one.path for one in (await checked(there)).report.findings] == [lost], "the head knows of it"
        there.bucket.put(lost, kept)
        there.bucket.lose(changes[-2])
        found = await checked(there)
        assert [one.path for one in found.report.findings] == [changes[-2]]
        assert "is missing, and there is change 8" in found.report.findings[0].what

    told(tmp_path, story)


def test_damaged_metadata_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    async def story(there: StoredCluster) -> None:
        await there.fill()
        topics, head = f"{CLUSTER}/{topic_list_object(17)}", f"{CLUSTER}/{head_object(0)}"
        flip(there, topics, 20)
        found = await checked(there)
        assert [one.path for one in found.report.findings] == [f"{CLUSTER}/topics"]
        assert (found.topics, found.report.files) == ({}, 3)
        flip(there, topics, 20)
        flip(there, head, 20)
        found = await checked(there)
        assert [one.path for one in found.report.findings] == [head]
        assert found.report.files == 3
        flip(there, head, 20)
        image = next(name for name in sorted(there.bucket.objects) if "/images/" in name or "/chain/" in name)
        flip(there, image, 20)
        found = await checked(there)
        assert [one.path for one in found.report.findings] == [f"{CLUSTER}/groups/0"]
        assert found.report.files == 0

    told(tmp_path, story)


def test_a_store_that_is_out_is_no_damage(tmp_path: Path) -> None:
    async def story(there: StoredCluster) -> None:
        await there.fill()

        def out(_at: ClusterProgress) -> None:
            there.bucket.weather.down = True

        with pytest.raises(ObjectStoreOutage):
            await check_cluster(there.store, CLUSTER, 1, out)

    told(tmp_path, story)
