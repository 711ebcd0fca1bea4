"""`mainstem tenant delete`"""

from __future__ import annotations

import click

from mainstem.cli.clients.http_node import HttpNode
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_json
from mainstem.console.views.asked_changes import TenantRemoval


@click.command("delete")
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Remove without asking.")
@options.http_only
@options.token
@options.as_json
def command(name: str, yes: bool, http: str, token: str | None, as_json: bool) -> None:
    """Remove a tenant with its ceilings, its quotas and the access rules of its users. Its topics stay."""
    if not yes:
        click.confirm(f"remove tenant {name}, and the access rules of its users?", abort=True, err=True)
    HttpNode(http, token).post("/v1/tenants/remove", TenantRemoval(name=name))
    if as_json:
        print_json({"deleted": name})
    else:
        click.echo(f"removed tenant {name}; its topics are still there")
