"""`mainstem profile`"""

from __future__ import annotations

from mainstem.cli.lazy_group import LazyCommand, LazyGroup

command = LazyGroup(
    name="profile",
    help="Name clusters, and how clients are let in there.",
    commands_by_name={
        "add": LazyCommand("mainstem.cli.profile.add", "Name a cluster."),
        "list": LazyCommand("mainstem.cli.profile.list", "List the clusters that have names."),
        "show": LazyCommand("mainstem.cli.profile.show", "Show what a name stands for, without its secrets."),
        "remove": LazyCommand("mainstem.cli.profile.remove", "Forget a name."),
    },
)
