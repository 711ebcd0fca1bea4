"""`mainstem group`"""

from __future__ import annotations

from mainstem.cli.lazy_group import LazyCommand, LazyGroup

command = LazyGroup(
    name="group",
    help="Look at groups and move their offsets.",
    commands_by_name={
        "list": LazyCommand("mainstem.cli.group.list", "List the groups of all types."),
        "describe": LazyCommand("mainstem.cli.group.describe", "Show members, offsets and lag per partition."),
        "reset-offsets": LazyCommand("mainstem.cli.group.reset_offsets", "Move the offsets of a group."),
        "delete": LazyCommand("mainstem.cli.group.delete", "Delete groups that have no members."),
    },
)
