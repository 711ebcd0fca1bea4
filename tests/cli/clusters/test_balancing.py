"""`mainstem cluster status` of a cluster that spreads its load by itself."""

from __future__ import annotations

import pytest
from msgspec import structs

from mainstem.cli.cluster.status import balancing
from mainstem.console.views.of_cluster import BalanceMoveView, BalancerView, ClusterView, DiskView

DISK = DiskView(path="/w", used_bytes=1, free_bytes=2, total_bytes=3)
CLUSTER = ClusterView(
    cluster_id="c", nodes=[], write_groups=[], write_disk=DISK, store_disk=DISK, topics=0, partitions=0
)
BALANCER = BalancerView(mode="leaders", looked=True, waits_for="", moves_last_hour=1, moves_per_hour_max=12)
ON = "balancer: moves preferred leaders by itself, 1 of at most 12 moves within an hour"


def test_a_balancer_that_is_off_is_not_mentioned() -> None:
    assert balancing(CLUSTER) == []


def test_a_balancer_says_that_it_is_on_and_what_it_waits_for() -> None:
    assert balancing(structs.replace(CLUSTER, balancer=BALANCER)) == [ON]
    waits = structs.replace(BALANCER, waits_for="node 3 is being drained")
    assert balancing(structs.replace(CLUSTER, balancer=waits)) == [f"{ON}; waits: node 3 is being drained"]


@pytest.mark.parametrize(("preferred", "said"), [(True, "write group 2, to be led by"), (False, "write group 2, to")])
def test_the_last_move_is_told_with_its_reason(preferred: bool, said: str) -> None:
    last = BalanceMoveView(group=2, old=3, new=1, why="sent there 61.0 MB/s", preferred=preferred)
    view = structs.replace(CLUSTER, balancer=structs.replace(BALANCER, last=last, last_age_seconds=360.0))
    assert balancing(view) == [
        ON,
        f"balancer: last move 6 min 0 s ago: {said} node 1 instead of node 3: sent there 61.0 MB/s",
    ]
