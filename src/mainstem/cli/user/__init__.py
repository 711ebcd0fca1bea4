"""`mainstem user`"""

from __future__ import annotations

from mainstem.cli.lazy_group import LazyCommand, LazyGroup

command = LazyGroup(
    name="user",
    help="Give users passwords, and take them away.",
    commands_by_name={
        "add": LazyCommand("mainstem.cli.user.add", "Give a user a password, or another one."),
        "list": LazyCommand("mainstem.cli.user.list", "List the users that have passwords."),
        "remove": LazyCommand("mainstem.cli.user.remove", "Remove users."),
    },
)
