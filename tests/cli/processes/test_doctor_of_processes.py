"""`mainstem doctor` tells of machines that nodes share."""

from __future__ import annotations

import msgspec
import pytest

from mainstem.cli.check import Check, CheckState
from mainstem.cli.doctor import machine, machines
from mainstem.console.views.of_cluster import ClusterView, DiskView, NodeView, ReplicaView, WriteGroupView
from mainstem.node.config import PROCESSES_MAX, NodeConfig


def cluster(labels: dict[int, str | None], *replicas: tuple[int, ...]) -> ClusterView:
    return ClusterView(
        cluster_id="c",
        nodes=[NodeView(node_id=node_id, host="h", port=1, machine=label) for node_id, label in labels.items()],
        write_groups=[
            WriteGroupView(
                group=group, leader=nodes[0], term=1, committed=1,
                replicas=[ReplicaView(node=node, lag_blocks=0, active=True) for node in nodes],
            )
            for group, nodes in enumerate(replicas)
        ],
        write_disk=DiskView(path="d", used_bytes=0, free_bytes=0, total_bytes=0), store_disk=None,
        topics=0, partitions=0,
    )  # fmt: skip


def test_machines_apart_are_well_and_named() -> None:
    (check,) = machines(cluster({1: "a", 2: "a", 11: "b", 5: None}, (1, 11), (2, 11), (2, 5)))
    assert check == Check("machines", CheckState.OK, "a (2 nodes), b (1 node); none has two replicas of a write group")


def test_replicas_that_fail_together_are_a_warning_that_says_what_to_do() -> None:
    (check,) = machines(cluster({1: "a", 2: "a", 11: "b"}, (1, 2), (1, 11)))
    assert check.state is CheckState.WARNING
    assert check.found == "machine a has several replicas of 1 write group, which fail together"
    assert check.advice == "start nodes on other machines, then mainstem cluster rebalance"


def test_nodes_without_labels_are_nothing_to_tell_of() -> None:
    assert list(machines(cluster({1: None, 2: None}, (1, 2)))) == []


@pytest.mark.parametrize(("processes", "state"), [(1, CheckState.OK), (PROCESSES_MAX, CheckState.WARNING)])
def test_more_nodes_than_processors_are_a_warning(processes: int, state: CheckState) -> None:
    config = msgspec.structs.replace(NodeConfig(), processes=processes, machine="box-7", node_id=3)
    (check,) = machine(config)
    assert check.found.startswith(f"box-7: nodes 3 to {2 + processes}, ")
    assert check.state is state
