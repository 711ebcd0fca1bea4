"""`mainstem cluster status`"""

from __future__ import annotations

import click

from mainstem.cli import options
from mainstem.cli.http_node import HttpNode
from mainstem.cli.output import duration, print_json, print_table, size, stdout
from mainstem.console.views import ClusterView, DiskView, ReplicaView


@click.command("status")
@options.http_only
@options.as_json
def command(http: str, as_json: bool) -> None:
    """Show nodes, write groups and disks."""
    view = HttpNode(http).get("/v1/cluster", ClusterView)
    if as_json:
        print_json(view)
        return
    console = stdout()
    console.print(f"cluster {view.cluster_id}: {view.topics} topics, {view.partitions} partitions")
    console.print(f"feature level {view.feature_level}{_higher(view)}\n", highlight=False)
    print_table(
        ["NODE", "STATE", "KAFKA", "RPC", "HTTP", "ROLES", "VERSION", "UP"],
        [
            (
                node.node_id, node.state, f"{node.host}:{node.port}", node.rpc or "-", node.http or "-",
                ",".join(node.roles), node.version, duration(node.uptime_seconds) if node.uptime_seconds else "-",
            )
            for node in view.nodes
        ],
        empty="no nodes",
    )
    for node in view.nodes:
        if node.reason:
            console.print(f"node {node.node_id} is {node.state}: {node.reason}", highlight=False)
        if node.not_back:
            groups = ", ".join(map(str, node.not_back))
            console.print(
                f"node {node.node_id} has forgotten what it acknowledged ({node.forgot}): it has no vote in write "
                f"groups {groups} before it has caught up",
                highlight=False,
            )
    console.print()
    print_table(
        [">GROUP", ">LEADER", ">TERM", ">COMMITTED", "REPLICAS"],
        [
            (group.group, group.leader, group.term, group.committed, ", ".join(map(_replica, group.replicas)))
            for group in view.write_groups
        ],
        empty="no write groups",
    )
    if view.metadata_leader >= 0:
        console.print(f"\nmetadata led by node {view.metadata_leader}", highlight=False)
    console.print()
    console.print(f"disk 1  {_disk(view.write_disk)}")
    console.print(f"disk 2  {_disk(view.store_disk) if view.store_disk else 'not on this node'}")


def _higher(view: ClusterView) -> str:
    """What to do about a newer level that every node reads."""
    newest = view.feature_level_newest
    if newest <= view.feature_level or any((node.level_newest or 0) < newest for node in view.nodes):
        return ""
    return f"; all nodes read {newest}: mainstem cluster feature-level --raise"


def _disk(disk: DiskView) -> str:
    free = f"{size(disk.free_bytes)} of {size(disk.total_bytes)} free"
    return f"{disk.path}: {size(disk.used_bytes)} used by Mainstem, {free}"


def _replica(replica: ReplicaView) -> str:
    """A node, and what it lacks."""
    if replica.lag_blocks < 0:
        return f"{replica.node}"
    parts = [] if replica.voter else ["learner"]
    parts += [f"{replica.lag_blocks} behind"] if replica.lag_blocks else []
    parts += [] if replica.active else ["silent"]
    return f"{replica.node} ({', '.join(parts)})" if parts else f"{replica.node}"
