"""`mainstem tenant list`"""

from __future__ import annotations

import click

from mainstem.cli.clients.http_node import HttpNode
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_json, print_table
from mainstem.console.views.of_tenants import TenantsView


@click.command("list")
@options.http_only
@options.as_json
def command(http: str, as_json: bool) -> None:
    """List the tenants."""
    view = HttpNode(http).get("/v1/tenants", TenantsView)
    if as_json:
        print_json(view)
        return
    print_table(
        ["~TENANT", "~PREFIX", ">TOPICS", ">QUEUES", ">AT MOST", ">RETENTION MS", "~USERS"],
        [
            (it.name, it.prefix, it.topics, it.queues, it.queues_max or "-", it.retention_ms_max or "-",
             ", ".join(it.users) or "-")
            for it in view.tenants
        ],
        empty="no tenants",
    )  # fmt: skip
