"""A coordinator does for all members of a large group what is to be done in many turns of its event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.broker.consumer_groups.coordinators.cluster_of_one import ClusterOfOne, simulated
from tests.broker.consumer_groups.coordinators.test_lost_offsets import ready
from tests.broker.consumer_groups.transcript import GROUP, protocols

from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.consumer_groups.logged_state import LoggedState
from mainstem.broker.consumer_groups.members.holdings import Holdings
from mainstem.broker.consumer_groups.offsets_topic import LONG_RECORD_BYTES, OffsetsTopicCodec, encode
from mainstem.broker.consumer_groups.step import ConsumerGroupRecord, MemberRead
from mainstem.broker.machines.machine_log import Pause
from mainstem.broker.machines.runtime import DELIVERED_AT_ONCE
from mainstem.broker.request_context import RequestContext
from mainstem.model import FeatureLevel
from mainstem.ports import Session
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_offsets import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from mainstem.protocol.messages.group_membership import (
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from mainstem.protocol.records import build_batch, stored_batches

MEMBERS = 700
CONFIG = ConsumerGroupsConfig(rebalance_delay_ms=0, offsets_topic_partitions=1)
CALL = RequestContext(version=3, client_id="a client with a name of its own", session=Session("10.0.0.1", 5, 1))


def joining(cluster: ClusterOfOne, member_id: str = "") -> asyncio.Task[JoinGroupResponse]:
    request = JoinGroupRequest(
        group_id=GROUP, session_timeout_ms=10_000, rebalance_timeout_ms=30_000, member_id=member_id,
        protocol_type="consumer", protocols=protocols("range"),
    )  # fmt: skip
    return asyncio.create_task(cluster.groups.membership.join_group(request, CALL))


def syncing(cluster: ClusterOfOne, joined: JoinGroupResponse) -> asyncio.Task[SyncGroupResponse]:
    request = SyncGroupRequest(
        group_id=GROUP,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=tuple(
            SyncGroupRequestAssignment(member_id=one.member_id, assignment=one.member_id.encode())
            for one in joined.members
        ),
    )
    return asyncio.create_task(cluster.groups.membership.sync_group(request))


class Turns:
    """Counts the answers that come in each turn of the event loop."""

    def __init__(self) -> None:
        self._answers = Counter[int]()
        self._number = 0

    def watch(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.add_done_callback(self._note)

    def _note(self, task: asyncio.Task[Any]) -> None:
        if not self._answers[self._number]:  # the callbacks of this turn come before this one
            asyncio.get_running_loop().call_soon(self._end)
        self._answers[self._number] += 1

    def _end(self) -> None:
        self._number += 1

    @property
    def most(self) -> int:
        return max(self._answers.values())


async def in_turns(tasks: Sequence[asyncio.Task[Any]]) -> int:
    """How many answers come in one turn of the event loop at most."""
    turns = Turns()
    turns.watch(tasks)
    await asyncio.wait(tasks)
    return turns.most


def test_answers_of_a_large_group_leave_some_at_a_time_and_a_restart_finds_all_of_it() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        await ready(cluster)
        first = await joining(cluster)
        others = [joining(cluster) for _ in range(MEMBERS - 1)]
        await asyncio.sleep(1)
        joins = [joining(cluster, first.member_id), *others]
        assert 1 < await in_turns(joins) <= DELIVERED_AT_ONCE
        answers = [join.result() for join in joins]
        assert {answer.error_code for answer in answers} == {ErrorCode.NONE}
        followers = [syncing(cluster, answer) for answer in answers if not answer.members]
        await asyncio.sleep(1)
        assert not any(follower.done() for follower in followers)
        [leader] = [answer for answer in answers if answer.members]
        syncs = [syncing(cluster, leader), *followers]
        assert 1 < await in_turns(syncs) <= DELIVERED_AT_ONCE
        shares = {sync.result().assignment.decode() for sync in syncs}
        assert shares == {answer.member_id for answer in answers}
        await cluster.restart()
        await ready(cluster)
        [partition] = cluster.groups.served.partitions.values()
        assert partition.machine is not None
        group = partition.machine.state.classic[GROUP]
        assert {member_id: member.assignment.decode() for member_id, member in group.members.items()} == {
            share: share for share in shares
        }
        assert group.leader == leader.member_id

    simulated(story, CONFIG)


def group_of(generation: int, members: int) -> ConsumerGroupRecord:
    rows = [
        MemberMetadata(
            member_id=f"{number:04}", group_instance_id=f"i{number}" if number % 2 else None, client_id="c",
            client_host=f"/10.0.0.{number % 250}", rebalance_timeout=number, session_timeout=7,
            subscription=bytes(100), assignment=bytes(number % 20),
        )
        for number in range(members)
    ]  # fmt: skip
    value = GroupMetadataValue(
        protocol_type="consumer", generation=generation, protocol="range", leader="0003", members=tuple(rows)
    )
    return ConsumerGroupRecord(GroupMetadataKey(group=GROUP), value)


def test_a_large_group_is_read_and_replayed_member_by_member() -> None:
    records = [group_of(1, 5), group_of(2, 2 * MEMBERS), group_of(3, MEMBERS)]
    written = [encode(record, 5, FeatureLevel.newest()) for record in records]
    assert written[0].value is not None
    assert len(written[0].value) < LONG_RECORD_BYTES
    [batch] = stored_batches(build_batch(written).data)
    read = [one for one in OffsetsTopicCodec().decode_all(batch) if not isinstance(one, Pause)]
    assert sum(isinstance(one, MemberRead) for one in read) == 3 * MEMBERS
    holdings, others = Holdings(), Holdings()
    state, other = LoggedState(holdings), LoggedState(others)
    for one in read:
        state.replay(one)
    for record in records:
        other.replay(record)
    ours, theirs = state.classic[GROUP], other.classic[GROUP]
    for group in (ours, theirs):
        assert group.leader == "0003"
        assert group.persisted == records[-1].value
        assert group.supports("consumer", protocols("range"))
    assert ours.members == theirs.members
    assert ours.static_members == theirs.static_members
    assert (ours.bytes_held, ours.state, ours.generation) == (theirs.bytes_held, theirs.state, theirs.generation)
    assert holdings.bytes_held == others.bytes_held == ours.bytes_held
