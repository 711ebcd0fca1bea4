"""A streams group on a real node: its members keep their tasks and offsets when the node is killed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient
from tests.broker.consumer_groups.streams_clients import StreamsMemory, internal, part
from tests.broker.dispatch.test_guard import called
from tests.clients.conftest import SETTINGS, MakeTopic
from tests.end_to_end.shell import mainstem
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving
from tests.server.raw_client import RawClient

from mainstem.address import parsed
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.group_administration import ListGroupsRequest
from mainstem.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from mainstem.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from mainstem.protocol.messages.streams_groups import StreamsTopology


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    settings = ("groups.streams_initial_rebalance_delay_ms=0", "groups.streams_assignment_interval_ms=0")
    serving = Serving(tmp_path_factory.mktemp("node"), *SETTINGS, *settings)
    try:
        yield serving.start()
    finally:
        serving.close()


async def connected(node: Serving) -> RawClient:
    return await RawClient.connect(parsed(node.kafka))


async def beat(client: RawClient, member: StreamsMemory) -> ErrorCode:
    request = member.request()
    return member.heard(request, await called(client, request, 0))


async def settle(client: RawClient, tasks: int, *members: StreamsMemory) -> None:
    """Let all members beat until they run all tasks, each as many as any other."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while {len(member.active) for member in members} != {tasks // len(members)}:
            for member in members:
                assert await beat(client, member) is ErrorCode.NONE
    assert len(set[tuple[str, int]]().union(*(member.active for member in members))) == tasks


def committing(member: StreamsMemory, topic: str, partition: int, offset: int) -> OffsetCommitRequest:
    row = OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset, committed_metadata="")
    return OffsetCommitRequest(
        group_id=member.group, generation_id_or_member_epoch=member.epoch, member_id=member.member_id,
        topics=(OffsetCommitRequestTopic(name=topic, partitions=(row,)),),
    )  # fmt: skip


def fetching(member: StreamsMemory, topic: str, partition: int) -> OffsetFetchRequest:
    wanted = OffsetFetchRequestTopics(name=topic, partition_indexes=(partition,))
    group = OffsetFetchRequestGroup(
        group_id=member.group, member_id=member.member_id, member_epoch=member.epoch, topics=(wanted,)
    )
    return OffsetFetchRequest(groups=(group,), require_stable=True)


def application(name: str, source: str) -> StreamsTopology:
    made, log = f"{name}-repartition", f"{name}-changelog"
    reading = part("0", source, writes=[made])
    return StreamsTopology(epoch=0, subtopologies=(reading, part("1", reads=[internal(made)], keeps=[internal(log)])))


def test_members_go_on_after_their_coordinator_was_killed(
    node: Serving, make_topic: MakeTopic, name: str, admin: AdminClient
) -> None:
    source = make_topic(2)

    async def story() -> None:
        one, two = (StreamsMemory(f"m{it}", group=name, topology=application(name, source)) for it in (1, 2))
        client = await connected(node)
        await settle(client, 4, one)
        await settle(client, 4, one, two)
        topic, partition = next(
            ({"0": source, "1": f"{name}-repartition"}[part], index) for part, index in sorted(one.active)
        )
        done = await called(client, committing(one, topic, partition, 7), 9)
        assert done.topics[0].partitions[0].error_code == ErrorCode.NONE
        await client.close()
        before = (one.epoch, one.active, two.active)
        node.kill()
        node.start()
        client = await connected(node)
        for member in (one, two):
            assert await beat(client, member) is ErrorCode.NONE
        assert (one.epoch, one.active, two.active) == before
        fetched = await called(client, fetching(one, topic, partition), 9)
        assert fetched.groups[0].topics[0].partitions[0].committed_offset == 7
        listed = await called(client, ListGroupsRequest(types_filter=("streams",)), 5)
        assert [(it.group_id, it.protocol_type, it.group_state) for it in listed.groups] == [
            (name, "streams", "Stable")
        ]
        await client.close()

    asyncio.run(asyncio.wait_for(story(), 3 * PATIENCE_SECONDS))
    told = json.loads(mainstem(node, "group", "describe", name, "--json"))
    assert (told["type"], told["state"], told["topology_epoch"], len(told["members"])) == ("streams", "stable", 0, 2)
    tasks = {task for member in told["members"] for task in member["active"]}
    assert tasks == {f"{part}_{index}" for part in "01" for index in range(2)}
    rows = {(row["topic"], row["partition"]): row for row in told["partitions"]}
    assert rows.keys() == {(topic, index) for topic in (source, f"{name}-repartition") for index in range(2)}
    assert {row["member"] for row in rows.values()} == {member["member"] for member in told["members"]}
    assert sorted(row["committed"] or 0 for row in rows.values()) == [0, 0, 0, 7]
    text = mainstem(node, "group", "describe", name)
    assert text.startswith(f"streams group {name}: stable, epoch {told['epoch']}, topology 0, 2 members, lag ")
    assert "WARM-UP" in text
    listed = json.loads(mainstem(node, "group", "list", "--type", "streams", "--json"))["groups"]
    assert listed == [{"group": name, "type": "streams", "state": "stable"}]
    topics = admin.list_topics(timeout=PATIENCE_SECONDS).topics
    assert {len(topics[f"{name}-{kind}"].partitions) for kind in ("repartition", "changelog")} == {2}
