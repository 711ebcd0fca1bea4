"""Members that name their rack get the partitions that have a replica there, as the coordinator's node knows nodes and
replicas."""

from __future__ import annotations

from typing import Any

import pytest
from tests.broker.consumer_groups.coordinators.cluster_of_many import CALL, ClusterOfMany, simulated

from mainstem.model import Node
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

PARTITIONS = 8
GROUP = "g"

Held = dict[str, frozenset[int]]


def assigned(racks: dict[int, str | None]) -> tuple[Held, Held]:
    """Two members join, of racks a and b: what each gets, and the partitions that have replicas in each rack. Write
    group 0 has its replica on node 1, the other one on node 2."""

    async def story(cluster: ClusterOfMany) -> tuple[Held, Held]:
        nodes = [Node(node_id=one, host="h", port=9000 + one, rack=rack) for one, rack in racks.items()]
        cluster.metadata.nodes_known[:] = nodes
        cluster.store.placed = {0: (1,), 1: (2,)}
        topic = cluster.metadata.add_topic("gates", partitions=PARTITIONS)
        here: dict[int, set[int]] = {0: set(), 1: set()}
        for index in range(PARTITIONS):
            here[cluster.store.group_of(topic.queue_id(index))].add(index)
        coordinator = await cluster.settled(GROUP)

        async def beat(member_id: str, rack: str, epoch: int, **also: Any) -> ConsumerGroupHeartbeatResponse:
            request = ConsumerGroupHeartbeatRequest(
                group_id=GROUP, member_id=member_id, member_epoch=epoch, rack_id=rack, rebalance_timeout_ms=60_000,
                subscribed_topic_names=("gates",), topic_partitions=(), **also,
            )  # fmt: skip
            answer = await coordinator.membership.consumer_heartbeat(request, CALL, lambda name: True)
            assert answer.error_code == ErrorCode.NONE, answer.error_message
            return answer

        # the member of rack b comes first, and would get the first half of what is shared out
        await beat("b", "b", 0)
        await beat("a", "a", 0)
        groups = await coordinator.administration.describe_consumer_groups([GROUP])
        (described,) = groups
        targets = {
            member.member_id: frozenset(
                index for topic in member.target_assignment.topic_partitions for index in topic.partitions
            )
            for member in described.members
        }
        return targets, {"a": frozenset(here[0]), "b": frozenset(here[1])}

    return simulated(story)


def test_each_member_gets_what_has_a_replica_in_its_rack() -> None:
    targets, near = assigned({1: "a", 2: "b", 3: "c"})
    assert targets == near


@pytest.mark.parametrize("racks", [{1: "a", 2: "a", 3: "a"}, {1: None, 2: None, 3: "b"}])
def test_racks_count_for_nothing_where_nodes_are_in_one_or_none(racks: dict[int, str | None]) -> None:
    targets, near = assigned(racks)
    assert {len(held) for held in targets.values()} == {PARTITIONS // 2}
    assert targets != near
