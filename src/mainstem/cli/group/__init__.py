"""`mainstem group`"""

from __future__ import annotations

from mainstem.cli.lazy_group import LazyCommand, LazyGroup

command = LazyGroup(
    name="group",
    help="Look at consumer groups and move their offsets.",
    commands_by_name={
        "list": LazyCommand("mainstem.cli.group.list", "List the consumer groups."),
        "describe": LazyCommand("mainstem.cli.group.describe", "Show members, offsets and lag per partition."),
        "reset-offsets": LazyCommand("mainstem.cli.group.reset_offsets", "Move a group's offsets."),
        "delete": LazyCommand("mainstem.cli.group.delete", "Delete groups that have no members."),
    },
)
