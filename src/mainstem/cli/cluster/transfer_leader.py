"""`mainstem cluster transfer-leader`"""

from __future__ import annotations

import click

from mainstem.cli.clients.http_node import HttpNode
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_json
from mainstem.console.views.asked_changes import TransferLeaderRequest


@click.command("transfer-leader")
@click.argument("group", type=click.IntRange(min=0))
@click.argument("node", type=click.IntRange(min=1))
@options.http_only
@options.token
@options.as_json
def command(http: str, token: str | None, group: int, node: int, as_json: bool) -> None:
    """Have NODE lead write group GROUP.

    NODE must hold a replica of the write group. Clients find the new leader by themselves. After some seconds the
    cluster moves the write group back to the leader that placement prefers, if that is another node and well.
    """
    HttpNode(http, token).post("/v1/cluster/transfer-leader", TransferLeaderRequest(group=group, to=node))
    if as_json:
        print_json({"group": group, "asked_to_lead": node})
    else:
        click.echo(f"write group {group}: node {node} is asked to lead")
