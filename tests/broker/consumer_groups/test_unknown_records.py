"""Records that a later version wrote into the groups' log are kept through loads, moves and snapshots, and handed
on."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.broker.consumer_groups.coordinators.cluster_of_one import ClusterOfOne, simulated
from tests.broker.consumer_groups.coordinators.test_coordinator import CONFIG, commit, fetch, loaded, queue_of
from tests.broker.consumer_groups.transcript import GROUP, Transcript

from mainstem.broker.consumer_groups.offsets_topic import OFFSETS_TOPIC, decode, encode
from mainstem.broker.machines.coordinator_topic import coordinator_partition_of
from mainstem.broker.machines.result import UnknownRecord
from mainstem.model import FeatureLevel, Outcome
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_offsets import GroupMetadataKey, OffsetCommitKey, write_key
from mainstem.protocol.records import NewRecord, Record, build_batch, read_records, stored_batches

KEY = b"\x00\x6fa kind of a later version"
OTHER_KEY = b"\x00\x70another"
OF_LATER = NewRecord(1_234, KEY, b"its value", (("h", b"1"),))
KNOWN_KEY = write_key(OffsetCommitKey(group=GROUP, topic="flights", partition=2))
VALUE_OF_LATER = b"\x00\x09a value of a later version"
OK = ErrorCode.NONE


async def write(cluster: ClusterOfOne, *records: NewRecord) -> None:
    """As another version does, while this node does not serve the log."""
    topic = cluster.metadata.topic(OFFSETS_TOPIC)
    assert topic is not None
    batch = build_batch(list(records))
    append = batch.to_append(topic.queue_id(coordinator_partition_of(GROUP, topic.partitions)))
    [result] = await cluster.store.append([append], -1, owner_epoch=await cluster.store.own(append.queue_id))
    assert result.outcome is Outcome.OK


def records(cluster: ClusterOfOne) -> list[Record]:
    queue = queue_of(cluster)
    found = [
        record for stored in queue.batches for batch in stored_batches(stored.data) for record in read_records(batch)
    ]
    return [record for record in found if record.offset >= queue.log_start]


def newest(cluster: ClusterOfOne, key: bytes) -> Record | None:
    return next((record for record in reversed(records(cluster)) if record.key == key), None)


def test_they_are_there_after_many_snapshots_restarts_included() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        await cluster.groups.leader_of(GROUP)
        await loaded(cluster)
        await cluster.groups.served.close()
        await write(cluster, OF_LATER, NewRecord(5, OTHER_KEY, b"gone soon"), NewRecord(5, KNOWN_KEY, VALUE_OF_LATER))
        await write(cluster, NewRecord(6, OTHER_KEY, None), NewRecord(6, None, b"without a key"))
        for _ in range(3):
            await cluster.restart()
            await loaded(cluster)
            start = queue_of(cluster).log_start
            for index in range(300):
                assert await commit(cluster, index) is OK
            assert queue_of(cluster).log_start > start, "a snapshot was written"
            found = newest(cluster, KEY)
            assert found is not None
            assert (found.value, found.timestamp, found.headers) == (b"its value", 1_234, OF_LATER.headers)
            value = newest(cluster, KNOWN_KEY)
            assert value is not None
            assert value.value == VALUE_OF_LATER
            assert newest(cluster, OTHER_KEY) is None
            assert await fetch(cluster) == {0: 299}, "what cannot be read is told to nobody"
        assert await commit(cluster, 7, partition=2) is OK
        for index in range(600):
            assert await commit(cluster, index) is OK
        assert await fetch(cluster) == {0: 599, 2: 7}
        now = newest(cluster, KNOWN_KEY)
        assert now is not None
        assert now.value != VALUE_OF_LATER, "the newest per key holds, whoever wrote it"

    simulated(story, msgspec.structs.replace(CONFIG, snapshot_after_bytes=4_000, offsets_topic_partitions=1))


def test_a_newer_value_takes_the_place_of_one_that_is_known() -> None:
    table = Transcript()
    table.commit({("flights", 2): 5, ("flights", 3): 6})
    table.log.append(UnknownRecord(KNOWN_KEY, VALUE_OF_LATER, 9))
    table.restart()
    assert table.fetch() == {("flights", 3): 6}
    assert list(table.machine.state.unknown) == [KNOWN_KEY]
    table.commit({("flights", 2): 8})
    assert not table.machine.state.unknown
    table.restart()
    assert table.fetch() == {("flights", 2): 8, ("flights", 3): 6}


def test_a_snapshot_has_the_offsets_of_a_group_whose_members_a_later_version_wrote() -> None:
    table = Transcript()
    table.commit({("flights", 2): 5, ("flights", 3): 6})
    of_members = UnknownRecord(write_key(GroupMetadataKey(group=GROUP)), VALUE_OF_LATER, 9)
    table.log.append(of_members)
    table.restart()
    assert table.fetch() == {("flights", 2): 5, ("flights", 3): 6}
    machine = table.machine
    snapshot: list[Any] = [record for section in machine.sections() for record in machine.snapshot(section)]
    table.log[:] = snapshot
    assert of_members in table.log
    table.restart()
    assert table.fetch() == {("flights", 2): 5, ("flights", 3): 6}


def test_they_are_read_and_written_as_they_are() -> None:
    found = decode(Record(0, OF_LATER.timestamp, KEY, OF_LATER.value, OF_LATER.headers))
    assert found == UnknownRecord(KEY, b"its value", 1_234, OF_LATER.headers)
    assert encode(found, 99, FeatureLevel.FIRST) == OF_LATER
