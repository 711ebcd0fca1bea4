"""`mainstem config`"""

from __future__ import annotations

from mainstem.cli.lazy_group import LazyCommand, LazyGroup

command = LazyGroup(
    name="config",
    help="Look at and change configs of what is no topic.",
    commands_by_name={
        "list": LazyCommand("mainstem.cli.config.list", "List what has configs that are set."),
        "describe": LazyCommand("mainstem.cli.config.describe", "Show configs, and where their values come from."),
        "alter": LazyCommand("mainstem.cli.config.alter", "Set configs, or return them to their defaults."),
    },
)
