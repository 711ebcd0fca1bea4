"""How far a group is behind in time, and why: read of the first message that is not committed."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from mainstem.address import Address
from mainstem.cli.clients.http_node import HttpNode
from mainstem.cli.clients.kafka_connection import KafkaConnections
from mainstem.cli.group.lag import Behind, KnownLeaders, behind, leaders_of, with_causes_of
from mainstem.cli.group.offsets import ConsumerGroupOffset
from mainstem.group_lag import IDLE, REBALANCE_LOOP, SLOW_SECONDS, GroupLag, PartitionLag
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from mainstem.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from mainstem.protocol.records import Compression, NewRecord, build_batch

NODE = Address("node-1", 9092)
QUEUE = ("t", 0)


class FakeNodes:
    """Answers as nodes do whose partitions have one batch each: messages of some ages, the oldest first."""

    def __init__(self, *ages: float, error: ErrorCode = ErrorCode.NONE, broken: bool = False) -> None:
        now_ms = int(time.time() * 1000)
        records = [NewRecord(now_ms - int(age * 1000), None, b"v") for age in ages]
        self._records = bytes(build_batch(records, compression=Compression.ZSTD).data) if records else b""
        self._error = error
        self._broken = broken
        self.asked: list[int] = []

    def call(self, address: Address, request: Any, version: int) -> Any:
        assert address == NODE
        assert isinstance(request, FetchRequest)
        if self._broken:
            raise ConnectionError("gone")
        (partition,) = request.topics[0].partitions
        self.asked.append(partition.fetch_offset)
        data = PartitionData(
            partition_index=partition.partition, error_code=self._error, high_watermark=9, records=self._records,
            aborted_transactions=None,
        )  # fmt: skip
        return FetchResponse(responses=(FetchableTopicResponse(topic="t", partitions=(data,)),))

    def call_any(self, bootstrap: str, request: Any, version: int) -> Any:
        brokers = (MetadataResponseBroker(node_id=1, host=NODE.host, port=NODE.port),)
        partitions = tuple(
            MetadataResponsePartition(
                error_code=0, partition_index=index, leader_id=leader, replica_nodes=(1,), isr_nodes=(1,)
            )
            for index, leader in enumerate((1, -1))
        )
        topics = tuple(
            MetadataResponseTopic(error_code=0, name=it.name, partitions=partitions) for it in request.topics
        )
        return MetadataResponse(brokers=brokers, controller_id=1, topics=topics, cluster_id="cluster-1")


def found(
    nodes: FakeNodes,
    *,
    committed: int | None = 0,
    start: int = 0,
    end: int = 3,
    state: str = "stable",
    read: bool = True,
) -> Behind:
    offsets = [ConsumerGroupOffset(*QUEUE, committed, start, end)]
    members = [QUEUE] if read else []
    connections = cast(KafkaConnections, nodes)
    return behind(connections, {QUEUE: NODE}, offsets, members, state)[QUEUE]


def test_the_age_is_that_of_the_first_message_that_is_not_committed() -> None:
    nodes = FakeNodes(500, 300, 100)
    for committed, age in ((None, 500), (1, 300), (2, 100)):
        seconds = found(nodes, committed=committed).seconds
        assert seconds is not None
        assert age <= seconds < age + 100
    assert found(nodes, committed=0, start=2).seconds == pytest.approx(100, abs=99), "retention took the first two"
    assert nodes.asked == [0, 1, 2, 2]
    assert found(nodes, committed=3) == Behind(None, None), "nothing is left to read"
    assert len(nodes.asked) == 4


@pytest.mark.parametrize(
    ("age", "state", "read", "why"),
    [
        (2 * SLOW_SECONDS, "stable", True, "slow member"),
        (0.0, "stable", True, None),
        (0.0, "stable", False, "idle"),
        (0.0, "empty", False, "idle"),
        (0.0, "preparing_rebalancing", True, "rebalancing"),
    ],
)
def test_what_holds_a_group_up(age: float, state: str, read: bool, why: str | None) -> None:
    assert found(FakeNodes(age), state=state, read=read).why == why


@pytest.mark.parametrize(
    "nodes",
    [FakeNodes(), FakeNodes(9, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED), FakeNodes(9, broken=True)],
)
def test_where_the_message_cannot_be_read_no_time_is_told(nodes: FakeNodes) -> None:
    assert found(nodes) == Behind(None, None)
    assert found(nodes, read=False) == Behind(None, "idle")


def test_partitions_without_a_leader_are_known() -> None:
    connections = cast(KafkaConnections, FakeNodes())
    assert leaders_of(connections, "node-1:9092", {"t"}) == KnownLeaders("cluster-1", {("t", 0): NODE, ("t", 1): None})


class FakeHttp:
    """A node's HTTP port that tells this lag."""

    def __init__(self, lag: GroupLag | None) -> None:
        self._lag = lag
        self.told: list[str] = []

    def get_or_tell(self, path: str, kind: type[GroupLag], consequence: str) -> GroupLag | None:
        assert path == "/v1/groups/readers"
        return self._lag

    def tell(self, finding: str, consequence: str) -> None:
        self.told.append(finding)


def test_causes_come_from_the_http_port_of_a_node_of_the_cluster() -> None:
    row = PartitionLag(topic="t", partition=0, lag=3, seconds=7.0, why=REBALANCE_LOOP)
    lag = GroupLag(
        group="readers", kind="classic", state="Stable", members=1, lag=3, seconds=7.0, why=REBALANCE_LOOP,
        partitions_count=1, partitions=[row], cluster_id="cluster-1",
    )  # fmt: skip
    own = {QUEUE: Behind(None, None), ("t", 1): Behind(5.0, IDLE)}

    def found(http: FakeHttp, cluster_id: str) -> dict[tuple[str, int], Behind]:
        return with_causes_of(cast(HttpNode, http), "readers", cluster_id, own)

    assert found(FakeHttp(lag), "cluster-1") == {QUEUE: Behind(7.0, REBALANCE_LOOP), ("t", 1): Behind(5.0, IDLE)}
    assert found(FakeHttp(None), "cluster-1") == own
    other = FakeHttp(lag)
    assert found(other, "cluster-2") == own
    assert other.told == ["is of another cluster"]
