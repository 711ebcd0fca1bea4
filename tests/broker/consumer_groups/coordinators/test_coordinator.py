"""The driver: answers only after commit, loading, failing appends, snapshots, timers, all on simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from tests.broker.consumer_groups.coordinators.cluster_of_one import ClusterOfOne, simulated
from tests.broker.consumer_groups.transcript import GROUP, protocols
from tests.fakes.memory_store import MemoryStore

from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.consumer_groups.offsets_topic import OFFSETS_TOPIC, decode
from mainstem.broker.consumer_groups.step import ConsumerGroupRecord, LogRecord, OffsetRecord
from mainstem.broker.machines.coordinator_topic import coordinator_partition_of
from mainstem.broker.request_context import RequestContext
from mainstem.errors import ConfigError, MainstemError
from mainstem.model import Outcome, Sample, queue_id_of
from mainstem.nameserver.errors import MetadataUnavailable
from mainstem.ports import Session
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.group_administration import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from mainstem.protocol.messages.group_membership import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from mainstem.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from mainstem.protocol.messages.offset_delete import OffsetDeleteRequest
from mainstem.protocol.messages.offset_fetch import OffsetFetchRequestGroup
from mainstem.protocol.records import read_records, stored_batches

CALL = RequestContext(version=8, client_id="c", session=Session("10.0.0.1", 5, 1))
CONFIG = ConsumerGroupsConfig(rebalance_delay_ms=0, offsets_topic_partitions=2)


async def commit(
    cluster: ClusterOfOne, offset: int, *, group: str = GROUP, partition: int = 0, generation: int = -1
) -> ErrorCode:
    item = OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset, committed_metadata=None)
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        topics=(OffsetCommitRequestTopic(name="flights", partitions=(item,)),),
    )
    response = await cluster.groups.offsets.commit_offsets(request, CALL)
    return ErrorCode(response.topics[0].partitions[0].error_code)


async def fetch(cluster: ClusterOfOne, group: str = GROUP) -> dict[int, int] | ErrorCode:
    response = await cluster.groups.offsets.fetch_offsets(OffsetFetchRequestGroup(group_id=group, topics=None))
    if response.error_code:
        return ErrorCode(response.error_code)
    return {item.partition_index: item.committed_offset for topic in response.topics for item in topic.partitions}


async def loaded(cluster: ClusterOfOne) -> None:
    for _ in range(1_000):
        listed = await cluster.groups.administration.list_groups(ListGroupsRequest())
        if listed.error_code == ErrorCode.NONE:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the groups were not loaded within ten seconds")


async def join(cluster: ClusterOfOne, member_id: str = "", **fields: Any) -> JoinGroupResponse:
    request = JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=30_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=protocols("range"),
        **fields,
    )
    response = await cluster.groups.membership.join_group(request, CALL)
    if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        return await join(cluster, response.member_id, **fields)
    return response


async def sync(cluster: ClusterOfOne, member: JoinGroupResponse, *others: str) -> ErrorCode:
    assignments = tuple(
        SyncGroupRequestAssignment(member_id=member_id, assignment=b"share")
        for member_id in (member.member_id, *others)
    )
    request = SyncGroupRequest(
        group_id=GROUP,
        generation_id=member.generation_id,
        member_id=member.member_id,
        assignments=assignments if member.members else (),
    )
    return ErrorCode((await cluster.groups.membership.sync_group(request)).error_code)


async def heartbeat(cluster: ClusterOfOne, member: JoinGroupResponse) -> ErrorCode:
    request = HeartbeatRequest(group_id=GROUP, generation_id=member.generation_id, member_id=member.member_id)
    return ErrorCode((await cluster.groups.membership.heartbeat(request)).error_code)


def records_of(cluster: ClusterOfOne, group: str = GROUP) -> list[LogRecord]:
    """The records in the group's partition of the internal topic, read as an outsider would."""
    topic = cluster.metadata.topic(OFFSETS_TOPIC)
    assert topic is not None
    queue = cluster.store.queues[topic.queue_id(coordinator_partition_of(group, topic.partitions))]
    found = []
    for stored in queue.batches:
        for batch in stored_batches(stored.data):
            found += [decode(record) for record in read_records(batch)]
    return [record for record in found if record is not None]


def queue_of(cluster: ClusterOfOne, group: str = GROUP) -> Any:
    topic = cluster.metadata.topic(OFFSETS_TOPIC)
    assert topic is not None
    return cluster.store.queues[topic.queue_id(coordinator_partition_of(group, topic.partitions))]


@pytest.mark.parametrize(
    ("group", "hash_in_java"),
    [
        ("", 0),
        ("a", 97),
        ("my-group", -1906497762),
        ("console-consumer-12345", 158455506),
        ("héllo✓😀", 404989736),
    ],
)
def test_groups_go_to_the_partitions_that_java_would_choose(group: str, hash_in_java: int) -> None:
    for partitions in (1, 16, 50):
        assert coordinator_partition_of(group, partitions) == abs(hash_in_java) % partitions


def test_the_hash_that_has_no_positive_counterpart_goes_to_partition_zero() -> None:
    assert coordinator_partition_of("polygenelubricants", 50) == 0


def test_the_topic_is_made_on_first_need_and_once() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        assert cluster.metadata.topic(OFFSETS_TOPIC) is None
        listed = await cluster.groups.administration.list_groups(ListGroupsRequest())
        assert listed.error_code == ErrorCode.NONE
        assert cluster.metadata.topic(OFFSETS_TOPIC) is None, "looking makes nothing"
        assert await asyncio.gather(*(cluster.groups.leader_of(f"g{i}") for i in range(5))) == [1] * 5
        topic = cluster.metadata.topic(OFFSETS_TOPIC)
        assert topic is not None
        assert topic.internal
        assert topic.partitions == 2
        assert topic.settings.cleanup_policy == {"compact"}
        assert topic.settings.retention_ms == -1
        assert sorted(cluster.store.queues) == [queue_id_of(topic.number, 0), queue_id_of(topic.number, 1)]

    simulated(story)


def test_a_crash_between_topic_and_queues_is_mended() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        await cluster.metadata.create_topic(OFFSETS_TOPIC, 2, 1, {}, internal=True)
        assert await cluster.groups.leader_of(GROUP) == 1
        await loaded(cluster)
        assert await commit(cluster, 5) is ErrorCode.NONE

    simulated(story)


def test_when_the_topic_cannot_be_made_there_is_no_coordinator() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        cluster.metadata.refuse = MetadataUnavailable("stopping")
        assert await cluster.groups.leader_of(GROUP) == -1
        assert await commit(cluster, 5) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        described = await cluster.groups.administration.describe_groups(DescribeGroupsRequest(groups=("x",)))
        assert described.groups[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        deleted = await cluster.groups.administration.delete_groups(DeleteGroupsRequest(groups_names=("x",)))
        assert deleted.results[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        cluster.metadata.refuse = None
        assert await cluster.groups.leader_of(GROUP) == 1

    simulated(story)


def test_the_log_holds_kafkas_records() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        await cluster.groups.leader_of(GROUP)
        await loaded(cluster)
        member = await join(cluster)
        assert await sync(cluster, member) is ErrorCode.NONE
        await cluster.groups.membership.leave_group(
            LeaveGroupRequest(group_id=GROUP, members=(MemberIdentity(member_id=member.member_id),))
        )
        assert await commit(cluster, 5) is ErrorCode.NONE
        stable, empty, offset = records_of(cluster)
        assert isinstance(stable, ConsumerGroupRecord)
        assert stable.value is not None
        assert (stable.value.generation, stable.value.leader) == (1, member.member_id)
        assert isinstance(empty, ConsumerGroupRecord)
        assert empty.value is not None
        assert (empty.value.generation, empty.value.members) == (2, ())
        assert isinstance(offset, OffsetRecord)
        assert offset.value is not None
        assert offset.value.offset == 5
        assert set(cluster.store.appended_acks) == {-1}

    simulated(story)


def test_nothing_is_answered_before_it_is_committed() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        await cluster.groups.leader_of(GROUP)
        await loaded(cluster)
        assert await commit(cluster, 1) is ErrorCode.NONE
        cluster.store.hold()
        committing = asyncio.ensure_future(commit(cluster, 2))
        await asyncio.sleep(1)
        reading = asyncio.ensure_future(fetch(cluster))
        await asyncio.sleep(1)
        assert not committing.done()
        assert not reading.done(), "it would show what a restart could take back"
        cluster.store.release()
        assert await committing is ErrorCode.NONE
        assert await reading == {0: 2}

    simulated(story)


def test_commits_gather_while_an_append_is_under_way() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        await cluster.groups.leader_of(GROUP)
        await loaded(cluster)
        cluster.store.hold()
        before = len(cluster.store.appended_acks)
        committing = [asyncio.ensure_future(commit(cluster, offset)) for offset in range(100)]
        await asyncio.sleep(1)
        cluster.store.release()
        assert set(await asyncio.gather(*committing)) == {ErrorCode.NONE}
        assert len(cluster.store.appended_acks) - before <= 2
        assert await fetch(cluster) == {0: 99}

    simulated(story)


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Outcome.STORAGE_BUSY, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (Outcome.STORAGE_FAILED, ErrorCode.NOT_COORDINATOR),
        (Outcome.FENCED, ErrorCode.NOT_COORDINATOR),
    ],
)
def test_a_failed_append_is_never_answered_with_success_and_does_not_stand(outcome: Outcome, code: ErrorCode) -> None:
    async def story(cluster: ClusterOfOne) -> None:
        await cluster.groups.leader_of(GROUP)
        await loaded(cluster)
        assert await commit(cluster, 1) is ErrorCode.NONE
        cluster.store.refuse = outcome
        started = cluster.clock.monotonic()
        committing = asyncio.ensure_future(commit(cluster, 2))
        await asyncio.sleep(0)
        reading = asyncio.ensure_future(fetch(cluster))
        assert await committing is code
        assert await reading in (code, {0: 1})
        assert (cluster.clock.monotonic() - started > 1) == (outcome is Outcome.STORAGE_BUSY), "the rest is final"
        cluster.store.refuse = None
        await asyncio.sleep(20)
        assert await fetch(cluster) == {0: 1}
        assert await commit(cluster, 3) is ErrorCode.NONE
        assert await fetch(cluster) == {0: 3}

    simulated(story)


def test_a_busy_storage_is_waited_for() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        await cluster.groups.leader_of(GROUP)
        await loaded(cluster)
        cluster.store.refuse = Outcome.STORAGE_BUSY
        committing = asyncio.ensure_future(commit(cluster, 2))
        await asyncio.sleep(3)
        assert not committing.done()
        cluster.store.refuse = None
        assert await committing is ErrorCode.NONE

    simulated(story)


def test_a_failed_assignment_leaves_members_to_join_again() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        await cluster.groups.leader_of(GROUP)
        await loaded(cluster)
        member = await join(cluster)
        cluster.store.refuse = Outcome.STORAGE_FAILED
        assert await sync(cluster, member) is ErrorCode.NOT_COORDINATOR
        cluster.store.refuse = None
        await asyncio.sleep(20)
        assert await heartbeat(cluster, member) is ErrorCode.UNKNOWN_MEMBER_ID
        member = await join(cluster)
        assert await sync(cluster, member) is ErrorCode.NONE

    simulated(story)


def test_requests_while_loading_are_refused_except_heartbeats() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        await cluster.groups.leader_of(GROUP)
        await loaded(cluster)
        member = await join(cluster)
        await sync(cluster, member)
        await commit(cluster, 1, group="simple")
        cluster.store.hold()
        lost = asyncio.ensure_future(commit(cluster, 2, group="simple"))
        await asyncio.sleep(1)
        await cluster.restart()
        assert await lost is not ErrorCode.NONE
        await asyncio.sleep(5)
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert await fetch(cluster, "simple") is loading, "what was appended last is neither committed nor gone"
        assert await heartbeat(cluster, member) is ErrorCode.NONE
        assert (await cluster.groups.administration.list_groups(ListGroupsRequest())).error_code == loading
        described = await cluster.groups.administration.describe_groups(DescribeGroupsRequest(groups=(GROUP,)))
        assert described.groups[0].error_code == loading
        assert (await join(cluster, member.member_id)).error_code == loading
        cluster.store.release()
        await loaded(cluster)
        assert await heartbeat(cluster, member) is ErrorCode.NONE
        assert await fetch(cluster, "simple") == {0: 2}, "it was committed after all"

    simulated(story, msgspec.structs.replace(CONFIG, offsets_topic_partitions=1))


def test_a_commit_without_a_member_waits_for_the_log_and_one_of_a_member_does_not() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        await cluster.groups.leader_of(GROUP)
        assert await commit(cluster, 1, generation=1) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert await commit(cluster, 1) is ErrorCode.NONE
        assert await fetch(cluster) == {0: 1}

    simulated(story)


def test_everything_is_there_after_a_restart() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        await cluster.groups.leader_of(GROUP)
        await loaded(cluster)
        member = await join(cluster)
        await sync(cluster, member)
        for index in range(300):
            await commit(cluster, index, group=f"g{index % 7}", partition=index)
        await cluster.restart()
        await loaded(cluster)
        assert await heartbeat(cluster, member) is ErrorCode.NONE
        for index in range(7):
            assert await fetch(cluster, f"g{index}") == {i: i for i in range(300) if i % 7 == index}

    simulated(story)


def test_timers_run_on_the_loop() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        await cluster.groups.leader_of(GROUP)
        await loaded(cluster)
        first = await join(cluster)
        await sync(cluster, first)
        joining = asyncio.ensure_future(join(cluster))
        await asyncio.sleep(9.9)
        assert not joining.done()
        assert await heartbeat(cluster, first) is ErrorCode.REBALANCE_IN_PROGRESS
        await asyncio.sleep(9.9)
        assert not joining.done()
        await asyncio.sleep(0.2)
        assert joining.done(), "the first member fell silent, so the second need not wait for it"
        assert joining.result().leader == joining.result().member_id
        assert await sync(cluster, joining.result()) is ErrorCode.NONE
        await asyncio.sleep(60)
        described = await cluster.groups.administration.describe_groups(DescribeGroupsRequest(groups=(GROUP,)))
        assert described.groups[0].group_state == "Empty"

    simulated(story)


def test_snapshots_keep_the_log_short_and_lose_nothing() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        await cluster.groups.leader_of(GROUP)
        await loaded(cluster)
        member = await join(cluster)
        await sync(cluster, member)
        longest = 0
        for index in range(2_000):
            assert await commit(cluster, index, group=f"g{index % 5}", partition=index % 3) is ErrorCode.NONE
            longest = max(longest, sum(len(batch.data) for batch in queue_of(cluster).batches))
            if index % 100 == 0:
                assert await heartbeat(cluster, member) is ErrorCode.NONE
        assert queue_of(cluster).log_start > 0
        assert longest < 4 * 8_000
        before = [await fetch(cluster, f"g{index}") for index in range(5)]
        assert [isinstance(found, dict) and len(found) for found in before] == [3] * 5
        await cluster.restart()
        await loaded(cluster)
        assert [await fetch(cluster, f"g{index}") for index in range(5)] == before
        assert await heartbeat(cluster, member) is ErrorCode.NONE

    simulated(story, msgspec.structs.replace(CONFIG, snapshot_after_bytes=8_000, offsets_topic_partitions=1))


def test_a_state_larger_than_the_bound_is_not_written_again_with_every_commit() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        await cluster.groups.leader_of(GROUP)
        await loaded(cluster)
        for index in range(1_000):
            assert await commit(cluster, index, partition=index % 200) is ErrorCode.NONE
        assert queue_of(cluster).log_start > 0
        assert queue_of(cluster).end < 4 * 1_000

    simulated(story, msgspec.structs.replace(CONFIG, snapshot_after_bytes=1_000, offsets_topic_partitions=1))


class Uncuttable(MemoryStore):
    async def truncate(self, before: Mapping[int, int]) -> dict[int, int | MainstemError | None]:
        return dict.fromkeys(before)


def test_a_snapshot_that_cannot_be_cut_does_no_harm() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        cluster.store = Uncuttable(cluster.clock)
        await cluster.restart()
        await cluster.groups.leader_of(GROUP)
        await loaded(cluster)
        for index in range(200):
            assert await commit(cluster, index) is ErrorCode.NONE
        assert queue_of(cluster).end > 200, "there were snapshots"
        assert queue_of(cluster).log_start == 0
        await cluster.restart()
        await loaded(cluster)
        assert await fetch(cluster) == {0: 199}

    simulated(story, msgspec.structs.replace(CONFIG, snapshot_after_bytes=2_000, offsets_topic_partitions=1))


def test_a_coordinator_whose_log_another_has_loaded_writes_nothing_more() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        await cluster.groups.leader_of(GROUP)
        await loaded(cluster)
        await commit(cluster, 1)
        rival = cluster.new_coordinator()
        rival.served.start()
        mine, cluster.groups = cluster.groups, rival
        await loaded(cluster)
        assert await commit(cluster, 2) is ErrorCode.NONE
        cluster.groups = mine
        end = queue_of(cluster).end
        assert await commit(cluster, 1) is ErrorCode.NOT_COORDINATOR
        assert queue_of(cluster).end == end, "it is refused before it lands"
        await rival.served.close()
        await asyncio.sleep(5)
        assert await fetch(cluster) == {0: 2}, "what the second one was told is committed stands"

    simulated(story)


def test_a_node_that_no_longer_leads_sends_clients_away_and_takes_up_again() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        await cluster.groups.leader_of(GROUP)
        await loaded(cluster)
        await commit(cluster, 1)
        topic = cluster.metadata.topic(OFFSETS_TOPIC)
        assert topic is not None
        for partition in range(2):
            cluster.metadata.leaders[topic.queue_id(partition)] = 2
            cluster.groups.served.serving_changed(topic.queue_id(partition), False)
        assert await commit(cluster, 2) is ErrorCode.NOT_COORDINATOR
        assert await cluster.groups.leader_of(GROUP) == 2
        await asyncio.sleep(60)
        assert await commit(cluster, 2) is ErrorCode.NOT_COORDINATOR
        assert (await cluster.groups.administration.list_groups(ListGroupsRequest())).error_code == ErrorCode.NONE
        cluster.metadata.leaders.clear()
        for partition in range(2):
            cluster.groups.served.serving_changed(topic.queue_id(partition), True)
        assert await fetch(cluster) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await loaded(cluster)
        assert await fetch(cluster) == {0: 1}

    simulated(story)


def test_a_damaged_log_is_not_served() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        await cluster.groups.leader_of(GROUP)
        await loaded(cluster)
        await commit(cluster, 1)
        [batch] = queue_of(cluster).batches
        batch.data = batch.data[:-1] + bytes([batch.data[-1] ^ 1])
        await cluster.restart()
        await asyncio.sleep(5)
        assert await fetch(cluster) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await commit(cluster, 2) is ErrorCode.COORDINATOR_NOT_AVAILABLE

    simulated(story)


def test_names_that_are_no_groups() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        await cluster.groups.leader_of(GROUP)
        await loaded(cluster)
        nothing = ErrorCode.INVALID_GROUP_ID
        heartbeat_request = HeartbeatRequest(group_id="", generation_id=1, member_id="m")
        assert (await cluster.groups.membership.heartbeat(heartbeat_request)).error_code == nothing
        delete = OffsetDeleteRequest(group_id="", topics=())
        assert (await cluster.groups.offsets.delete_offsets(delete)).error_code == nothing
        assert await commit(cluster, 5, group="") is ErrorCode.NONE, "old clients commit without a group"
        assert await fetch(cluster, "") == {0: 5}

    simulated(story)


def test_listing_filters_by_state_and_type() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        await cluster.groups.leader_of(GROUP)
        await loaded(cluster)
        member = await join(cluster)
        await sync(cluster, member)
        await commit(cluster, 5, group="simple")

        async def names(**filters: tuple[str, ...]) -> set[str]:
            response = await cluster.groups.administration.list_groups(ListGroupsRequest(**filters))
            return {group.group_id for group in response.groups}

        assert await names() == {GROUP, "simple"}
        assert await names(states_filter=("stable",)) == {GROUP}
        assert await names(states_filter=("Empty", "Dead")) == {"simple"}
        assert await names(types_filter=("classic",)) == {GROUP, "simple"}
        assert await names(types_filter=("consumer",)) == set()

    simulated(story)


def test_deleting_and_forgetting_over_partitions() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        await cluster.groups.leader_of(GROUP)
        await loaded(cluster)
        groups = tuple(f"g{index}" for index in range(10))
        for index, group in enumerate(groups):
            await commit(cluster, index, group=group)
        request = DeleteGroupsRequest(groups_names=(*groups[:5], "nobody"))
        results = (await cluster.groups.administration.delete_groups(request)).results
        codes = {result.group_id: result.error_code for result in results}
        assert codes == {**dict.fromkeys(groups[:5], ErrorCode.NONE), "nobody": ErrorCode.GROUP_ID_NOT_FOUND}
        await cluster.groups.forget_topic(cluster.metadata.drop_topic("flights"))
        assert (await cluster.groups.administration.list_groups(ListGroupsRequest())).groups == ()
        await cluster.restart()
        await loaded(cluster)
        assert [await fetch(cluster, group) for group in groups] == [{}] * 10

    simulated(story)


def test_an_event_that_fails_takes_its_machine_down_only() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        await cluster.groups.leader_of(GROUP)
        await loaded(cluster)
        await commit(cluster, 1)
        partition = cluster.groups.partitions[coordinator_partition_of(GROUP, 2)]
        with pytest.raises(Exception, match="did not expect"):
            await partition.submit(lambda machine, ticket, now: 1 / 0)  # type: ignore[arg-type, return-value]
        assert await commit(cluster, 2) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        await asyncio.sleep(1)
        assert await fetch(cluster) == {0: 1}

    simulated(story)


def test_samples_count_what_is_there() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        await cluster.groups.leader_of(GROUP)
        await loaded(cluster)
        member = await join(cluster)
        await sync(cluster, member)
        await commit(cluster, 5, group="simple")
        values = {(it.name, it.labels): it.value for it in cluster.groups.served.samples() if isinstance(it, Sample)}
        assert values["mainstem_consumer_groups", (("state", "Stable"),)] == 1
        assert values["mainstem_consumer_groups", (("state", "Empty"),)] == 1
        assert values["mainstem_consumer_group_members", ()] == 1
        assert values["mainstem_consumer_group_offsets", ()] == 1
        assert values["mainstem_consumer_group_rebalances_total", ()] == 1
        assert values["mainstem_consumer_group_offset_commits_total", ()] == 1

    simulated(story)


@pytest.mark.parametrize(
    "wrong",
    [
        {"session_timeout_ms_min": 0},
        {"session_timeout_ms_max": 5_000},
        {"rebalance_delay_ms": -1},
        {"offsets_topic_partitions": 0},
        {"append_bytes_max": 0},
    ],
)
def test_config_is_checked(wrong: dict[str, Any]) -> None:
    ConsumerGroupsConfig().validate()
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ConsumerGroupsConfig(**wrong).validate()
