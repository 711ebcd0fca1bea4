"""`mainstem tenant`"""

from __future__ import annotations

from mainstem.cli.lazy_group import LazyCommand, LazyGroup

command = LazyGroup(
    name="tenant",
    help="Share a cluster between tenants.",
    commands_by_name={
        "create": LazyCommand("mainstem.cli.tenant.create", "Make a tenant."),
        "alter": LazyCommand("mainstem.cli.tenant.alter", "Change what a tenant may have."),
        "list": LazyCommand("mainstem.cli.tenant.list", "List the tenants."),
        "describe": LazyCommand("mainstem.cli.tenant.describe", "Show a tenant."),
        "usage": LazyCommand("mainstem.cli.tenant.usage", "Show what tenants take of a node."),
        "delete": LazyCommand("mainstem.cli.tenant.delete", "Remove a tenant, never its topics."),
    },
)
