"""`mainstem cluster move-queue`"""

from __future__ import annotations

import time
from functools import partial

import click

from mainstem.cli.clients.http_node import HttpNode
from mainstem.cli.parameters import names, options
from mainstem.cli.terminal.output import print_json
from mainstem.cli.terminal.progress_line import StatusLine
from mainstem.console.views.asked_changes import MoveQueueRequest
from mainstem.console.views.of_cluster import ClusterView, SlotMoveView
from mainstem.console.views.of_explanation import ExplanationView

LOOK_SECONDS = 0.2
"""Between two looks at the cluster: most moves take less."""


@click.command("move-queue")
@click.argument("queue", metavar="TOPIC:PARTITION")
@click.option("--to", "group", type=click.IntRange(min=0), help="The write group to move it to.")
@click.option("--wait", is_flag=True, help="Return when it is there.")
@click.option("--cancel", is_flag=True, help="Take back a move that has not begun.")
@options.http_only
@options.token
@options.as_json
def command(
    http: str, token: str | None, queue: str, group: int | None, wait: bool, cancel: bool, as_json: bool
) -> None:
    """Move a queue to another write group, while clients produce to it and consume it.

    Its slot moves, with all queues that hash to it: mostly it is the only one. Producers are refused for the moment of
    the move, and send again. Readers go on with what the queue had before, which nodes that lack it copy first, with
    all that its write group has. A queue that is compacted without delete keeps records in both write groups for good.
    A move waits until no transaction is open in the queue; `cluster status` shows what it waits for. As long as it
    waits, it can be taken back.
    """
    if (group is None) != cancel or (cancel and wait):
        raise click.UsageError("give --to GROUP, or --cancel alone")
    topic, partition = names.queue_of(queue)
    node = HttpNode(http, token)
    node.post("/v1/cluster/move-queue", MoveQueueRequest(topic=topic, partition=partition, to=group))
    subject = f"/v1/cluster/explain/partition/{topic}/{partition}"
    view = node.get(subject, ExplanationView)
    if wait and group is not None and view.group != group:
        with StatusLine(None) as line:
            while (view := node.get(subject, ExplanationView)).group != group:
                moves = node.get("/v1/cluster", ClusterView).slot_moves
                told = next((told_slot_move(it) for it in moves if it.slot == view.slot), "")
                if not told and node.get(subject, ExplanationView).group != group:  # nor has it moved meanwhile
                    raise click.ClickException(
                        f"slot {view.slot} is not on its way to write group {group} any more: somebody took that back, "
                        "or the metadata leader did, as a node is lost that the move waited for"
                    )
                line.due(partial(_told, told))
                time.sleep(LOOK_SECONDS)
    if as_json:
        print_json({"topic": topic, "partition": partition, "slot": view.slot, "group": view.group, "to": group})
    elif cancel:
        click.echo(f"{queue} stays in write group {view.group}, with its slot {view.slot}")
    elif view.group == group:
        click.echo(f"{queue} is in write group {group}, with its slot {view.slot}")
    else:
        click.echo(f"{queue} moves to write group {group}, with its slot {view.slot}: mainstem cluster status")


def told_slot_move(move: SlotMoveView) -> str:
    """A move of a slot, and what it waits for."""
    waits = f": waits, as {move.waits_for}" if move.waits_for else ""
    return f"slot {move.slot} moves from write group {move.before} to {move.to}{waits}"


def _told(text: str, _seconds: float) -> str:
    return text
