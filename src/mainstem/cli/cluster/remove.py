"""`mainstem cluster remove`"""

from __future__ import annotations

import click

from mainstem.cli.clients.http_node import HttpNode
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_json
from mainstem.console.views.asked_changes import RemoveNodeRequest


@click.command("remove")
@click.argument("node", type=click.IntRange(min=1))
@options.http_only
@options.token
@options.as_json
def command(http: str, token: str | None, node: int, as_json: bool) -> None:
    """Take NODE, which holds nothing and is stopped, out of the cluster for good.

    Empty it first with `cluster drain NODE --wait`, then stop it. The cluster forgets its addresses and refuses it when
    it starts again: a new node gets another id. A node that only served clients needs no drain.
    """
    HttpNode(http, token).post("/v1/cluster/remove", RemoveNodeRequest(node=node))
    if as_json:
        print_json({"node": node, "removed": True})
    else:
        click.echo(f"node {node} is no part of the cluster any more")
