"""How far groups are behind, and why: asked of their coordinator, which asks the brokers of their queues."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from tests.broker.consumer_groups.coordinators.cluster_of_many import (
    CALL,
    CONFIG,
    NODES,
    ClusterOfMany,
    simulated,
)
from tests.fakes.moving_store import NodeStore

import mainstem.broker.group_lag.lag_sampler as sampling
import mainstem.broker.group_lag.readers as reading
from mainstem.broker.errors import CoordinatorRefusal
from mainstem.broker.group_lag.group_lags import GroupLags
from mainstem.broker.group_lag.lag_sampler import LagSampler
from mainstem.broker.group_lag.queue_facts import ClientAsked, LagFacts, QueueAsked, QueueFactsHere
from mainstem.broker.queue_routing import QueueRouting
from mainstem.group_lag import IDLE, NO_LEADER, REBALANCE_LOOP, SLOW_MEMBER, THROTTLED, GroupLag
from mainstem.model import QueueRange
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from mainstem.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from mainstem.protocol.records import Compression, NewRecord, build_batch

GROUP, TOPIC = "readers", "gates"
LEADER_OF_ODD = 2
"""Of the partitions with odd numbers; node 1 leads the others."""
CONSUMER = ClientAsked("c", "10.0.0.1")


class Lags:
    """The lags that each node of a cluster tells, which ask each other without a wire."""

    def __init__(self, cluster: ClusterOfMany, clock: Any) -> None:
        self.cluster = cluster
        self.throttled: set[tuple[int, ClientAsked]] = set()
        """With the node that holds the client back."""
        self.asked: list[int] = []
        self.here = {node_id: QueueFactsHere(cluster.store, self._held_back(node_id)) for node_id in NODES}
        self.of = {
            node_id: GroupLags(
                node_id,
                cluster.coordinators[node_id].served,
                self.here[node_id],
                cluster.metadata,
                QueueRouting(node_id, cluster.metadata, NodeStore(cluster.store, node_id), apart=False),
                clock,
                self,
            )
            for node_id in NODES
        }

    def _held_back(self, node_id: int) -> Callable[[str, str], bool]:
        return lambda client_id, host: (node_id, ClientAsked(client_id, host)) in self.throttled

    async def facts(
        self, node_id: int, queues: Sequence[QueueAsked], clients: Sequence[ClientAsked]
    ) -> LagFacts | None:
        self.asked.append(node_id)
        return await self.here[node_id].facts(queues, clients)

    async def group(self, node_id: int, group_id: str) -> GroupLag | ErrorCode | None:
        try:
            return await self.of[node_id].of_group_here(group_id)
        except CoordinatorRefusal as refusal:
            return refusal.code


def told(story: Callable[[ClusterOfMany, Lags], Awaitable[None]]) -> None:
    """A topic of four partitions with ten messages each, one a second, of which the group has committed six, none,
    ten, and two; the consumer reads all but the last partition."""

    async def all_of_it(cluster: ClusterOfMany) -> None:
        loop = asyncio.get_running_loop()
        lags = Lags(cluster, loop)
        topic = cluster.metadata.add_topic(TOPIC, partitions=4)
        await cluster.store.create([QueueRange(topic.number, 0, 4)])
        await cluster.settled(GROUP)
        cluster.store.move(1, LEADER_OF_ODD)
        now_ms = loop.now_ms()  # type: ignore[attr-defined]
        for index in range(4):
            records = [NewRecord(now_ms - 1_000 * (10 - number), None, b"v") for number in range(10)]
            batch = build_batch(records, compression=Compression.ZSTD if index == 1 else Compression.NONE)
            leader = cluster.store.leaders[cluster.store.group_of(topic.queue_id(index))]
            await cluster.store.append_on(leader, [batch.to_append(topic.queue_id(index))], -1, None)
        await commit(cluster, {0: 6, 2: 10, 3: 2})
        await story(cluster, lags)

    simulated(all_of_it)


async def commit(cluster: ClusterOfMany, offsets: dict[int, int], group: str = GROUP, epoch: int = -1) -> None:
    rows = tuple(
        OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata=None)
        for index, offset in offsets.items()
    )
    request = OffsetCommitRequest(
        group_id=group,
        member_id="m" if epoch >= 0 else "",
        generation_id_or_member_epoch=epoch,
        topics=(OffsetCommitRequestTopic(name=TOPIC, partitions=rows),),
    )
    answer = await (await cluster.settled(group)).offsets.commit_offsets(request, CALL)
    assert {row.error_code for row in answer.topics[0].partitions} == {ErrorCode.NONE}


async def beat(cluster: ClusterOfMany, epoch: int, member_id: str = "m") -> int:
    request = ConsumerGroupHeartbeatRequest(
        group_id=GROUP, member_id=member_id, member_epoch=epoch, rebalance_timeout_ms=60_000,
        subscribed_topic_names=(TOPIC,) if epoch == 0 else None, topic_partitions=() if epoch == 0 else None,
    )  # fmt: skip
    coordinator = await cluster.settled(GROUP)
    answer = await coordinator.membership.consumer_heartbeat(request, CALL, lambda name: True)
    assert answer.error_code == ErrorCode.NONE, answer.error_message
    return answer.member_epoch


def whys(lag: GroupLag) -> dict[int, str | None]:
    return {row.partition: row.why for row in lag.partitions}


def test_lag_is_told_in_messages_and_seconds_by_every_node() -> None:
    async def story(cluster: ClusterOfMany, lags: Lags) -> None:
        for node_id in NODES:
            lag = await lags.of[node_id].of_group(GROUP)
            assert [(row.partition, row.committed, row.end, row.lag) for row in lag.partitions] == [
                (1, None, 10, 10), (3, 2, 10, 8), (0, 6, 10, 4), (2, 10, 10, 0),
            ]  # fmt: skip
            seconds = {row.partition: row.seconds for row in lag.partitions}
            assert [seconds[index] for index in (0, 1, 3)] == pytest.approx([4.0, 10.0, 8.0], abs=0.5)
            assert seconds[2] is None
            assert (lag.kind, lag.state, lag.members, lag.lag, lag.partitions_count) == ("classic", "Empty", 0, 22, 4)
            assert lag.seconds == seconds[1]
            assert lag.why == IDLE
        assert LEADER_OF_ODD in lags.asked, "the node that leads partitions of the group was asked about them"
        with pytest.raises(CoordinatorRefusal) as refused:
            await lags.of[3].of_group("nobody")
        assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND

    told(story)


def test_the_cause_is_told_for_each_partition() -> None:
    async def story(cluster: ClusterOfMany, lags: Lags) -> None:
        epoch = await beat(cluster, 0)
        keeps_up = await lags.of[3].of_group(GROUP)
        assert whys(keeps_up) == dict.fromkeys(range(4))
        assert {(row.member, row.client_id, row.host) for row in keeps_up.partitions} == {("m", "c", "/10.0.0.1")}
        lags.throttled.add((LEADER_OF_ODD, CONSUMER))
        assert whys(await lags.of[3].of_group(GROUP)) == {0: None, 1: THROTTLED, 2: None, 3: THROTTLED}
        lags.throttled.clear()
        await asyncio.sleep(25)
        await beat(cluster, epoch)
        assert whys(await lags.of[3].of_group(GROUP)) == {0: None, 1: SLOW_MEMBER, 2: None, 3: SLOW_MEMBER}
        for _ in range(CONFIG.rebalance_loop_generations):
            await beat(cluster, 0, "comes-and-goes")
            await beat(cluster, -1, "comes-and-goes")
        assert whys(await lags.of[3].of_group(GROUP)) == {
            0: REBALANCE_LOOP,
            1: REBALANCE_LOOP,
            2: None,
            3: REBALANCE_LOOP,
        }
        cluster.store.move(1, -1)
        assert whys(await lags.of[1].of_group(GROUP))[3] == NO_LEADER

    told(story)


def test_a_coordinator_that_is_emptied_meanwhile_tells_no_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would say that nothing is committed, to whoever asked while it looked at the members."""
    monkeypatch.setattr(reading, "MEMBERS_AT_ONCE", 1)

    async def story(cluster: ClusterOfMany, lags: Lags) -> None:
        for number in range(5):
            await beat(cluster, 0, f"m{number}")
        group = cluster.write_group_of(GROUP)
        node_id = cluster.store.leaders[group]
        asking = asyncio.create_task(lags.of[node_id].of_group_here(GROUP))
        await asyncio.sleep(0)
        assert not asking.done()
        cluster.store.move(group, next(other for other in NODES if other != node_id))
        with pytest.raises(CoordinatorRefusal) as refused:
            await asking
        assert refused.value.code is ErrorCode.NOT_COORDINATOR
        await cluster.settled(GROUP)
        found = await lags.of[node_id].of_group(GROUP)
        assert {row.partition: row.committed for row in found.partitions} == {0: 6, 1: None, 2: 10, 3: 2}

    told(story)


def test_metrics_have_totals_and_a_bounded_number_of_series() -> None:
    async def story(cluster: ClusterOfMany, lags: Lags) -> None:
        for number in range(5):
            await commit(cluster, {0: number, 1: 5}, group=f"g{number}")
        totals: dict[str, float] = {}
        for node_id in NODES:
            sampler = LagSampler(
                cluster.coordinators[node_id].served, lags.of[node_id], cluster.metadata,
                interval_seconds=30.0, series_max=2, monotonic=asyncio.get_running_loop().time,
            )  # fmt: skip
            assert not list(sampler.samples()), "nothing before the first look"
            await sampler.look()
            found = list(sampler.samples())
            for sample in found:
                if not sample.labels:
                    totals[sample.name] = totals.get(sample.name, 0) + sample.value
            if node_id != 1:
                continue
            here = [
                f"g{number}" for number in range(5) if cluster.store.leaders[cluster.write_group_of(f"g{number}")] == 1
            ]
            by_group = {s.labels[0][1]: s.value for s in found if s.name == "mainstem_group_lag_messages"}
            assert len(by_group) <= 2
            if cluster.store.leaders[cluster.write_group_of(GROUP)] == 1:
                here.append(GROUP)
            assert set(by_group) <= set(here)
            partitions = [s for s in found if s.name == "mainstem_group_lag_partition_messages"]
            assert len(partitions) <= 2
        assert totals["mainstem_group_lag_groups"] == 6
        assert totals["mainstem_group_lag_groups_behind"] == 6
        of_readers = 4 + 0 + 8  # what nobody has committed is in no total
        assert totals["mainstem_group_lag_messages_sum"] == of_readers + sum(10 - number + 5 for number in range(5))

    told(story)


def test_a_look_counts_nothing_of_a_coordinator_that_is_emptied_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "OFFSETS_AT_ONCE", 1)

    async def story(cluster: ClusterOfMany, lags: Lags) -> None:
        group = cluster.write_group_of(GROUP)
        node_id = cluster.store.leaders[group]
        sampler = LagSampler(
            cluster.coordinators[node_id].served, lags.of[node_id], cluster.metadata,
            interval_seconds=30.0, series_max=2, monotonic=asyncio.get_running_loop().time,
        )  # fmt: skip
        looking = asyncio.create_task(sampler.look())
        for _ in range(3):
            await asyncio.sleep(0)
        assert not looking.done()
        cluster.store.move(group, next(other for other in NODES if other != node_id))
        await looking
        assert sampler.findings is not None
        assert (sampler.findings.groups, sampler.findings.lag) == (0, 0)

    told(story)


def test_a_look_rests_much_longer_than_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "OFFSETS_AT_ONCE", 1)

    async def story(cluster: ClusterOfMany, lags: Lags) -> None:
        loop = asyncio.get_running_loop()
        asked = 0

        def monotonic() -> float:
            """Each question takes a millisecond."""
            nonlocal asked
            asked += 1
            return loop.time() + asked / 1_000

        node_id = cluster.store.leaders[cluster.write_group_of(GROUP)]
        sampler = LagSampler(
            cluster.coordinators[node_id].served, lags.of[node_id], cluster.metadata,
            interval_seconds=30.0, series_max=2, monotonic=monotonic,
        )  # fmt: skip
        began = loop.time()
        await sampler.look()
        slices = 3  # one for each committed offset
        assert loop.time() - began >= slices * sampling.RESTING_SHARE / 1_000

    told(story)
