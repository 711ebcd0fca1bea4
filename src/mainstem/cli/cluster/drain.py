"""`mainstem cluster drain`"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import click

from mainstem.cli.clients.http_node import HttpNode
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import counted, print_json
from mainstem.cli.terminal.progress_line import StatusLine, bar
from mainstem.console.views.asked_changes import DrainNodeRequest
from mainstem.console.views.of_cluster import ClusterView, DrainView, MoveView, WriteGroupView

LOOK_SECONDS = 0.5
"""Between two looks at the cluster: each has the node ask all others."""


@click.command("drain")
@click.argument("node", type=click.IntRange(min=1))
@click.option("--cancel", is_flag=True, help="NODE keeps what it still has, and may get replicas again.")
@click.option("--wait", is_flag=True, help="Return when NODE is empty.")
@options.http_only
@options.token
@options.as_json
def command(http: str, token: str | None, node: int, cancel: bool, wait: bool, as_json: bool) -> None:
    """Have NODE give away all that it holds: its replicas, what it leads, and its vote on the metadata.

    Other nodes take that, one replica at a time, while clients go on. The cluster remembers that NODE is drained, so
    the command may end, and nodes may restart meanwhile. Once NODE is empty it may stop for good. `cluster status`
    shows how far it is and what it waits for. With --cancel, moves that have begun are finished and no others begin.
    """
    if cancel and wait:
        raise click.UsageError("--wait is for a drain that goes on; leave it out, or --cancel")
    connection = HttpNode(http, token)
    connection.post("/v1/cluster/drain", DrainNodeRequest(node=node, cancel=cancel))
    if wait:
        _wait(connection, node)
    if as_json:
        print_json({"node": node, "draining": not cancel, "empty": wait})
    elif cancel:
        click.echo(f"node {node} is not drained any more")
    elif wait:
        click.echo(f"node {node} is empty, and may stop for good")
    else:
        click.echo(f"node {node} gives away what it has; follow it with: mainstem cluster status")


def _wait(connection: HttpNode, node: int) -> None:
    """Return when the node is empty. Raises NodeUnreachable or RequestRefused, and ClickException when somebody else
    cancelled the drain."""
    most = 0
    with StatusLine(None) as line:
        while True:
            view = connection.get("/v1/cluster", ClusterView)
            drain = next((it for it in view.drains if it.node == node), None)
            if drain is None:
                raise click.ClickException(f"node {node} is not drained any more: somebody cancelled that")
            if drain.empty:
                return
            most = max(most, len(drain.groups_left))
            line.due(partial(told_of_drain, view, drain, most))
            time.sleep(LOOK_SECONDS)


def told_of_drain(view: ClusterView, drain: DrainView, most: int, _seconds: float) -> str:
    """`most`: the write groups of which the node had something when the command began."""
    moves = [moving(it, view.write_groups) for it in view.moves if drain.node == it.old]
    left = left_of(drain, len(view.write_groups))
    return "; ".join([f"{bar(most - len(drain.groups_left), most)} {left}", *moves])


def moving(move: MoveView, groups: Sequence[WriteGroupView] = ()) -> str:
    """Which step a replica that moves is at, and how much it lacks, as `groups` tell."""
    if not move.new:
        return f"write group {move.group}: the replica on node {move.old} goes, as its successor has a vote"
    instead = f", which then goes from node {move.old}" if move.old else ""
    replicas = (replica for group in groups if group.group == move.group for replica in group.replicas)
    lacks = next((replica.lag_blocks for replica in replicas if replica.node == move.new), -1)
    left = f" ({counted(lacks, 'block')} to go)" if lacks >= 0 else ""
    return f"write group {move.group}: node {move.new} copies a replica{left}{instead}"


def left_of(drain: DrainView, groups: int) -> str:
    """The replicas that a drained node still has, and what they wait for."""
    if drain.empty:
        return "empty, and may stop for good"
    parts = [f"{len(drain.groups_left)} of {counted(groups, 'write group')} to go"] if drain.groups_left else []
    parts += ["votes on the metadata"] if drain.votes else []
    waits = f"; waits: {drain.waits_for[0]}" if drain.waits_for else ""
    return ", ".join(parts) + waits
