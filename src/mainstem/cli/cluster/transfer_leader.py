"""`mainstem cluster transfer-leader`"""

from __future__ import annotations

import click

from mainstem.cli import options
from mainstem.cli.http_node import HttpNode
from mainstem.console.views import TransferLeaderRequest


@click.command("transfer-leader")
@click.argument("group", type=click.IntRange(min=0))
@click.argument("node", type=click.IntRange(min=1))
@options.http_only
@options.token
def command(http: str, token: str | None, group: int, node: int) -> None:
    """Have NODE lead the write group GROUP.

    The node must hold a replica of the group. Clients find the new leader by themselves. After some seconds the
    cluster moves the group back to the leader that placement prefers, if that is another one and well.
    """
    HttpNode(http, token).post("/v1/cluster/transfer-leader", TransferLeaderRequest(group=group, to=node))
    click.echo(f"write group {group}: node {node} is asked to lead")
