"""Explains why a node, a write group or a queue is where it is: sentences made of what the cluster's view tells, of the
moves that were begun, and of those that a rebalance would begin. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from mainstem.console.views.of_cluster import (
    BalanceMoveView,
    BalancerView,
    ClusterView,
    MoveView,
    NodeView,
    QueueShiftView,
    ReplicaView,
    WriteGroupView,
)
from mainstem.console.views.of_explanation import BegunMoveView, ExplanationView
from mainstem.model import SLOTS

BEGUN_SHOWN_MAX = 10
"""Moves that were begun, in one explanation: who wants to know more has the log."""

MOVED_BY_BALANCER = {
    "leaders": "preferred leaders",
    "replicas": "preferred leaders and replicas",
    "queues": "preferred leaders, replicas and busy queues",
}

GROUPS_SHOWN_MAX = 20
"""Write groups named in one sentence."""


class ExplainedCluster(NamedTuple):
    """The facts that sentences are made of. `planned` None: the plan is not known, and `unplanned` says why."""

    view: ClusterView
    begun: Sequence[BegunMoveView]
    """The newest first."""
    planned: Sequence[BalanceMoveView] | None
    by_load: bool = False
    unplanned: str = ""
    queue: QueueShiftView | None = None
    """A queue that should go to another write group."""
    slots_begun: Sequence[QueueShiftView] = ()
    """The moves of slots that were begun, the newest first."""
    slots: Sequence[int] = ()
    """The write group of each slot, class by class."""


def explain_node(known: ExplainedCluster, node_id: int) -> ExplanationView | None:
    """None: there is no such node."""
    node = _node(known, node_id)
    if node is None:
        return None
    held = [group for group in known.view.write_groups if any(it.node == node_id for it in group.replicas)]
    held.sort(key=lambda group: group.group)
    moves = [move for move in known.view.moves if node_id in (move.old, move.new)]
    begun = [move for move in known.begun if node_id in (move.old, move.new)][:BEGUN_SHOWN_MAX]
    planned = [move for move in known.planned or () if node_id in (move.old, move.new)]
    waits = [*_drain_waits(known, node_id), *_lost_waits(known, node_id)]
    return ExplanationView(
        subject=f"node {node_id}",
        sentences=[
            *_of_node(known, node),
            *_held_by(node_id, held),
            *_leaving(known, node_id),
            *map(_moving, moves),
            *map(_begun, begun),
            *_planned(known, planned),
            *_balancer(known),
        ],
        node=node_id,
        holds=[group.group for group in held],
        leads=[group.group for group in held if group.leader == node_id],
        node_load=node.load,
        moves=moves,
        begun=begun,
        planned=planned,
        waits_for=waits,
    )


def explain_write_group(known: ExplainedCluster, number: int) -> ExplanationView | None:
    """None: there is no such write group."""
    group = next((it for it in known.view.write_groups if it.group == number), None)
    if group is None:
        return None
    moves = [move for move in known.view.moves if move.group == number]
    begun = [move for move in known.begun if move.group == number][:BEGUN_SHOWN_MAX]
    planned = [move for move in known.planned or () if move.group == number]
    replicas = sorted(group.replicas, key=lambda it: (it.node != group.preferred_leader, it.node))
    leaving = [sentence for it in replicas for sentence in _leaving(known, it.node, number)]
    return ExplanationView(
        subject=f"write group {number}",
        sentences=[
            *_slots(known, number),
            _traffic(group),
            *_busiest(group),
            *(_replica(known, group, it) for it in replicas),
            *_spread(known, replicas),
            _leadership(known, group),
            *leaving,
            *map(_moving, moves),
            *map(_begun, begun),
            *_slots_begun(known, lambda it: number in (it.old, it.new)),
            *_planned(known, planned),
            *_queue_planned(known, lambda it: number in (it.old, it.new)),
            *_balancer(known),
        ],
        group=number,
        leader=group.leader,
        preferred_leader=group.preferred_leader,
        replicas=replicas,
        load=group.load,
        moves=moves,
        begun=begun,
        planned=planned,
        waits_for=[why for it in replicas for why in _waits_of(known, it.node) if f"write group {number}:" in why],
    )


class ExplainedQueue(NamedTuple):
    """A topic-partition, with its slot and write group."""

    topic: str
    partition: int
    slot: int
    group: int
    to: int = -1
    """The write group that the slot is on its way to; -1: none."""
    others: Sequence[int] = ()
    """The write groups besides its own that may have records of the slot's queues."""
    for_good: str = ""
    """The name of a topic with queues in the slot that keeps such records whatever their age; empty: none does."""
    guests: Mapping[int, Sequence[int]] = {}
    """Per write group in `others`, the nodes that follow it as guests."""


def explain_queue(known: ExplainedCluster, queue: ExplainedQueue) -> ExplanationView | None:
    """None: there is no such write group."""
    of_group = explain_write_group(known, queue.group)
    if of_group is None:
        return None
    first = (
        f"Partition {queue.partition} of {queue.topic} is in slot {queue.slot}, by a hash of its number; the slot "
        f"belongs to write group {queue.group}."
    )
    moves = [move for move in known.view.slot_moves if move.slot == queue.slot]
    why = f"; it waits, as {moves[0].waits_for}" if moves and moves[0].waits_for else ""
    moving = [f"The slot is on its way to write group {queue.to}{why}."] if queue.to >= 0 else []
    if queue.others:
        until = "until retention removes it"
        if queue.for_good:
            until = f"and stays there: topic {queue.for_good} is compacted without delete"
        moving.append(f"The slot has moved: what its queues had before is in {numbers_text(queue.others)}, {until}.")
        moving += [
            f"{_who_follow(nodes)} write group {group} for as long, without a vote."
            for group, nodes in sorted(queue.guests.items())
            if nodes
        ]
    return ExplanationView(
        subject=f"partition {queue.partition} of {queue.topic}",
        sentences=[first, *moving, *of_group.sentences],
        topic=queue.topic,
        partition=queue.partition,
        slot=queue.slot,
        group=queue.group,
        leader=of_group.leader,
        preferred_leader=of_group.preferred_leader,
        replicas=of_group.replicas,
        load=of_group.load,
        moves=of_group.moves,
        begun=of_group.begun,
        planned=of_group.planned,
        waits_for=of_group.waits_for,
    )


def _who_follow(nodes: Sequence[int]) -> str:
    return f"Node {nodes[0]} follows" if len(nodes) == 1 else f"Nodes {', '.join(map(str, nodes))} follow"


# nodes


def _node(known: ExplainedCluster, node_id: int) -> NodeView | None:
    return next((node for node in known.view.nodes if node.node_id == node_id), None)


def _place(node: NodeView) -> str:
    rack = f", in rack {node.rack}" if node.rack else ""
    return f"{rack}{f', on machine {node.machine}' if node.machine else ''}"


def _of_node(known: ExplainedCluster, node: NodeView) -> Iterator[str]:
    why = f": {node.reason}" if node.reason else ""
    yield f"Node {node.node_id} is {node.state}{_place(node)}{why}."
    if node.roles and "storage" not in node.roles:
        yield f"It has no storage (roles: {', '.join(node.roles)}), and so no replicas."
    load = node.load
    if load is None:
        yield "The metadata leader does not know its load."
        return
    loads = [it.load for it in known.view.nodes if it.load is not None and "storage" in it.roles]
    cpu = sum(it.cpu_share for it in loads) / max(1, len(loads))
    yield f"It takes {percent(load.cpu_share)} of its processors; the mean of nodes that store is {percent(cpu)}."
    if load.write_total_bytes:
        sync = sum(it.sync_share for it in loads) / max(1, len(loads))
        free = f"disk 1 has {percent(load.write_free_bytes / load.write_total_bytes)} free"
        if load.store_total_bytes:
            free += f", disk 2 {percent(load.store_free_bytes / load.store_total_bytes)}"
        yield f"Its disk 1 syncs {percent(load.sync_share)} of the time, the mean is {percent(sync)}; {free}."


def _held_by(node_id: int, held: Sequence[WriteGroupView]) -> Iterator[str]:
    if not held:
        yield "It has no replica of any write group."
        return
    yield f"It has replicas of {groups_text(held)}."
    preferred = [group for group in held if group.preferred_leader == node_id]
    yield f"It is to lead {groups_text(preferred)}." if preferred else "It is to lead none of them."
    for group in held:
        if group.leader == node_id and group.preferred_leader != node_id:
            yield f"It leads write group {group.group}, which node {group.preferred_leader} is to lead."
        elif group.leader != node_id and group.preferred_leader == node_id:
            leads = f"node {group.leader} leads it" if group.leader >= 0 else "no node leads it"
            yield f"It does not lead write group {group.group}: {leads} (explain --group {group.group} says why)."


def _leaving(known: ExplainedCluster, node_id: int, group: int | None = None) -> Iterator[str]:
    """Drains and rebuilds of a node, or of its replica of one write group."""
    for drain in known.view.drains:
        if drain.node == node_id and (group is None or group in drain.groups_left):
            if drain.empty:
                yield f"Node {node_id} is drained and empty: it may stop for good."
                continue
            left = f"write groups left: {len(drain.groups_left)}" if group is None else "its replica goes elsewhere"
            yield f"Node {node_id} is being drained: {left}{_waits(drain.waits_for, group)}."
    for lost in known.view.lost_nodes:
        if lost.node == node_id and (group is None or group in lost.groups_left):
            if lost.rebuilt_in_seconds is None:
                when = "its replicas stay until it is back, or cluster replace names another node"
            elif lost.rebuilt_in_seconds:
                when = f"its replicas are rebuilt on other nodes in {span(lost.rebuilt_in_seconds)}, if it is not back"
            else:
                when = "its replicas are being rebuilt on other nodes"
            yield f"Node {node_id} has been dead for {span(lost.dead_seconds)}: {when}{_waits(lost.waits_for, group)}."


def _waits(reasons: Iterable[str], group: int | None) -> str:
    about = [it for it in reasons if group is None or it.startswith(f"write group {group}:")]
    return f"; it waits: {about[0]}" if about else ""


def _drain_waits(known: ExplainedCluster, node_id: int) -> list[str]:
    return [why for drain in known.view.drains if drain.node == node_id for why in drain.waits_for]


def _lost_waits(known: ExplainedCluster, node_id: int) -> list[str]:
    return [why for lost in known.view.lost_nodes if lost.node == node_id for why in lost.waits_for]


def _waits_of(known: ExplainedCluster, node_id: int) -> list[str]:
    return [*_drain_waits(known, node_id), *_lost_waits(known, node_id)]


# write groups


def _slots(known: ExplainedCluster, number: int) -> Iterator[str]:
    if known.slots:
        held = sum(group == number for group in known.slots)
        factors = {it.group: it.replication_factor for it in known.view.write_groups}
        factor = factors.get(number, 0)
        if len(set(factors.values())) == 1:
            yield f"Write group {number} has {held} of the {len(known.slots)} slots, to which queues hash."
            return
        yield (
            f"Write group {number} has {held} of the {SLOTS} slots to which queues of topics with replication factor "
            f"{factor} hash."
        )
        if factor == 1:
            yield "No other node has a copy: its queues are away while its node is, and lost with that node's disks."


def _traffic(group: WriteGroupView) -> str:
    if group.load is None:
        return "The metadata leader does not know its load."
    load = group.load
    return f"It takes in {rate(load.bytes_in)} and gives out {rate(load.bytes_out)}, in {load.requests:.0f} requests/s."


def _busiest(group: WriteGroupView) -> Iterator[str]:
    queues = group.load.busiest if group.load is not None else ()
    if queues:
        told = ", ".join(f"{it.topic}:{it.partition} {percent(it.part)}" for it in queues)
        yield f"Of what it takes in, single queues bring: {told}."


def _blocks(count: int) -> str:
    return "1 block" if count == 1 else f"{count} blocks"


def _replica(known: ExplainedCluster, group: WriteGroupView, replica: ReplicaView) -> str:
    node = _node(known, replica.node)
    place = _place(node) if node is not None else ""
    state = f" ({node.state}{place})" if node is not None else " (not registered)"
    parts: list[str] = []
    if node is not None and group.group in node.waiting:
        parts.append(f"does not serve it: {node.waiting[group.group]}")
    elif node is not None and group.group in node.not_back:
        parts.append(f"has no vote until it has back what it forgot ({node.forgot})")
    elif not replica.voter:
        parts.append("learns it and has no vote")
    if replica.lag_blocks < 0:
        parts.append("no leader tells how far it is")
    elif replica.lag_blocks:
        parts.append(f"is {_blocks(replica.lag_blocks)} behind")
    if replica.lag_blocks >= 0 and not replica.active:
        parts.append("is silent")
    if not parts:
        parts.append("leads it" if replica.node == group.leader else "follows, with nothing missing")
    return f"The replica on node {replica.node}{state}: {', '.join(parts)}."


def _spread(known: ExplainedCluster, replicas: Sequence[ReplicaView]) -> Iterator[str]:
    racks = {it.node_id: it.rack for it in known.view.nodes if it.rack}
    if racks:
        spanned = {racks[it.node] for it in replicas if it.node in racks}
        every = set(racks.values())
        yield f"Its replicas are in {len(spanned)} of {len(every)} racks: {', '.join(sorted(spanned)) or 'none'}."


def _leadership(known: ExplainedCluster, group: WriteGroupView) -> str:
    preferred, leader = group.preferred_leader, group.leader
    if preferred < 0:
        return "It is not placed yet."
    if leader == preferred:
        return f"Node {leader} leads it, as it is to: placement names it first."
    leads = f"Node {leader} leads it" if leader >= 0 else "No node leads it, as far as the node that was asked knows"
    return f"{leads}; node {preferred} is to, but {_why_not(known, group)}."


def _why_not(known: ExplainedCluster, group: WriteGroupView) -> str:
    """Why the preferred leader does not lead."""
    preferred = group.preferred_leader
    node = _node(known, preferred)
    replica = next((it for it in group.replicas if it.node == preferred), None)
    if node is None:
        return "it is not registered"
    if node.state != "alive":
        return f"it is {node.state} ({node.reason})" if node.reason else f"it is {node.state}"
    if group.group in node.waiting:
        return f"it does not serve it: {node.waiting[group.group]}"
    if group.group in node.not_back:
        return f"it has forgotten what it acknowledged ({node.forgot}), and catches up first"
    if replica is None:
        return "its replica has not come yet"
    if not replica.voter:
        return "its replica is still copied, and has no vote"
    if replica.lag_blocks < 0:
        return "no leader tells how far its replica is"
    if not replica.active:
        return "the leader does not hear from its replica"
    if replica.lag_blocks > 0:
        return f"its replica is {_blocks(replica.lag_blocks)} behind; it leads once it is close"
    return (
        "it has to be well for some seconds first: then it gets the leadership, unless its disk 1 is full or it does "
        "not take it"
    )


# moves


def _moving(move: MoveView) -> str:
    if not move.new:
        return f"Write group {move.group} moves: the replica on node {move.old} goes, as its successor has a vote."
    instead = f", and node {move.old} gives its up then" if move.old else ""
    return f"Write group {move.group} moves: node {move.new} copies a replica{instead}."


def _begun(move: BegunMoveView) -> str:
    what = "the preferred leader" if move.preferred else "a replica"
    why = f": {move.why}" if move.why else ", as somebody asked for"
    return (
        f"{span(move.age_seconds)} ago, {what} of write group {move.group} went from node {move.old} to "
        f"node {move.new}{why}."
    )


def _slots_begun(known: ExplainedCluster, concerned: Callable[[QueueShiftView], bool]) -> Iterator[str]:
    for move in [it for it in known.slots_begun if concerned(it)][:BEGUN_SHOWN_MAX]:
        why = f": {move.why}" if move.why else ", as somebody asked for"
        ago = span(move.age_seconds or 0.0)
        if move.taken_back:
            yield (
                f"{ago} ago, the move of {move.topic}:{move.partition} from write group {move.old} to write group "
                f"{move.new} was taken back{why}."
            )
        else:
            yield (
                f"{ago} ago, {move.topic}:{move.partition} went with its slot from write group {move.old} to write "
                f"group {move.new}{why}."
            )


def _queue_planned(known: ExplainedCluster, concerned: Callable[[QueueShiftView], bool]) -> Iterator[str]:
    queue = known.queue
    if queue is not None and concerned(queue):
        copies = "; its nodes would copy the former one first" if queue.copies else ""
        yield (
            f"{queue.topic}:{queue.partition} had better go from write group {queue.old} to write group {queue.new}"
            f"{copies}: {queue.why}."
        )


def _planned(known: ExplainedCluster, planned: Sequence[BalanceMoveView]) -> Iterator[str]:
    if known.planned is None:
        yield f"What a rebalance would do is not known: {known.unplanned}."
        return
    goes_by = "" if known.by_load else " It would count replicas, as the load of some node is not known."
    if not planned:
        yield f"A rebalance would change nothing here.{goes_by}"
    for move in planned:
        if move.preferred:
            yield (
                f"A rebalance would have node {move.new} lead write group {move.group} instead of node {move.old}: "
                f"{move.why}."
            )
        else:
            yield (
                f"A rebalance would move the replica of write group {move.group} from node {move.old} to "
                f"node {move.new}: {move.why}."
            )
    if planned and goes_by:
        yield goes_by.strip()


def _balancer(known: ExplainedCluster) -> Iterator[str]:
    """Nothing where it is off."""
    balancer = known.view.balancer
    if balancer is None:
        return
    what = MOVED_BY_BALANCER.get(balancer.mode, balancer.mode)
    yield f"The balancer moves {what} by itself; {balancer_text(balancer)}."


def balancer_text(balancer: BalancerView) -> str:
    """For people: what it waits for, and how much it has done."""
    if not balancer.looked:
        state = "it has not looked yet, as another node led the metadata a moment ago"
    elif balancer.waits_for:
        state = f"it waits: {balancer.waits_for}"
    else:
        state = "at its last look nothing was left to do, or it began something"
    return f"{state} ({balancer.moves_last_hour} of at most {balancer.moves_per_hour_max} moves within an hour)"


# figures


def groups_text(groups: Sequence[WriteGroupView]) -> str:
    """`write groups 0, 3 and 4`, cut where there are many."""
    return numbers_text([group.group for group in groups])


def numbers_text(groups: Sequence[int]) -> str:
    """The same of their numbers."""
    numbers = list(map(str, groups))
    if len(numbers) == 1:
        return f"write group {numbers[0]}"
    if len(numbers) > GROUPS_SHOWN_MAX:
        return f"{len(numbers)} write groups: {', '.join(numbers[:GROUPS_SHOWN_MAX])}, …"
    return f"write groups {', '.join(numbers[:-1])} and {numbers[-1]}"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def rate(bytes_per_second: float) -> str:
    """For people, as reasons of moves tell it."""
    if bytes_per_second >= 1e5:
        return f"{bytes_per_second / 1e6:.1f} MB/s"
    return f"{bytes_per_second / 1e3:.1f} kB/s"


def span(seconds: float) -> str:
    """A time in its largest unit: `40 s`, `12 minutes`, `3 hours`, `2 days`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    for name, length in (("days", 86_400), ("hours", 3_600)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {name}"
    return f"{seconds / 60:.0f} minutes"
