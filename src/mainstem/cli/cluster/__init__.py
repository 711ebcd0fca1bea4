"""`mainstem cluster`"""

from __future__ import annotations

from mainstem.cli.lazy_group import LazyCommand, LazyGroup

command = LazyGroup(
    name="cluster",
    help="Look at the cluster.",
    commands_by_name={
        "status": LazyCommand("mainstem.cli.cluster.status", "Show nodes, write groups and disks."),
    },
)
