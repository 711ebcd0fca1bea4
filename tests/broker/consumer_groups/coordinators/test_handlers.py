"""The group handlers in every version: what they make of requests, and that their answers can be written."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.broker.consumer_groups.coordinators.cluster_of_one import ClusterOfOne, simulated
from tests.broker.consumer_groups.transcript import GROUP, protocols
from tests.broker.share_groups_of import share_groups_of

from mainstem.broker.broker import Broker
from mainstem.broker.config import BrokerConfig
from mainstem.broker.fetching.fetch_sessions import FetchSessions
from mainstem.broker.handlers import (
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
)
from mainstem.broker.request_context import RequestContext
from mainstem.ports import Session
from mainstem.protocol import codec
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.group_administration import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from mainstem.protocol.messages.group_membership import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
)
from mainstem.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from mainstem.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from mainstem.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)

Ask = Callable[[Any, Any, int], Awaitable[Any]]
NO_ID = uuid.UUID(int=0)


def told(story: Callable[[ClusterOfOne, Ask], Awaitable[None]]) -> None:
    """Run a story against handlers; requests and answers go through the codec, as on the wire."""

    async def on_a_broker(cluster: ClusterOfOne) -> None:
        broker = Broker(
            node_id=1,
            config=BrokerConfig(),
            metadata=cluster.metadata,
            metadata_admin=cluster.metadata,
            cluster=cluster.metadata,
            store=cluster.store,
            leadership=cluster.leadership,
            queue_admin=cluster.store,
            groups=cluster.groups,
            shares=share_groups_of(cluster.node),
            clock=cluster.clock,
            fetch_sessions=FetchSessions(sessions_max=1, idle_ms_min=0, partitions_max=1, random=random.Random(1)),
        )

        async def ask(handler: Any, request: Any, version: int) -> Any:
            arrived = codec.read(type(request), version, codec.write(request, version))
            response = await handler.handle(
                broker, arrived, RequestContext(version, "client", Session("10.0.0.1", 1, 1))
            )
            return codec.read(type(response), version, codec.write(response, version))

        await cluster.metadata.create_partitions("flights", 3)
        for _ in range(1_000):
            found = await ask(find_coordinator, FindCoordinatorRequest(key=GROUP), 0)
            listed = await ask(list_groups, ListGroupsRequest(), 0)
            if found.error_code == listed.error_code == ErrorCode.NONE:
                break
            await asyncio.sleep(0.01)
        await story(cluster, ask)

    simulated(on_a_broker)


def commit_request(version: int, topic_id: uuid.UUID, *partitions: int, name: str = "flights") -> Any:
    items = tuple(
        OffsetCommitRequestPartition(partition_index=index, committed_offset=index + 10, committed_metadata="m")
        for index in partitions
    )
    by_id = {"topic_id": topic_id} if version >= 10 else {"name": name}
    return OffsetCommitRequest(group_id=GROUP, topics=(OffsetCommitRequestTopic(partitions=items, **by_id),))


@pytest.mark.parametrize("version", range(7))
def test_find_coordinator(version: int) -> None:
    async def story(cluster: ClusterOfOne, ask: Ask) -> None:
        if version < 4:
            found = await ask(find_coordinator, FindCoordinatorRequest(key=GROUP), version)
            assert (found.error_code, found.node_id, found.host, found.port) == (0, 1, "127.0.0.1", 9092)
        else:
            request = FindCoordinatorRequest(coordinator_keys=(GROUP, "other"))
            found = await ask(find_coordinator, request, version)
            assert [(c.key, c.error_code, c.node_id, c.port) for c in found.coordinators] == [
                (GROUP, 0, 1, 9092),
                ("other", 0, 1, 9092),
            ]
        cluster.metadata.leaders = dict.fromkeys(cluster.store.queues, -1)
        keys = {"coordinator_keys": ("t",)} if version >= 4 else {"key": "t"}
        lost = await ask(find_coordinator, FindCoordinatorRequest(**keys), version)
        lost = lost.coordinators[0] if version >= 4 else lost
        assert (lost.error_code, lost.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
        refusals = (
            (1, ErrorCode.UNSUPPORTED_VERSION, "transactions take feature level 8 of the cluster"),
            (2, ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST.message),
        )
        for key_type, code, text in refusals:
            if version >= 1:
                answer = await ask(find_coordinator, FindCoordinatorRequest(key_type=key_type, **keys), version)
                answer = answer.coordinators[0] if version >= 4 else answer
                assert (answer.error_code, answer.error_message, answer.node_id) == (code, text, -1)

    told(story)


@pytest.mark.parametrize("version", range(10))
def test_a_life_in_a_group(version: int) -> None:
    """Join, sync, heartbeat, describe, leave: versions of the other APIs go along as far as they reach."""

    async def story(cluster: ClusterOfOne, ask: Ask) -> None:
        def request(member_id: str) -> JoinGroupRequest:
            return JoinGroupRequest(
                group_id=GROUP,
                session_timeout_ms=10_000,
                member_id=member_id,
                protocol_type="consumer",
                protocols=protocols("range"),
            )

        refused = await ask(join_group, request("unknown"), version)
        assert refused.error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert refused.protocol_name == (None if version >= 7 else "")
        joined = await ask(join_group, request(""), version)
        if version >= 4:
            assert joined.error_code == ErrorCode.MEMBER_ID_REQUIRED
            joined = await ask(join_group, request(joined.member_id), version)
        assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
        me = {"group_id": GROUP, "generation_id": 1, "member_id": joined.member_id}
        synced = await ask(sync_group, SyncGroupRequest(**me, assignments=()), min(version, 5))
        assert (synced.error_code, synced.assignment) == (0, b"")
        beaten = await ask(heartbeat, HeartbeatRequest(**me), min(version, 4))
        assert beaten.error_code == 0

        describing = min(version, 6)
        asked = DescribeGroupsRequest(groups=(GROUP, "nowhere"), include_authorized_operations=describing >= 3)
        known, unknown = (await ask(describe_groups, asked, describing)).groups
        assert (known.group_state, known.members[0].client_host) == ("Stable", "/10.0.0.1")
        assert known.authorized_operations == (3400 if describing >= 3 else -(2**31))
        assert unknown.group_state == "Dead"
        assert unknown.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if describing >= 6 else 0)
        listed = await ask(list_groups, ListGroupsRequest(), min(version, 5))
        assert [group.group_id for group in listed.groups] == [GROUP]

        leaving = min(version, 5)
        for code in (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID):
            if leaving < 3:
                leave = LeaveGroupRequest(group_id=GROUP, member_id=joined.member_id)
                assert (await ask(leave_group, leave, leaving)).error_code == code
            else:
                leave = LeaveGroupRequest(group_id=GROUP, members=(MemberIdentity(member_id=joined.member_id),))
                left = await ask(leave_group, leave, leaving)
                assert (left.error_code, left.members[0].error_code) == (0, code)
        deleted = await ask(delete_groups, DeleteGroupsRequest(groups_names=(GROUP,)), min(version, 2))
        assert deleted.results[0].error_code == ErrorCode.NONE

    told(story)


@pytest.mark.parametrize("version", range(2, 11))
def test_offset_commit_and_fetch(version: int) -> None:
    async def story(cluster: ClusterOfOne, ask: Ask) -> None:
        topic = cluster.metadata.topic("flights")
        assert topic is not None
        response = await ask(offset_commit, commit_request(version, topic.topic_id, 0, 2, 3), version)
        [answer] = response.topics
        assert (answer.name, answer.topic_id) == (("", topic.topic_id) if version >= 10 else ("flights", NO_ID))
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [item.error_code for item in answer.partitions] == [0, 0, missing]
        unknown = commit_request(version, uuid.UUID(int=99), 0, name="nowhere")
        code = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else missing
        refused = await ask(offset_commit, unknown, version)
        assert refused.topics[0].partitions[0].error_code == code

        if version < 8:
            asked = OffsetFetchRequestTopic(name="flights", partition_indexes=(0, 1))
            fetched = await ask(offset_fetch, OffsetFetchRequest(group_id=GROUP, topics=(asked,)), version)
            everything = await ask(offset_fetch, OffsetFetchRequest(group_id=GROUP, topics=None), version)
            group, all_of_group = fetched, everything
        else:
            by_id = {"topic_id": topic.topic_id} if version >= 10 else {"name": "flights"}
            asked_of_group = OffsetFetchRequestTopics(partition_indexes=(0, 1), **by_id)
            wanted = (
                OffsetFetchRequestGroup(group_id=GROUP, topics=(asked_of_group,)),
                OffsetFetchRequestGroup(group_id=GROUP, topics=None),
            )
            request = OffsetFetchRequest(groups=wanted, require_stable=True)
            group, all_of_group = (await ask(offset_fetch, request, version)).groups
            assert group.topics[0].topic_id == (topic.topic_id if version >= 10 else NO_ID)
        assert group.error_code == 0
        found = {item.partition_index: item for item in group.topics[0].partitions}
        assert (found[0].committed_offset, found[0].metadata) == (10, "m")
        assert (found[1].committed_offset, found[1].metadata) == (-1, "")
        assert {item.partition_index: item.committed_offset for item in all_of_group.topics[0].partitions} == {
            0: 10,
            2: 12,
        }

    told(story)


def test_offset_fetch_by_unknown_id() -> None:
    async def story(cluster: ClusterOfOne, ask: Ask) -> None:
        asked = OffsetFetchRequestTopics(topic_id=uuid.UUID(int=99), partition_indexes=(4,))
        request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id=GROUP, topics=(asked,)),))
        [group] = (await ask(offset_fetch, request, 10)).groups
        assert group.topics[0].topic_id == uuid.UUID(int=99)
        assert group.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID

    told(story)


@pytest.mark.parametrize("version", [1, 2, 7])
def test_offset_fetch_when_there_is_no_coordinator(version: int) -> None:
    async def story(cluster: ClusterOfOne, ask: Ask) -> None:
        cluster.metadata.leaders = dict.fromkeys(cluster.store.queues, 2)
        asked = OffsetFetchRequestTopic(name="flights", partition_indexes=(0,))
        fetched = await ask(offset_fetch, OffsetFetchRequest(group_id=GROUP, topics=(asked,)), version)
        if version == 1:
            assert fetched.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
        else:
            assert fetched.error_code == ErrorCode.NOT_COORDINATOR

    told(story)


def test_offset_delete() -> None:
    async def story(cluster: ClusterOfOne, ask: Ask) -> None:
        def request(name: str, *indexes: int) -> OffsetDeleteRequest:
            partitions = tuple(OffsetDeleteRequestPartition(partition_index=index) for index in indexes)
            topic = OffsetDeleteRequestTopic(name=name, partitions=partitions)
            return OffsetDeleteRequest(group_id=GROUP, topics=(topic,))

        assert (await ask(offset_delete, request("flights", 0), 0)).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        await ask(offset_commit, commit_request(8, NO_ID, 0, 1), 8)
        deleted = await ask(offset_delete, request("flights", 0, 7), 0)
        assert [item.error_code for item in deleted.topics[0].partitions] == [
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        unknown = await ask(offset_delete, request("nowhere", 0), 0)
        assert unknown.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        left = await ask(offset_fetch, OffsetFetchRequest(group_id=GROUP, topics=None), 7)
        assert [item.partition_index for item in left.topics[0].partitions] == [1]

    told(story)
