"""Streams groups over real sockets: what a member hears of topics that it may not see or make, and of those that the
node makes for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from tests.broker.consumer_groups.streams_clients import AT_ONCE, WORDS, StreamsMemory
from tests.broker.dispatch.test_guard import ME, called
from tests.broker.harness import Serving, serving
from tests.fakes.access.acls import MemoryAcls
from tests.harness.patience import PATIENCE_SECONDS
from tests.server.raw_client import RawClient

from mainstem.broker.consumer_groups.streams.topology import Status
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.streams_groups import (
    StreamsGroupDescribeRequest,
    StreamsGroupHeartbeatResponse,
    StreamsKeyValue,
)
from mainstem.security.acls.acl import Acl, Operation, PatternType, Permission, ResourceKind

EVERYTHING = {(name, index) for name in ("0", "1") for index in range(2)}


def rule(operation: Operation, name: str, kind: ResourceKind = ResourceKind.TOPIC) -> Acl:
    return Acl(kind, name, PatternType.LITERAL, ME, "*", operation, Permission.ALLOW)


READ_GROUP = rule(Operation.READ, "app", ResourceKind.GROUP)
DESCRIBED = [rule(Operation.DESCRIBE, name) for name in ("lines", "by-word", "counts-changelog")]


async def beat(client: RawClient, member: StreamsMemory) -> ErrorCode:
    request = member.request()
    response = await called(client, request, 0)
    assert isinstance(response, StreamsGroupHeartbeatResponse)
    return member.heard(request, response)


async def beat_until_tasks(client: RawClient, member: StreamsMemory) -> None:
    """The node looks at topics once a second."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not member.active:
            assert await beat(client, member) is ErrorCode.NONE


def on_a_node(story: Callable[[Serving, RawClient], Awaitable[None]], acls: MemoryAcls | None = None) -> None:
    async def scenario() -> None:
        async with serving(acls=acls, groups=AT_ONCE) as node:
            client = await node.connect()
            await story(node, client)
            await client.close()

    asyncio.run(asyncio.wait_for(scenario(), 2 * PATIENCE_SECONDS))


def test_the_node_makes_internal_topics_for_those_who_may_create_them() -> None:
    acls = MemoryAcls(READ_GROUP, *DESCRIBED, rule(Operation.CREATE, "by-word"))

    async def story(node: Serving, client: RawClient) -> None:
        await node.topic("lines", 2)
        [first, counting] = WORDS.subtopologies
        log = replace(
            counting.state_changelog_topics[0],
            topic_configs=(StreamsKeyValue(key="cleanup.policy", value="compact"),),
        )
        topology = replace(WORDS, subtopologies=(first, replace(counting, state_changelog_topics=(log,))))
        member = StreamsMemory("m1", group="app", topology=topology)
        assert await beat(client, member) is ErrorCode.NONE
        detail = member.statuses[Status.MISSING_INTERNAL_TOPICS]
        assert "the client may not CREATE the topics counts-changelog" in detail
        made = node.metadata.topic("by-word")
        assert made is not None, "those that it may create are made"
        assert (made.partitions, node.metadata.topic("counts-changelog")) == (2, None)
        acls.table.add(rule(Operation.CREATE, "counts-changelog"))
        await beat_until_tasks(client, member)
        assert (member.active, member.statuses) == (EVERYTHING, {})
        changelog = node.metadata.topic("counts-changelog")
        assert changelog is not None
        assert (changelog.partitions, changelog.configs["cleanup.policy"]) == (2, "compact")
        acls.table.add(rule(Operation.DESCRIBE, "app", ResourceKind.GROUP))
        request = StreamsGroupDescribeRequest(group_ids=("app",), include_authorized_operations=True)
        [shown] = (await client.call(request, 0)).groups
        assert (shown.group_state, [it.member_id for it in shown.members]) == ("Stable", ["m1"])
        acls.table.remove(DESCRIBED[2])
        [hidden] = (await client.call(request, 0)).groups
        assert (hidden.error_code, hidden.members) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ())

    on_a_node(story, acls)


def test_topics_that_a_client_may_not_see_and_names_that_cannot_be() -> None:
    acls = MemoryAcls(READ_GROUP, *DESCRIBED[:2])

    async def story(node: Serving, client: RawClient) -> None:
        await node.topic("lines", 2)
        assert await beat(client, StreamsMemory("m1", group="app")) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        for name in ("__consumer_offsets", "no spaces", "x" * 250):
            part = replace(WORDS.subtopologies[0], source_topics=(name,), repartition_sink_topics=())
            member = StreamsMemory("m1", group="app", topology=replace(WORDS, subtopologies=(part,)))
            assert await beat(client, member) is ErrorCode.STREAMS_INVALID_TOPOLOGY

    on_a_node(story, acls)


def test_topics_that_cannot_be_made_are_told_with_the_reason() -> None:
    async def story(node: Serving, client: RawClient) -> None:
        await node.topic("lines", 2)
        [first, counting] = WORDS.subtopologies
        log = replace(
            counting.state_changelog_topics[0], topic_configs=(StreamsKeyValue(key="cleanup.policy", value="burn"),)
        )
        topology = replace(WORDS, subtopologies=(first, replace(counting, state_changelog_topics=(log,))))
        member = StreamsMemory("m1", topology=topology)
        assert await beat(client, member) is ErrorCode.NONE
        assert "counts-changelog: " in member.statuses[Status.MISSING_INTERNAL_TOPICS]
        assert "burn" in member.statuses[Status.MISSING_INTERNAL_TOPICS]

    on_a_node(story)
