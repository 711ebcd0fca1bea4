"""`mainstem cluster replace`"""

from __future__ import annotations

import click

from mainstem.cli.clients.http_node import HttpNode
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_json
from mainstem.console.views import ReplaceNodeRequest


@click.command("replace")
@click.argument("old", type=click.IntRange(min=1))
@click.argument("new", type=click.IntRange(min=1))
@options.http_only
@options.token
@options.as_json
def command(http: str, token: str | None, old: int, new: int, as_json: bool) -> None:
    """Have node NEW take the place of node OLD, which may be dead.

    Start NEW first, with empty directories and a node id of its own. Every write group with a replica on OLD gets one
    on NEW, and so does the metadata. `cluster status` shows how far that is; OLD, or any other node, may stop when no
    write group has OLD any more. The command may be given again: what is done stays done.
    """
    HttpNode(http, token).post("/v1/cluster/replace", ReplaceNodeRequest(old=old, new=new))
    if as_json:
        print_json({"old": old, "new": new})
    else:
        click.echo(f"node {new} is taking the place of node {old}; follow it with: mainstem cluster status")
