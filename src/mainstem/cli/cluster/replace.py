"""`mainstem cluster replace`"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import click

from mainstem.cli.clients.http_node import HttpNode
from mainstem.cli.cluster.drain import moving
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import counted, print_json
from mainstem.cli.terminal.progress_line import StatusLine, bar
from mainstem.console.views.asked_changes import ReplaceNodeRequest
from mainstem.console.views.of_cluster import ClusterView, WriteGroupView

LOOK_SECONDS = 0.5
"""Between two looks at the cluster: each has the node ask all others."""


@click.command("replace")
@click.argument("old", type=click.IntRange(min=1))
@click.argument("new", type=click.IntRange(min=1))
@click.option("--wait", is_flag=True, help="Return when NEW has a vote in the place of OLD everywhere.")
@options.http_only
@options.token
@options.as_json
def command(http: str, token: str | None, old: int, new: int, wait: bool, as_json: bool) -> None:
    """Have node NEW take the place of node OLD, which may be dead.

    Start NEW first, with empty directories and a node id of its own. Every write group with a replica on OLD gets one
    on NEW, and so does the metadata. `cluster status` shows how far that is; OLD, or any other node, may stop when no
    write group has OLD any more. The command may be given again: what is done stays done.
    """
    node = HttpNode(http, token)
    node.post("/v1/cluster/replace", ReplaceNodeRequest(old=old, new=new))
    if wait:
        _wait(node, old, new)
    if as_json:
        print_json({"old": old, "new": new})
    elif wait:
        click.echo(f"node {new} has taken the place of node {old}")
    else:
        click.echo(f"node {new} is taking the place of node {old}; follow it with: mainstem cluster status")


def _wait(node: HttpNode, old: int, new: int) -> None:
    """Return when every write group says, by its leader, that it is done. Raises NodeUnreachable or RequestRefused."""
    most = 0
    with StatusLine(None) as line:
        while left := _left((view := node.get("/v1/cluster", ClusterView)).write_groups, old, new):
            most = max(most, left)
            line.due(partial(_told, view, left, most, new))
            time.sleep(LOOK_SECONDS)


def _told(view: ClusterView, left: int, most: int, new: int, _seconds: float) -> str:
    """`most`: the write groups that were left when the command began."""
    moves = [moving(it, view.write_groups) for it in view.moves if it.new == new]
    to_go = f"{left} of {counted(len(view.write_groups), 'write group')} to go"
    return "; ".join([f"{bar(most - left, most)} {to_go}", *moves])


def _left(groups: Sequence[WriteGroupView], old: int, new: int) -> int:
    """How many write groups are not done."""
    return sum(not _is_replaced(group, old, new) for group in groups)


def _is_replaced(group: WriteGroupView, old: int, new: int) -> bool:
    """Whether a majority knows that `old` is no member, and `new` votes if it is one."""
    return bool(group.replicas) and all(
        replica.lag_blocks >= 0 and replica.node != old and (replica.voter or replica.node != new)
        for replica in group.replicas
    )
