"""Sentences that say why something is where it is: who leads, why not another, what moves, moved and would move."""

from __future__ import annotations

import pytest
from msgspec import structs

from mainstem.console.views.of_cluster import (
    BalanceMoveView,
    BalancerView,
    ClusterView,
    DiskView,
    DrainView,
    LostNodeView,
    MoveView,
    NodeLoadView,
    NodeView,
    QueuePartView,
    QueueShiftView,
    ReplicaView,
    WriteGroupLoadView,
    WriteGroupView,
)
from mainstem.console.views.of_explanation import BegunMoveView
from mainstem.node.views.explanations import (
    BEGUN_SHOWN_MAX,
    ExplainedCluster,
    ExplainedQueue,
    explain_node,
    explain_queue,
    explain_write_group,
    groups_text,
    rate,
    span,
)

LOAD = NodeLoadView(
    age_seconds=0.5, cpu_share=0.4, sync_share=0.1, write_free_bytes=60, write_total_bytes=100, store_free_bytes=30,
    store_total_bytes=40,
)  # fmt: skip


def node(node_id: int, rack: str | None = None, **more: object) -> NodeView:
    known = NodeView(
        node_id=node_id, host="h", port=9092, rack=rack, roles=("broker", "storage", "nameserver"), load=LOAD
    )
    return structs.replace(known, **more)


def replica(node_id: int, **more: object) -> ReplicaView:
    return structs.replace(ReplicaView(node=node_id, lag_blocks=0, active=True), **more)


def group(number: int, leader: int, preferred: int, replicas: list[ReplicaView]) -> WriteGroupView:
    return WriteGroupView(
        group=number, leader=leader, term=3, committed=41, preferred_leader=preferred, replicas=replicas,
        load=WriteGroupLoadView(bytes_in=14.2e6, bytes_out=2_300.0, requests=812.4),
    )  # fmt: skip


def cluster(nodes: list[NodeView], groups: list[WriteGroupView], **more: object) -> ClusterView:
    disk = DiskView(path="/w", used_bytes=1, free_bytes=2, total_bytes=3)
    view = ClusterView(
        cluster_id="c", nodes=nodes, write_groups=groups, write_disk=disk, store_disk=disk, topics=1, partitions=1
    )
    return structs.replace(view, **more)


TRIO = [replica(1), replica(2), replica(3)]


def known(preferred: NodeView, of_preferred: ReplicaView | None) -> ExplainedCluster:
    """Write group 0, which node 1 is to lead and node 2 leads."""
    replicas = [*([] if of_preferred is None else [of_preferred]), replica(2), replica(3)]
    return ExplainedCluster(cluster([preferred, node(2), node(3)], [group(0, 2, 1, replicas)]), [], [], by_load=True)


@pytest.mark.parametrize(
    ("preferred", "of_preferred", "why"),
    [
        (node(1, state="dead", reason="no heartbeat for 12 s"), replica(1), "it is dead (no heartbeat for 12 s)"),
        (node(1, waiting={0: "block 7 is damaged"}), replica(1), "it does not serve it: block 7 is damaged"),
        (
            node(1, not_back=(0,), forgot="an old copy"),
            replica(1),
            "it has forgotten what it acknowledged (an old copy)",
        ),
        (node(1), None, "its replica has not come yet"),
        (node(1), replica(1, voter=False), "its replica is still copied, and has no vote"),
        (node(1), replica(1, lag_blocks=-1), "no leader tells how far its replica is"),
        (node(1), replica(1, active=False), "the leader does not hear from its replica"),
        (node(1), replica(1, lag_blocks=120), "its replica is 120 blocks behind; it leads once it is close"),
        (node(1), replica(1, lag_blocks=1), "its replica is 1 block behind; it leads once it is close"),
        (node(1), replica(1), "it has to be well for some seconds first"),
        (node(9), replica(1), "it is not registered"),
    ],
)
def test_it_is_told_why_the_preferred_leader_does_not_lead(
    preferred: NodeView, of_preferred: ReplicaView | None, why: str
) -> None:
    told = explain_write_group(known(preferred, of_preferred), 0)
    assert told is not None
    (sentence,) = [it for it in told.sentences if it.startswith("Node 2 leads it")]
    assert sentence.startswith(f"Node 2 leads it; node 1 is to, but {why}")


def test_a_write_group_tells_its_load_its_replicas_and_its_leader() -> None:
    nodes = [node(1, "a"), node(2, "b"), node(3, "b", state="suspected")]
    replicas = [replica(1), replica(2, lag_blocks=3), replica(3, lag_blocks=9, active=False, voter=False)]
    told = explain_write_group(
        ExplainedCluster(cluster(nodes, [group(0, 1, 1, replicas)]), [], [], by_load=True, slots=[0, 1, 0, 1]), 0
    )
    assert told is not None
    assert told.sentences == [
        "Write group 0 has 2 of the 4 slots, to which queues hash.",
        "It takes in 14.2 MB/s and gives out 2.3 kB/s, in 812 requests/s.",
        "The replica on node 1 (alive, in rack a): leads it.",
        "The replica on node 2 (alive, in rack b): is 3 blocks behind.",
        "The replica on node 3 (suspected, in rack b): learns it and has no vote, is 9 blocks behind, is silent.",
        "Its replicas are in 2 of 2 racks: a, b.",
        "Node 1 leads it, as it is to: placement names it first.",
        "A rebalance would change nothing here.",
    ]
    assert (told.group, told.leader, told.preferred_leader, told.node) == (0, 1, 1, None)


def test_moves_are_told_that_are_under_way_have_been_or_would_be() -> None:
    begun = [
        BegunMoveView(group=0, old=4, new=1, preferred=False, why="node 4 is drained", age_seconds=40.0),
        BegunMoveView(group=1, old=1, new=2, preferred=True, why="", age_seconds=7200.0),
    ]
    planned = [
        BalanceMoveView(group=0, old=1, new=2, why="sent there 9.0 MB/s, here 1.0 MB/s", preferred=True),
        BalanceMoveView(group=1, old=3, new=4, why="4 replicas there, 0 here"),
    ]
    view = cluster(
        [node(1), node(2), node(3), node(4)],
        [group(0, 1, 1, TRIO), group(1, 1, 1, TRIO)],
        moves=[MoveView(group=0, old=3, new=4), MoveView(group=1, old=3, new=0)],
        drains=[
            DrainView(node=3, groups_left=[0], votes=False, empty=False, waits_for=["write group 0: node 2 is away"])
        ],
        lost_nodes=[LostNodeView(node=2, dead_seconds=600.0, rebuilt_in_seconds=300.0, groups_left=[0, 1])],
    )
    known = ExplainedCluster(view, begun, planned)
    told = explain_write_group(known, 0)
    assert told is not None
    assert told.sentences[5:] == [
        "Node 2 has been dead for 10 minutes: its replicas are rebuilt on other nodes in 5 minutes, if it is not back.",
        "Node 3 is being drained: its replica goes elsewhere; it waits: write group 0: node 2 is away.",
        "Write group 0 moves: node 4 copies a replica, and node 3 gives its up then.",
        "40 s ago, a replica of write group 0 went from node 4 to node 1: node 4 is drained.",
        "A rebalance would have node 2 lead write group 0 instead of node 1: sent there 9.0 MB/s, here 1.0 MB/s.",
        "It would count replicas, as the load of some node is not known.",
    ]
    assert told.waits_for == ["write group 0: node 2 is away"]
    of_node = explain_node(known, 3)
    assert of_node is not None
    assert (
        "Node 3 is being drained: write groups left: 1; it waits: write group 0: node 2 is away." in of_node.sentences
    )
    assert "Write group 1 moves: the replica on node 3 goes, as its successor has a vote." in of_node.sentences
    assert (of_node.begun, of_node.planned) == ([], planned[1:])
    of_first = explain_node(known, 1)
    assert of_first is not None
    assert "2 hours ago, the preferred leader of write group 1 went from node 1 to node 2, as somebody asked for." in (
        of_first.sentences
    )


def test_a_node_tells_what_it_holds_and_how_busy_it_is_among_the_others() -> None:
    busy = structs.replace(LOAD, cpu_share=0.8)
    nodes = [node(1, "a", load=busy), node(2), node(3, state="dead", reason="no heartbeat for 9 s", load=None)]
    groups = [group(0, 1, 1, TRIO), group(1, 1, 2, TRIO), group(2, 2, 1, TRIO), group(3, -1, 1, [replica(2)])]
    told = explain_node(ExplainedCluster(cluster(nodes, groups), [], [], by_load=True), 1)
    assert told is not None
    assert told.sentences == [
        "Node 1 is alive, in rack a.",
        "It takes 80 % of its processors; the mean of nodes that store is 60 %.",
        "Its disk 1 syncs 10 % of the time, the mean is 10 %; disk 1 has 60 % free, disk 2 75 %.",
        "It has replicas of write groups 0, 1 and 2.",
        "It is to lead write groups 0 and 2.",
        "It leads write group 1, which node 2 is to lead.",
        "It does not lead write group 2: node 2 leads it (explain --group 2 says why).",
        "A rebalance would change nothing here.",
    ]
    assert (list(told.holds), list(told.leads)) == ([0, 1, 2], [0, 1])
    dead = explain_node(ExplainedCluster(cluster(nodes, groups), [], []), 3)
    assert dead is not None
    assert dead.sentences[:2] == [
        "Node 3 is dead: no heartbeat for 9 s.",
        "The metadata leader does not know its load.",
    ]
    broker = explain_node(
        ExplainedCluster(cluster([node(4, roles=("broker",))], groups), [], None, unplanned="it is alone"), 4
    )
    assert broker is not None
    assert "It has no storage (roles: broker), and so no replicas." in broker.sentences
    assert broker.sentences[-1] == "What a rebalance would do is not known: it is alone."


def test_a_queue_tells_its_slot_and_then_its_write_group() -> None:
    known = ExplainedCluster(cluster([node(1), node(2), node(3)], [group(0, 1, 1, TRIO)]), [], [])
    told = explain_queue(known, ExplainedQueue("orders", 3, 2014, 0))
    assert told is not None
    assert told.subject == "partition 3 of orders"
    assert told.sentences[0] == (
        "Partition 3 of orders is in slot 2014, by a hash of its number; the slot belongs to write group 0."
    )
    of_group = explain_write_group(known, 0)
    assert of_group is not None
    assert told.sentences[1:] == of_group.sentences


def test_a_queue_tells_where_its_records_from_before_are_and_for_how_long() -> None:
    known = ExplainedCluster(cluster([node(1), node(2), node(3)], [group(0, 1, 1, TRIO)]), [], [])
    told = explain_queue(known, ExplainedQueue("orders", 3, 2014, 0, others=(2, 1)))
    assert told is not None
    where = "The slot has moved: what its queues had before is in write groups 2 and 1, "
    assert told.sentences[1] == f"{where}until retention removes it."
    kept = ExplainedQueue("orders", 3, 2014, 0, others=(2, 1), for_good="table", guests={1: [4, 5], 2: []})
    told = explain_queue(known, kept)
    assert told is not None
    assert told.sentences[1:3] == [
        f"{where}and stays there: topic table is compacted without delete.",
        "Nodes 4, 5 follow write group 1 for as long, without a vote.",
    ]


def test_nothing_is_told_of_what_is_not_there_and_of_many_moves_the_last() -> None:
    begun = [BegunMoveView(group=0, old=1, new=2, preferred=False, why=str(age), age_seconds=age) for age in range(50)]
    known = ExplainedCluster(cluster([node(1)], [group(0, 1, 1, TRIO)]), begun, [])
    assert explain_node(known, 8) is None
    assert explain_write_group(known, 8) is None
    assert explain_queue(known, ExplainedQueue("t", 0, 0, 8)) is None
    told = explain_write_group(known, 0)
    assert told is not None
    assert list(told.begun) == begun[:BEGUN_SHOWN_MAX]


def test_figures() -> None:
    assert [span(it) for it in (0.4, 89, 90, 7199, 7200, 172_800)] == [
        "0 s", "89 s", "2 minutes", "120 minutes", "2 hours", "2 days",
    ]  # fmt: skip
    assert [rate(it) for it in (0, 99_999, 100_000)] == ["0.0 kB/s", "100.0 kB/s", "0.1 MB/s"]
    assert groups_text([group(it, 1, 1, []) for it in range(30)]).startswith("30 write groups: 0, 1, 2, ")
    assert groups_text([group(4, 1, 1, [])]) == "write group 4"


@pytest.mark.parametrize(
    ("mode", "looked", "waits_for", "said"),
    [
        (
            "leaders",
            False,
            "",
            "The balancer moves preferred leaders by itself; it has not looked yet, as another node led the metadata a "
            "moment ago (2 of at most 12 moves within an hour).",
        ),
        (
            "replicas",
            True,
            "node 4 is dead",
            "The balancer moves preferred leaders and replicas by itself; it waits: node 4 is dead (2 of at most 12 "
            "moves within an hour).",
        ),
        (
            "replicas",
            True,
            "",
            "The balancer moves preferred leaders and replicas by itself; at its last look nothing was left to do, or "
            "it began something (2 of at most 12 moves within an hour).",
        ),
    ],
)
def test_a_balancer_that_is_on_tells_what_it_waits_for(mode: str, looked: bool, waits_for: str, said: str) -> None:
    balancer = BalancerView(mode=mode, looked=looked, waits_for=waits_for, moves_last_hour=2, moves_per_hour_max=12)
    known = ExplainedCluster(cluster([node(1), node(2), node(3)], [group(0, 1, 1, TRIO)], balancer=balancer), [], [])
    for told in (explain_node(known, 1), explain_write_group(known, 0)):
        assert told is not None
        assert told.sentences[-1] == said
    quiet = ExplainedCluster(cluster([node(1)], [group(0, 1, 1, TRIO)]), [], [])
    told = explain_write_group(quiet, 0)
    assert told is not None
    assert not any("balancer" in it for it in told.sentences)


def test_busy_queues_are_told_with_what_moved_and_what_had_better_move() -> None:
    busy = group(0, 1, 1, TRIO)
    assert busy.load is not None
    queues = [
        QueuePartView(topic="orders", partition=3, part=0.614),
        QueuePartView(topic="clicks", partition=0, part=0.1),
    ]
    busy = structs.replace(busy, load=structs.replace(busy.load, busiest=queues))
    shift = QueueShiftView(topic="orders", partition=3, slot=7, old=0, new=1, why="sent 180.0 MB/s", copies=True)
    begun = [
        structs.replace(shift, topic="old", why="", age_seconds=7200.0),
        structs.replace(shift, topic="stuck", why="it had not begun", age_seconds=7200.0, taken_back=True),
        structs.replace(shift, topic="other", old=5, new=6, age_seconds=1.0),
    ]
    view = cluster([node(1), node(2), node(3)], [busy, group(1, 2, 2, TRIO), group(2, 3, 3, TRIO)])
    known = ExplainedCluster(view, [], [], by_load=True, queue=shift, slots_begun=begun)
    told = explain_write_group(known, 0)
    assert told is not None
    assert told.sentences[1] == "Of what it takes in, single queues bring: orders:3 61 %, clicks:0 10 %."
    assert told.sentences[-4:] == [
        "2 hours ago, old:3 went with its slot from write group 0 to write group 1, as somebody asked for.",
        "2 hours ago, the move of stuck:3 from write group 0 to write group 1 was taken back: it had not begun.",
        "A rebalance would change nothing here.",
        "orders:3 had better go from write group 0 to write group 1; its nodes would copy the former one first: "
        "sent 180.0 MB/s.",
    ]
    elsewhere = explain_write_group(known, 2)
    assert elsewhere is not None
    assert not any("orders" in it or "other" in it for it in elsewhere.sentences)
