"""Another number of copies of a topic, asked for of a broker over fakes, with the requests and answers of the wire."""

from __future__ import annotations

from typing import Any

import pytest
from tests.broker.admin.test_partition_reassignments import QueuesMoving

from mainstem.broker.handlers import alter_partition_reassignments, metadata
from mainstem.cli.errors import RequestRefused
from mainstem.cli.topic import replica_change
from mainstem.console.views.of_cluster import ClusterView, DiskView, ReplicaView, WriteGroupView
from mainstem.model import Node
from mainstem.nameserver.errors import InvalidPlacement, MetadataUnavailable
from mainstem.protocol.messages.metadata import MetadataRequest


class ChangingCluster(QueuesMoving):
    """Topic q on nodes 1, 2, 3; further write groups are 5 on node 4, and 6 on node 2, with one replica each."""

    def __init__(self) -> None:
        super().__init__()
        self.moves.placed[6] = (2,)
        self.metadata.nodes_known = [Node(node_id=it, host="h", port=it) for it in (1, 2, 3, 4)]
        for partition in range(8):
            self.leadership.replica_nodes[0] = (1, 2, 3)
            self.leadership.replica_nodes[self.queue_id(partition)] = (1, 2, 3)
        self.requests = 0

    def view(self, cluster_id: str | None = None) -> ClusterView:
        groups = [
            WriteGroupView(
                group=group, leader=nodes[0], term=1, committed=1, preferred_leader=nodes[0],
                replication_factor=len(nodes),
                replicas=[ReplicaView(node=it, lag_blocks=0, active=True) for it in nodes],
            )
            for group, nodes in self.moves.placed.items()
        ]  # fmt: skip
        disk = DiskView(path="/w", used_bytes=0, free_bytes=1, total_bytes=1)
        return ClusterView(
            cluster_id=self.metadata.cluster_id() if cluster_id is None else cluster_id, nodes=[], write_groups=groups,
            write_disk=disk, store_disk=disk, topics=1, partitions=8,
        )  # fmt: skip

    def answer(self, message: Any, version: int) -> Any:
        if isinstance(message, MetadataRequest):
            return self.ask(metadata.handle, message, version)
        self.requests += 1
        return self.ask(alter_partition_reassignments.handle, message, version)

    def changed(self, factor: int, topic: str = "q", cluster_id: str | None = None) -> int:
        return replica_change.reassign(self.view(cluster_id), self.answer, topic, factor)


def test_partitions_are_spread_over_the_write_groups_with_as_many_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_change, "PARTITIONS_AT_ONCE", 3)
    cluster = ChangingCluster()
    assert cluster.changed(1) == 8
    assert cluster.moves.begun == [("q", partition, (5, 6)[partition % 2]) for partition in range(8)]
    assert cluster.requests == 3
    assert cluster.changed(3) == 0
    assert len(cluster.moves.begun) == 8, "each partition has three replicas"


def test_a_factor_that_no_write_group_has_is_refused_with_those_there_are() -> None:
    cluster = ChangingCluster()
    with pytest.raises(RequestRefused, match=r"some with 1, 3\. mainstem cluster write-groups TOTAL --rep.*-factor 2"):
        cluster.changed(2)
    with pytest.raises(RequestRefused, match="of absent were not changed"):
        cluster.changed(1, "absent")
    with pytest.raises(RequestRefused, match="another cluster"):
        cluster.changed(1, cluster_id="elsewhere")
    assert not cluster.moves.begun


def test_partitions_that_do_not_move_are_named_with_the_reason() -> None:
    cluster = ChangingCluster()

    def refuse(topic: str, partition: int, group: int) -> None:
        if partition in (2, 5):
            raise InvalidPlacement("queues of this kind do not move")

    cluster.moves.refuse = refuse
    with pytest.raises(RequestRefused) as refused:
        cluster.changed(1)
    assert "partition 2 of q does not move, and 1 other neither" in str(refused.value)
    assert "queues of this kind do not move (6 partitions of it move)" in str(refused.value)

    def unavailable(topic: str, partition: int, group: int) -> None:
        raise MetadataUnavailable("no leader is known")

    cluster.moves.refuse = unavailable
    with pytest.raises(RequestRefused, match="no leader is known"):
        cluster.changed(1)
