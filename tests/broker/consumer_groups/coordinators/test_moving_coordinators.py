"""Coordinators follow the leaders of their partitions: in the middle of joins, syncs and commits, and at random."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.broker.consumer_groups.coordinators.cluster_of_many import (
    CALL,
    NODES,
    ClusterOfMany,
    commit,
    fetch,
    simulated,
)
from tests.broker.consumer_groups.transcript import protocols

from mainstem.broker.consumer_groups.coordinator import ConsumerGroupCoordinator
from mainstem.broker.consumer_groups.requests.submission import LOAD_SECONDS_MAX
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from mainstem.protocol.messages.group_administration import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from mainstem.protocol.messages.group_membership import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)

GROUP = "g"
GO_ELSEWHERE = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}


async def join(coordinator: ConsumerGroupCoordinator, member_id: str = "") -> JoinGroupResponse:
    request = JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=30_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=protocols("range"),
    )
    response = await coordinator.membership.join_group(request, CALL)
    if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        return await join(coordinator, response.member_id)
    return response


def assigning(member: JoinGroupResponse) -> SyncGroupRequest:
    shares = tuple(
        SyncGroupRequestAssignment(member_id=other.member_id, assignment=b"share") for other in member.members
    )
    return SyncGroupRequest(
        group_id=GROUP, generation_id=member.generation_id, member_id=member.member_id, assignments=shares
    )


def alive(member: JoinGroupResponse) -> HeartbeatRequest:
    return HeartbeatRequest(group_id=GROUP, generation_id=member.generation_id, member_id=member.member_id)


async def turns() -> None:
    """Everything has happened that can without time passing."""
    for _ in range(50):
        await asyncio.sleep(0)


def test_a_group_is_served_by_whoever_leads_its_partition() -> None:
    async def story(cluster: ClusterOfMany) -> None:
        first = await cluster.settled(GROUP)
        assert first is cluster.coordinators[1]
        assert await commit(first, GROUP, 7) is ErrorCode.NONE
        group = cluster.write_group_of(GROUP)
        for node_id in (2, 3):
            other = cluster.coordinators[node_id]
            assert await commit(other, GROUP, 8) is ErrorCode.NOT_COORDINATOR
            assert await fetch(other, GROUP) is ErrorCode.NOT_COORDINATOR
            assert await other.leader_of(GROUP) == 1
        cluster.store.move(group, 2)
        assert await fetch(first, GROUP) is ErrorCode.NOT_COORDINATOR
        assert await fetch(cluster.coordinators[2], GROUP) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        second = await cluster.settled(GROUP)
        assert second is cluster.coordinators[2]
        assert await fetch(second, GROUP) == 7
        cluster.store.move(group, -1)
        for coordinator in cluster.coordinators.values():
            assert await coordinator.leader_of(GROUP) == -1
            assert await fetch(coordinator, GROUP) is ErrorCode.COORDINATOR_NOT_AVAILABLE

    simulated(story)


def test_a_coordinator_follows_its_queue_to_another_write_group_and_back() -> None:
    async def story(cluster: ClusterOfMany) -> None:
        first = await cluster.settled(GROUP)
        before, queue_id = cluster.write_group_of(GROUP), cluster.queue_of(GROUP)
        away = 1 - before
        cluster.store.move(away, 2)
        await commit_at_last(cluster, 7)
        cluster.store.move_queue(queue_id, away)
        assert await fetch(first, GROUP) is ErrorCode.NOT_COORDINATOR
        assert await cluster.settled(GROUP) is cluster.coordinators[2]
        await commit_at_last(cluster, 8)
        cluster.store.move(away, 3)
        assert await fetch(cluster.coordinators[2], GROUP) is ErrorCode.NOT_COORDINATOR
        assert partition_in(cluster, 3, GROUP), "it is loaded before anybody asks"
        assert await cluster.settled(GROUP) is cluster.coordinators[3]
        cluster.store.move_queue(queue_id, before)
        for coordinator in cluster.coordinators.values():
            coordinator.served.routing_changed()  # as the metadata tells of a move
        assert partition_in(cluster, 1, GROUP)
        assert not partition_in(cluster, 3, GROUP)
        assert await cluster.settled(GROUP) is first
        assert await fetch(first, GROUP) == 8

    simulated(story)


def test_a_coordinator_that_leads_both_write_groups_owns_its_queue_anew() -> None:
    async def story(cluster: ClusterOfMany) -> None:
        first = await cluster.settled(GROUP)
        assert await commit(first, GROUP, 7) is ErrorCode.NONE
        cluster.store.move_queue(cluster.queue_of(GROUP), 1 - cluster.write_group_of(GROUP))
        assert await commit(first, GROUP, 8) in GO_ELSEWHERE
        await commit_at_last(cluster, 9)
        assert await cluster.settled(GROUP) is first
        assert await fetch(first, GROUP) == 9

    simulated(story)


async def commit_at_last(cluster: ClusterOfMany, offset: int) -> None:
    while await commit(await cluster.settled(GROUP), GROUP, offset) is not ErrorCode.NONE:  # noqa: ASYNC110 - simulated
        await asyncio.sleep(0.05)


def partition_in(cluster: ClusterOfMany, node_id: int, group: str) -> bool:
    """Whether a node serves the partition of a group, or loads it."""
    served = cluster.coordinators[node_id].served
    return served.index_of(group) in served.partitions


def test_who_leads_without_having_applied_everything_is_loading() -> None:
    async def story(cluster: ClusterOfMany) -> None:
        await cluster.settled(GROUP)
        group = cluster.write_group_of(GROUP)
        cluster.store.move(group, -1)
        cluster.store.leaders[group] = 2
        assert await fetch(cluster.coordinators[2], GROUP) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert await fetch(cluster.coordinators[1], GROUP) is ErrorCode.NOT_COORDINATOR

    simulated(story)


def test_a_join_waits_for_a_log_that_is_being_loaded() -> None:
    async def story(cluster: ClusterOfMany) -> None:
        await cluster.settled(GROUP)
        group = cluster.write_group_of(GROUP)
        cluster.store.move(group, 2)
        second = cluster.coordinators[2]
        assert await fetch(second, GROUP) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert (await join(second)).error_code is ErrorCode.NONE

    simulated(story)


def test_a_join_waits_for_entries_of_earlier_leaders_but_not_for_ever() -> None:
    async def story(cluster: ClusterOfMany) -> None:
        await cluster.settled(GROUP)
        group, second, loop = cluster.write_group_of(GROUP), cluster.coordinators[2], asyncio.get_running_loop()
        cluster.store.move(group, -1)
        cluster.store.leaders[group] = 2
        began = loop.time()
        assert (await join(second)).error_code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert loop.time() - began == LOAD_SECONDS_MAX
        waiting = asyncio.ensure_future(join(second))
        await turns()
        assert not waiting.done()
        cluster.store.move(group, 2)
        assert (await waiting).error_code is ErrorCode.NONE

    simulated(story)


@pytest.mark.parametrize("moved_to", [3, None])
def test_a_join_that_waits_is_told_at_once_that_the_coordinator_is_elsewhere(moved_to: int | None) -> None:
    """`None`: the node stops."""

    async def story(cluster: ClusterOfMany) -> None:
        await cluster.settled(GROUP)
        group, second, loop = cluster.write_group_of(GROUP), cluster.coordinators[2], asyncio.get_running_loop()
        cluster.store.move(group, -1)
        cluster.store.leaders[group] = 2
        began, waiting = loop.time(), asyncio.ensure_future(join(second))
        await turns()
        assert not waiting.done()
        if moved_to is None:
            await second.served.close()
            assert (await waiting).error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        else:
            cluster.store.move(group, moved_to)
            second.served.serving_changed(group, serving=False)
            assert (await waiting).error_code is ErrorCode.NOT_COORDINATOR
        assert loop.time() == began

    simulated(story)


@pytest.mark.parametrize("kept", [0, 1])
def test_a_commit_in_the_middle_of_a_move_is_refused_whatever_becomes_of_its_record(kept: int) -> None:
    async def story(cluster: ClusterOfMany) -> None:
        first = await cluster.settled(GROUP)
        assert await commit(first, GROUP, 1) is ErrorCode.NONE
        cluster.commit_seconds = 1.0
        committing = asyncio.ensure_future(commit(first, GROUP, 2))
        fetching = asyncio.ensure_future(fetch(first, GROUP))
        await turns()
        assert not committing.done()
        assert not fetching.done(), "what is not committed is told to nobody"
        cluster.store.move(cluster.write_group_of(GROUP), 2, kept=kept)
        assert await committing is ErrorCode.NOT_COORDINATOR
        assert await fetching is ErrorCode.NOT_COORDINATOR
        second = await cluster.settled(GROUP)
        assert await fetch(second, GROUP) == 1 + kept
        cluster.store.move(cluster.write_group_of(GROUP), 1)
        assert await fetch(await cluster.settled(GROUP), GROUP) == 1 + kept, "nothing is left of the first reign"

    simulated(story)


def test_a_leader_that_is_not_told_yet_confirms_nothing() -> None:
    async def story(cluster: ClusterOfMany) -> None:
        first = await cluster.settled(GROUP)
        await commit(first, GROUP, 1)
        cluster.store.move(cluster.write_group_of(GROUP), 2, told_after_seconds=30.0)
        late = asyncio.ensure_future(commit(first, GROUP, 99))
        second = await cluster.settled(GROUP)
        assert await commit(second, GROUP, 2) is ErrorCode.NONE
        asked = asyncio.ensure_future(fetch(first, GROUP))
        await turns()
        assert not late.done()
        assert not asked.done(), "it finds nobody to confirm that it leads"
        assert await late is ErrorCode.COORDINATOR_NOT_AVAILABLE, "no client waits as long as that"
        assert await asked is ErrorCode.NOT_COORDINATOR
        assert await fetch(second, GROUP) == 2

    simulated(story)


def test_a_reign_that_ends_and_begins_again_in_one_turn_starts_from_the_log() -> None:
    async def story(cluster: ClusterOfMany) -> None:
        first = await cluster.settled(GROUP)
        await commit(first, GROUP, 1)
        cluster.commit_seconds = 1.0
        lost = asyncio.ensure_future(commit(first, GROUP, 2))
        await turns()
        group = cluster.write_group_of(GROUP)
        cluster.store.move(group, 3)
        cluster.store.move(group, 1)
        assert await lost is ErrorCode.NOT_COORDINATOR
        assert await fetch(first, GROUP) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert await fetch(await cluster.settled(GROUP), GROUP) == 1

    simulated(story)


def test_a_move_in_the_middle_of_joining_sends_everybody_to_the_new_coordinator() -> None:
    async def story(cluster: ClusterOfMany) -> None:
        first = await cluster.settled(GROUP)
        member = await join(first)
        assert (await first.membership.sync_group(assigning(member))).error_code == ErrorCode.NONE
        joining = asyncio.ensure_future(join(first))
        await turns()
        assert not joining.done(), "it waits for the member to join again"
        cluster.store.move(cluster.write_group_of(GROUP), 2)
        assert (await joining).error_code == ErrorCode.NOT_COORDINATOR
        assert (await first.membership.heartbeat(alive(member))).error_code == ErrorCode.NOT_COORDINATOR
        second = await cluster.settled(GROUP)
        assert (await second.membership.heartbeat(alive(member))).error_code == ErrorCode.NONE, (
            "the log knows the member"
        )
        newcomer = asyncio.ensure_future(join(second))
        await turns()
        again = await join(second, member.member_id)
        assert {again.error_code, (await newcomer).error_code} == {ErrorCode.NONE}
        assert again.generation_id == newcomer.result().generation_id == member.generation_id + 1

    simulated(story)


@pytest.mark.parametrize("kept", [0, 1])
def test_a_move_in_the_middle_of_syncing_keeps_the_generation_or_the_one_before(kept: int) -> None:
    async def story(cluster: ClusterOfMany) -> None:
        first = await cluster.settled(GROUP)
        member = await join(first)
        cluster.commit_seconds = 1.0
        syncing = asyncio.ensure_future(first.membership.sync_group(assigning(member)))
        await turns()
        assert not syncing.done()
        cluster.store.move(cluster.write_group_of(GROUP), 2, kept=kept)
        assert (await syncing).error_code == ErrorCode.NOT_COORDINATOR
        second = await cluster.settled(GROUP)
        code = (await second.membership.heartbeat(alive(member))).error_code
        assert code == (ErrorCode.NONE if kept else ErrorCode.UNKNOWN_MEMBER_ID)
        again = await join(second, member.member_id if kept else "")
        assert again.error_code == ErrorCode.NONE
        assert (await second.membership.sync_group(assigning(again))).error_code == ErrorCode.NONE

    simulated(story)


def test_listing_describing_and_deleting_are_each_nodes_own() -> None:
    async def story(cluster: ClusterOfMany) -> None:
        names = [f"g{number}" for number in range(8)]
        for name in names:
            assert await commit(await cluster.settled(name), name, 1) is ErrorCode.NONE
        cluster.store.move(0, 2)
        cluster.store.move(1, 3)
        here = [name for name in names if cluster.write_group_of(name) == 0]
        assert 0 < len(here) < len(names)
        for name in names:
            await cluster.settled(name)
        listed = [
            await cluster.coordinators[node_id].administration.list_groups(ListGroupsRequest()) for node_id in NODES
        ]
        assert [answer.error_code for answer in listed] == [ErrorCode.NONE] * 3
        found = [sorted(group.group_id for group in answer.groups) for answer in listed]
        assert found == [[], here, [name for name in names if name not in here]]
        described = await cluster.coordinators[2].administration.describe_groups(
            DescribeGroupsRequest(groups=tuple(names))
        )
        elsewhere = {group.group_id for group in described.groups if group.error_code == ErrorCode.NOT_COORDINATOR}
        assert elsewhere == set(names) - set(here)
        deleted = await cluster.coordinators[2].administration.delete_groups(
            DeleteGroupsRequest(groups_names=tuple(names))
        )
        codes = {result.group_id: result.error_code for result in deleted.results}
        assert codes == {name: ErrorCode.NONE if name in here else ErrorCode.NOT_COORDINATOR for name in names}

    simulated(story)


def test_offsets_of_a_deleted_topic_are_forgotten_on_every_node() -> None:
    async def story(cluster: ClusterOfMany) -> None:
        names = [f"g{number}" for number in range(8)]
        for name in names:
            await commit(await cluster.settled(name), name, 1)
        cluster.store.move(1, 3)
        for name in names:
            await cluster.settled(name)
        topic = cluster.metadata.drop_topic("flights")
        for coordinator in cluster.coordinators.values():
            coordinator.topic_deleted(topic)
        assert [await fetch(await cluster.settled(name), name) for name in names] == [-1] * len(names)

    simulated(story)


def test_queues_of_the_internal_topic_that_its_maker_did_not_come_to_make_are_made() -> None:
    async def story(cluster: ClusterOfMany) -> None:
        await cluster.settled(GROUP)
        cluster.store.queues.clear()
        group = cluster.write_group_of(GROUP)
        cluster.store.move(group, 2)
        assert await commit(await cluster.settled(GROUP), GROUP, 3) is ErrorCode.NONE

    simulated(story)


class History:
    """The answers to one group's committer, and what readers may see because of them."""

    def __init__(self) -> None:
        self.tried = 0
        self.told = 0


async def commits(cluster: ClusterOfMany, name: str, history: History, count: int) -> None:
    while history.tried < count:
        history.tried += 1
        while True:
            coordinator = await cluster.coordinator(name)
            code = await commit(coordinator, name, history.tried)
            if code is ErrorCode.NONE:
                break
            assert code in GO_ELSEWHERE, code
            await asyncio.sleep(cluster.random.uniform(0, 0.1))
        history.told = history.tried
        await asyncio.sleep(cluster.random.uniform(0, 0.2))


async def reads(cluster: ClusterOfMany, name: str, history: History) -> int:
    seen = 0
    least = 0
    while True:
        least = max(least, history.told)
        found = await fetch(cluster.coordinators[cluster.random.choice(NODES)], name)
        if isinstance(found, ErrorCode):
            assert found in GO_ELSEWHERE, found
        else:
            assert least <= max(found, 0) <= history.tried, (name, least, found, history.tried)
            least = max(least, found)
            seen += 1
        await asyncio.sleep(cluster.random.uniform(0, 0.2))


async def moves(cluster: ClusterOfMany) -> None:
    chance = cluster.random
    while True:
        await asyncio.sleep(chance.uniform(0, 1.0))
        group = chance.randrange(cluster.store.groups)
        late = chance.choice([0.0, chance.uniform(0, 3)])
        if chance.random() < 0.3:
            cluster.store.move(group, -1, kept=chance.randrange(4), told_after_seconds=late)
            await asyncio.sleep(chance.uniform(0, 1.0))
        cluster.store.move(group, chance.choice(NODES), kept=chance.randrange(4), told_after_seconds=late)


@pytest.mark.parametrize("seed", range(12))
def test_committed_offsets_never_go_back(seed: int) -> None:
    async def story(cluster: ClusterOfMany) -> None:
        cluster.store.commit_seconds = lambda: cluster.random.uniform(0, 0.3)
        await cluster.settled(GROUP)
        histories = {f"g{number}": History() for number in range(5)}
        others: list[asyncio.Task[Any]] = [asyncio.ensure_future(moves(cluster))]
        others += [asyncio.ensure_future(reads(cluster, name, found)) for name, found in histories.items()]
        await asyncio.gather(*(commits(cluster, name, found, 60) for name, found in histories.items()))
        for task in others:
            task.cancel()
        for outcome in await asyncio.gather(*others, return_exceptions=True):
            assert isinstance(outcome, asyncio.CancelledError), outcome
        for group in range(cluster.store.groups):
            cluster.store.move(group, 1)
        for name in histories:
            assert await fetch(await cluster.settled(name), name) == 60

    print(f"seed {seed}")
    simulated(story, seed)


async def beat(coordinator: ConsumerGroupCoordinator, member_id: str, epoch: int, **said: Any) -> Any:
    request = ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id=member_id, member_epoch=epoch, **said)
    return await coordinator.membership.consumer_heartbeat(request, CALL, lambda topic: True)


def test_another_coordinator_goes_on_in_the_middle_of_a_reconciliation() -> None:
    async def story(cluster: ClusterOfMany) -> None:
        cluster.metadata.add_topic("shared", 4)
        first = await cluster.settled(GROUP)
        joining = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ("shared",), "topic_partitions": ()}
        everything = (await beat(first, "a", 0, **joining)).assignment.topic_partitions
        assert sum(len(row.partitions) for row in everything) > 1
        waiting = await beat(first, "b", 0, **joining)
        assert (waiting.member_epoch, waiting.assignment.topic_partitions) == (2, ())
        kept = (await beat(first, "a", 1)).assignment.topic_partitions
        cluster.store.move(cluster.write_group_of(GROUP), 2)
        assert (await beat(first, "a", 1)).error_code == ErrorCode.NOT_COORDINATOR
        second = await cluster.settled(GROUP)
        assert second is cluster.coordinators[2]
        assert (await beat(second, "b", 2)).assignment is None  # the other has not given up anything yet
        assert (await beat(second, "a", 1, topic_partitions=kept)).member_epoch == 2
        given = (await beat(second, "b", 2)).assignment.topic_partitions
        shares = [{index for row in rows for index in row.partitions} for rows in (everything, kept, given)]
        assert shares[2] == shares[0] - shares[1]
        (described,) = await second.administration.describe_consumer_groups([GROUP])
        assert (described.group_state, described.group_epoch) == ("Stable", 2)
        (elsewhere,) = await first.administration.describe_consumer_groups([GROUP])
        assert elsewhere.error_code == ErrorCode.NOT_COORDINATOR

    simulated(story)
