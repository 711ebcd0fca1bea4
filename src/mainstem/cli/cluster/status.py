"""`mainstem cluster status`"""

from __future__ import annotations

from collections import Counter

import click

from mainstem.address import Address, AddressError, parsed
from mainstem.cli.clients.http_node import HttpNode
from mainstem.cli.cluster.drain import left_of, moving
from mainstem.cli.cluster.move_queue import told_slot_move
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import counted, duration, print_fields, print_json, print_table, print_text, size
from mainstem.console.views.of_cluster import ClusterView, DiskView, LostNodeView, NodeView, ReplicaView
from mainstem.model import Location
from mainstem.nameserver.state.plans.replica_placement import crowded_machines


@click.command("status")
@options.http_only
@options.as_json
def command(http: str, as_json: bool) -> None:
    """Show nodes, write groups and disks.

    The node that is asked asks the others. An address without a host has the host of the node's Kafka address.
    """
    view = HttpNode(http).get("/v1/cluster", ClusterView)
    if as_json:
        print_json(view)
        return
    contents = f"{counted(view.topics, 'topic')}, {counted(view.partitions, 'partition')}"
    print_text(f"cluster {view.cluster_id}: {contents}")
    print_text(f"feature level {view.feature_level}{_higher(view)}\n")
    _print_nodes(view)
    for drain in view.drains:
        print_text(f"node {drain.node} is being drained: {left_of(drain, len(view.write_groups))}")
    for slot_move in view.slot_moves:
        print_text(told_slot_move(slot_move))
    for lost in view.lost_nodes:
        print_text(rebuilding(lost))
    for move in view.moves:
        print_text(moving(move, view.write_groups))
    for line in (*crowded(view), *classes(view), *balancing(view)):
        print_text(line)
    print_text()
    print_table(
        [">GROUP", ">LEADER", ">TERM", ">COMMITTED", "~REPLICAS"],
        [
            (
                group.group, group.leader if group.leader >= 0 else "none", group.term, group.committed,
                ", ".join(_replica(it) for it in sorted(group.replicas, key=lambda replica: replica.node)) or "-",
            )
            for group in sorted(view.write_groups, key=lambda group: group.group)
        ],
        empty="no write groups",
    )  # fmt: skip
    leader = f"node {view.metadata_leader}" if view.metadata_leader >= 0 else "no node, as far as this one knows"
    print_text()
    print_fields(
        [
            ("metadata", f"led by {leader}"),
            ("disk 1", _disk(view.write_disk)),
            ("disk 2", _disk(view.store_disk))
            if view.store_disk is not None
            else ("shared store", view.shared_store or "not on this node"),
        ]
    )


def _print_nodes(view: ClusterView) -> None:
    nodes = sorted(view.nodes, key=lambda node: node.node_id)
    racks, machines = any(node.rack for node in nodes), any(node.machine for node in nodes)
    roles = len({frozenset(node.roles) for node in nodes}) > 1
    print_table(
        [
            ">NODE", "STATE", "UP", "VERSION", "~KAFKA", "~HTTP", "~RPC",
            *(["~MACHINE"] if machines else []), *(["~RACK"] if racks else []), *(["~ROLES"] if roles else []),
        ],
        [
            (
                node.node_id, node.state, duration(node.uptime_seconds) if node.uptime_seconds else "-",
                node.version or "-", Address(node.host, node.port) if node.port else "-", _short(node, node.http),
                _short(node, node.rpc),
                *([node.machine or "-"] if machines else []), *([node.rack or "-"] if racks else []),
                *([",".join(node.roles) or "-"] if roles else []),
            )
            for node in nodes
        ],
        empty="no nodes",
    )  # fmt: skip
    for node in nodes:
        if node.reason:
            print_text(f"node {node.node_id} is {node.state}: {node.reason}")
        for group, reason in sorted(node.waiting.items()):
            print_text(f"node {node.node_id} does not serve write group {group}: {reason}")
        if node.not_back:
            groups = ", ".join(map(str, node.not_back))
            print_text(
                f"node {node.node_id} has forgotten what it acknowledged ({node.forgot}): it has no vote in write "
                f"groups {groups} before it has caught up"
            )


def _short(node: NodeView, address: str | None) -> str:
    """An address without the host that stands beside it already."""
    if address is None:
        return "-"
    try:
        host, port = parsed(address, port_min=0)
    except AddressError:  # of another version: shown as it is told
        return address
    return f":{port}" if host == node.host else address


def _higher(view: ClusterView) -> str:
    """The remedy for a newer level that every node reads."""
    newest = view.feature_level_newest
    if newest <= view.feature_level or any((node.level_newest or 0) < newest for node in view.nodes):
        return ""
    return f"; all nodes read {newest}: mainstem cluster feature-level --raise"


def _disk(disk: DiskView) -> str:
    free = f"{size(disk.free_bytes)} of {size(disk.total_bytes)} free"
    return f"{size(disk.used_bytes)} used by Mainstem, {free}: {disk.path}"  # a line breaks before the path first


def crowded(view: ClusterView) -> list[str]:
    """A line for each machine that has several replicas of a write group."""
    locations = {node.node_id: Location(node.rack, node.machine) for node in view.nodes}
    placements = [[replica.node for replica in group.replicas] for group in view.write_groups]
    return [
        f"machine {machine} has several replicas of {counted(groups, 'write group')}, which fail together: start nodes "
        "on other machines, then mainstem cluster rebalance"
        for machine, groups in crowded_machines(placements, locations).items()
    ]


def classes(view: ClusterView) -> list[str]:
    """A line that tells the replication factors of write groups, where there are several."""
    told = Counter(group.replication_factor for group in view.write_groups)
    if len(told) < 2:
        return []
    each = (
        f"{counted(count, 'write group')} with {counted(factor, 'replica')}" for factor, count in sorted(told.items())
    )
    return [f"replication factors: {', '.join(each)}"]


def balancing(view: ClusterView) -> list[str]:
    """Lines that tell what the balancer waits for, and what it began last; none if it is off."""
    balancer = view.balancer
    if balancer is None:
        return []
    what = {"leaders": "preferred leaders", "replicas": "preferred leaders and replicas"}.get(
        balancer.mode, "preferred leaders, replicas and busy queues"
    )
    told = f"{balancer.moves_last_hour} of at most {balancer.moves_per_hour_max} moves within an hour"
    waits = f"; waits: {balancer.waits_for}" if balancer.waits_for else ""
    lines = [f"balancer: moves {what} by itself, {told}{waits}"]
    if (last := balancer.last) is not None:
        subject = f"write group {last.group}, to be led by" if last.preferred else f"write group {last.group}, to"
        ago = duration(balancer.last_age_seconds or 0.0)
        lines.append(f"balancer: last move {ago} ago: {subject} node {last.new} instead of node {last.old}: {last.why}")
    if (queue := balancer.last_queue) is not None:
        subject = f"{queue.topic}:{queue.partition}, to write group {queue.new} instead of {queue.old}"
        taken_back = "taken back: " if queue.taken_back else ""
        ago = duration(queue.age_seconds or 0.0)
        lines.append(f"balancer: last queue {ago} ago: {subject}: {taken_back}{queue.why}")
    return lines


def rebuilding(lost: LostNodeView) -> str:
    """When the replicas of a dead node are rebuilt elsewhere, and what that waits for."""
    held = f"node {lost.node} has been dead for {duration(lost.dead_seconds)}: its replicas ({len(lost.groups_left)})"
    waits = f"; waits: {lost.waits_for[0]}" if lost.waits_for else ""
    if lost.rebuilt_in_seconds is None:
        return f"{held} stay until it is back, or another takes its place (mainstem cluster replace){waits}"
    if lost.rebuilt_in_seconds:
        return f"{held} will be rebuilt on other nodes in {duration(lost.rebuilt_in_seconds)}{waits}"
    return f"{held} are being rebuilt on other nodes{waits}"


def _replica(replica: ReplicaView) -> str:
    """A node, and what it lacks."""
    if replica.lag_blocks < 0:
        return f"{replica.node}"
    parts = [] if replica.voter else ["learner"]
    parts += [f"{replica.lag_blocks} behind"] if replica.lag_blocks else []
    parts += [] if replica.active else ["silent"]
    return f"{replica.node} ({', '.join(parts)})" if parts else f"{replica.node}"
