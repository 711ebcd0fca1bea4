"""`mainstem dev`"""

from __future__ import annotations

from mainstem.cli.lazy_group import LazyCommand, LazyGroup

command = LazyGroup(
    name="dev",
    help="Tools for trying things out on one machine.",
    commands_by_name={
        "cluster": LazyCommand("mainstem.cli.dev.cluster", "Run a cluster of several nodes here."),
    },
)
