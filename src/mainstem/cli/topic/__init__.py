"""`mainstem topic`"""

from __future__ import annotations

from mainstem.cli.lazy_group import LazyCommand, LazyGroup

command = LazyGroup(
    name="topic",
    help="Create, look at and change topics.",
    commands_by_name={
        "create": LazyCommand("mainstem.cli.topic.create", "Create a topic."),
        "list": LazyCommand("mainstem.cli.topic.list", "List the topics and the bytes they hold on each disk."),
        "describe": LazyCommand("mainstem.cli.topic.describe", "Show a topic down to its files and indexes."),
        "alter": LazyCommand("mainstem.cli.topic.alter", "Change a topic's configs, partitions or copies."),
        "delete": LazyCommand("mainstem.cli.topic.delete", "Delete topics and free their data."),
    },
)
