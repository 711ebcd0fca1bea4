"""DescribeQuorum against a fake cluster."""

from __future__ import annotations

from typing import Any

import pytest
from tests.broker.admin.admin_broker import AdminBroker, versions_of
from tests.fakes.standing import FakeStanding

from mainstem.broker.handlers import describe_quorum
from mainstem.model import LogPosition, QuorumStanding
from mainstem.nameserver.errors import MetadataUnavailable
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartition,
    DescribeQuorumRequestTopic,
    DescribeQuorumResponse,
)

METADATA = "__cluster_metadata"


def described(standing: FakeStanding | None, *asked: tuple[str, int], version: int | None = None) -> Any:
    admin = AdminBroker()
    admin.broker.standing = standing
    topics = tuple(
        DescribeQuorumRequestTopic(topic_name=name, partitions=(DescribeQuorumRequestPartition(partition_index=index),))
        for name, index in asked
    )
    answer: DescribeQuorumResponse = admin.ask(describe_quorum.handle, DescribeQuorumRequest(topics=topics), version)
    return answer


def standing_of_three() -> FakeStanding:
    standing = FakeStanding()
    standing.quorum = QuorumStanding(
        2, 7, 41,
        (LogPosition(1, 41, 900, 890), LogPosition(2, 42, 1_000, 1_000), LogPosition(3, -1, -1, -1)),
        (LogPosition(4, 40, 950, -1),),
    )  # fmt: skip
    standing.addresses = {1: ("one", 9093), 2: ("two", 9093)}
    return standing


@pytest.mark.parametrize("version", versions_of(DescribeQuorumRequest))
def test_the_metadata_quorum_in_every_version(version: int) -> None:
    answer = described(standing_of_three(), (METADATA, 0), version=version)
    assert answer.error_code == ErrorCode.NONE
    ((topic,),) = (answer.topics,)
    (partition,) = topic.partitions
    assert (topic.topic_name, partition.partition_index, partition.error_code) == (METADATA, 0, ErrorCode.NONE)
    assert (partition.leader_id, partition.leader_epoch, partition.high_watermark) == (2, 7, 42)
    times = version >= 1

    def told(states: Any) -> list[tuple[int, int, int, int]]:
        return [
            (it.replica_id, it.log_end_offset, it.last_fetch_timestamp, it.last_caught_up_timestamp) for it in states
        ]

    voters = [(1, 42, 900, 890), (2, 43, 1_000, 1_000), (3, -1, -1, -1)]
    assert told(partition.current_voters) == [it if times else (*it[:2], -1, -1) for it in voters]
    assert told(partition.observers) == [(4, 41, 950 if times else -1, -1)]
    nodes = [(it.node_id, [(at.name, at.host, at.port) for at in it.listeners]) for it in answer.nodes]
    known = [(1, [("RPC", "one", 9093)]), (2, [("RPC", "two", 9093)]), (3, [])]
    assert nodes == (known if version >= 2 else [])


@pytest.mark.parametrize("asked", [[("orders", 0)], [(METADATA, 1)], [(METADATA, 0), (METADATA, 0)]])
def test_nothing_but_that_partition_is_described(asked: list[tuple[str, int]]) -> None:
    answer = described(FakeStanding(), *asked)
    assert answer.error_code == ErrorCode.NONE
    codes = [(topic.topic_name, part.partition_index, part.error_code) for topic in answer.topics
             for part in topic.partitions]  # fmt: skip
    assert codes == [(*one, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for one in asked]
    assert answer.nodes == ()


def test_a_client_tries_again_while_the_metadata_has_no_leader() -> None:
    standing = FakeStanding()
    standing.refuse = MetadataUnavailable("no leader")
    answer = described(standing, (METADATA, 0))
    assert (answer.error_code, answer.error_message) == (ErrorCode.NOT_CONTROLLER, "no leader")
    assert described(None, (METADATA, 0)).error_code == ErrorCode.NOT_CONTROLLER
