"""`mainstem group`"""

from __future__ import annotations

from mainstem.cli.lazy_group import LazyCommand, LazyGroup

command = LazyGroup(
    name="group",
    help="Look at consumer groups and move their offsets.",
    commands_by_name={
        "list": LazyCommand("mainstem.cli.group.list", "List the consumer groups."),
        "describe": LazyCommand("mainstem.cli.group.describe", "Show members, offsets and lag per partition."),
        "reset-offsets": LazyCommand("mainstem.cli.group.reset_offsets", "Move the offsets of a consumer group."),
        "delete": LazyCommand("mainstem.cli.group.delete", "Delete consumer groups that have no members."),
    },
)
