"""`mainstem cluster status` of a cluster that spreads its load by itself."""

from __future__ import annotations

import pytest
from msgspec import structs

from mainstem.cli.cluster.rebalance import print_plan
from mainstem.cli.cluster.status import balancing
from mainstem.console.views.of_cluster import (
    BalanceMoveView,
    BalancerView,
    BalanceView,
    ClusterView,
    DiskView,
    QueueShiftView,
)

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


def test_the_last_queue_that_moved_is_told() -> None:
    queue = QueueShiftView(topic="orders", partition=3, slot=7, old=0, new=1, why="sent 180.0 MB/s", age_seconds=60.0)
    view = structs.replace(CLUSTER, balancer=structs.replace(BALANCER, mode="queues", last_queue=queue))
    assert balancing(view) == [
        "balancer: moves preferred leaders, replicas and busy queues by itself, 1 of at most 12 moves within an hour",
        "balancer: last queue 1 min 0 s ago: orders:3, to write group 1 instead of 0: sent 180.0 MB/s",
    ]
    queue = structs.replace(queue, why="it had not begun at 5 looks in a row", taken_back=True)
    view = structs.replace(CLUSTER, balancer=structs.replace(BALANCER, mode="queues", last_queue=queue))
    assert balancing(view)[1:] == [
        "balancer: last queue 1 min 0 s ago: orders:3, to write group 1 instead of 0: taken back: it had not begun at "
        "5 looks in a row",
    ]


def test_a_plan_says_which_replicas_stay_and_does_not_call_that_even(capsys: pytest.CaptureFixture[str]) -> None:
    why = "write group 3: its replica stays where it is while slot 7 is on its way to write group 1"
    print_plan(BalanceView(moves=[], staying=[why]))
    assert " ".join(capsys.readouterr().out.split()) == f"nothing is to move now stays: {why}"


def test_a_plan_names_the_command_that_moves_a_queue(capsys: pytest.CaptureFixture[str]) -> None:
    queue = QueueShiftView(topic="orders", partition=3, slot=7, old=0, new=1, why="sent 180.0 MB/s", copies=True)
    print_plan(BalanceView(moves=[], queue=queue))
    assert (
        "orders:3 had better go from write group 0 to 1, whose nodes copy the former one first: sent 180.0 MB/s: "
        "mainstem cluster move-queue orders:3 --to 1"
    ) in " ".join(capsys.readouterr().out.split())


def printed(capsys: pytest.CaptureFixture[str], *moves: BalanceMoveView, bytes_per_second: int = 1 << 20) -> str:
    print_plan(BalanceView(moves=moves, by_load=True, bytes_per_second=bytes_per_second))
    return " ".join(capsys.readouterr().out.split())


def test_a_plan_says_how_much_is_copied_and_for_how_long_at_least(capsys: pytest.CaptureFixture[str]) -> None:
    copies = [BalanceMoveView(group=it, old=1 + it % 2, new=4, why="busy", bytes=90 << 20) for it in range(3)]
    leads = BalanceMoveView(group=9, old=1, new=2, why="busy", preferred=True)
    told = printed(capsys, *copies, leads)
    assert "0 replica 1 4 90.0 MiB busy" in told
    assert "9 leader 1 2 - busy" in told
    assert "3 replicas would move, 270.0 MiB in all, one at a time to each node, " in told
    assert told.endswith("at 1.0 MiB/s at most: 4 min 30 s at least")
    assert "as fast as it goes" in printed(capsys, *copies, bytes_per_second=0)


def test_a_plan_does_not_add_up_what_some_nodes_do_not_tell(capsys: pytest.CaptureFixture[str]) -> None:
    known = BalanceMoveView(group=0, old=1, new=4, why="busy", bytes=5 << 20)
    told = printed(capsys, known, structs.replace(known, group=1, bytes=None))
    assert "1 replica 1 4 - busy" in told
    assert told.endswith("2 replicas would move, one at a time to each node, at 1.0 MiB/s at most")
