"""`mainstem tenant describe`"""

from __future__ import annotations

import click

from mainstem.cli.clients.http_node import HttpNode
from mainstem.cli.errors import RequestRefused
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_fields, print_json
from mainstem.cli.terminal.rates import rate_text
from mainstem.console.views.of_tenants import TenantsView


@click.command("describe")
@click.argument("name")
@options.http_only
@options.as_json
def command(name: str, http: str, as_json: bool) -> None:
    """Show a tenant: its prefix, its ceilings, its users, and what it has."""
    tenants = HttpNode(http).get("/v1/tenants", TenantsView).tenants
    tenant = next((it for it in tenants if it.name == name), None)
    if tenant is None:
        raise RequestRefused(f"there is no tenant {name}; mainstem tenant list shows those that there are")
    if as_json:
        print_json(tenant)
        return
    print_fields(
        [
            ("tenant", tenant.name),
            ("prefix", tenant.prefix),
            ("users", ", ".join(tenant.users) or "none"),
            ("topics", f"{tenant.topics:,}"),
            ("queues", f"{tenant.queues:,} of {tenant.queues_max or 'any number'}"),
            ("retention.ms", f"at most {tenant.retention_ms_max}" if tenant.retention_ms_max else "no ceiling"),
            *((key, rate_text(key, value)) for key, value in sorted(tenant.quotas.items())),
        ]
    )
