"""`mainstem token`"""

from __future__ import annotations

from mainstem.cli.lazy_group import LazyCommand, LazyGroup

command = LazyGroup(
    name="token",
    help="Let others in for a while without a password of yours.",
    commands_by_name={
        "create": LazyCommand("mainstem.cli.token.create", "Make a delegation token."),
        "list": LazyCommand("mainstem.cli.token.list", "List delegation tokens."),
        "renew": LazyCommand("mainstem.cli.token.renew", "Have a delegation token expire later."),
        "expire": LazyCommand("mainstem.cli.token.expire", "Have a delegation token expire."),
    },
)
