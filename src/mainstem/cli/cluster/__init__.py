"""`mainstem cluster`"""

from __future__ import annotations

from mainstem.cli.lazy_group import LazyCommand, LazyGroup

command = LazyGroup(
    name="cluster",
    help="Look at the cluster, move its leaders, add, drain, replace and remove its nodes, add write groups.",
    commands_by_name={
        "status": LazyCommand("mainstem.cli.cluster.status", "Show nodes, write groups and disks."),
        "explain": LazyCommand("mainstem.cli.cluster.explain", "Say why a queue, write group or node is where it is."),
        "transfer-leader": LazyCommand("mainstem.cli.cluster.transfer_leader", "Have another node lead a write group."),
        "feature-level": LazyCommand("mainstem.cli.cluster.feature_level", "Show or raise what the nodes may write."),
        "recover": LazyCommand(
            "mainstem.cli.cluster.recover", "Have a stopped node believe what its directories hold."
        ),
        "add": LazyCommand("mainstem.cli.cluster.add", "Prepare a node that joins the cluster."),
        "drain": LazyCommand("mainstem.cli.cluster.drain", "Have a node give away all that it holds."),
        "rebalance": LazyCommand("mainstem.cli.cluster.rebalance", "Spread replicas evenly over nodes and racks."),
        "move-queue": LazyCommand("mainstem.cli.cluster.move_queue", "Move a queue to another write group."),
        "write-groups": LazyCommand("mainstem.cli.cluster.write_groups", "Show write groups, or add some."),
        "remove": LazyCommand("mainstem.cli.cluster.remove", "Take an empty, stopped node out of the cluster."),
        "replace": LazyCommand("mainstem.cli.cluster.replace", "Have a new node take the place of another."),
    },
)
