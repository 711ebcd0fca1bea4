"""`mainstem quota`"""

from __future__ import annotations

from mainstem.cli.lazy_group import LazyCommand, LazyGroup

command = LazyGroup(
    name="quota",
    help="Say how much clients may take per second.",
    commands_by_name={
        "list": LazyCommand("mainstem.cli.quota.list", "List the quotas."),
        "set": LazyCommand("mainstem.cli.quota.set", "Set quotas of a user, a client id, an address or a tenant."),
        "remove": LazyCommand("mainstem.cli.quota.remove", "Remove quotas."),
        "describe": LazyCommand("mainstem.cli.quota.describe", "Show which quotas somebody is under."),
    },
)
