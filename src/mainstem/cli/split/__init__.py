"""`mainstem split`"""

from __future__ import annotations

from mainstem.cli.lazy_group import LazyCommand, LazyGroup

command = LazyGroup(
    name="split",
    help="Run the Spark splitter and see how far it is.",
    commands_by_name={
        "prepare": LazyCommand("mainstem.cli.split.prepare", "Have Spark start in half the time on this machine."),
        "run": LazyCommand("mainstem.cli.split.run", "Run a splitter against a node, here or on a Spark cluster."),
        "status": LazyCommand("mainstem.cli.split.status", "Show positions, lag and progress."),
    },
)
