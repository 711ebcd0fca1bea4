"""`mainstem cluster explain`"""

from __future__ import annotations

import click

from mainstem.cli.clients.http_node import HttpNode
from mainstem.cli.parameters import names, options
from mainstem.cli.terminal.output import print_json, print_text
from mainstem.console.views.of_explanation import ExplanationView

PATH = "/v1/cluster/explain"


@click.command("explain")
@click.argument("queue", metavar="[TOPIC:PARTITION]", required=False)
@click.option("--group", type=click.IntRange(min=0), help="Explain a write group.")
@click.option("--node", "node_id", type=click.IntRange(min=0), help="Explain a node.")
@options.http_only
@options.as_json
def command(http: str, queue: str | None, group: int | None, node_id: int | None, as_json: bool) -> None:
    """Say in plain sentences why a queue, a write group or a node is where it is.

    For a queue: its slot and write group. For a write group: its load, its replicas and how far they are, who leads it
    and why not another, drains and rebuilds that concern it, the last moves with their reasons, and what a rebalance
    would do. For a node: its load, what it holds and leads, and the same of its moves.
    """
    view = HttpNode(http).get(f"{PATH}/{subject_path(queue, group, node_id)}", ExplanationView)
    if as_json:
        print_json(view)
        return
    print_text(f"{view.subject}\n")
    for sentence in view.sentences:
        print_text(sentence)


def subject_path(queue: str | None, group: int | None, node_id: int | None) -> str:
    """The path of the one subject that is given. Raises UsageError where there is none, or several."""
    given = [it for it in (queue, group, node_id) if it is not None]
    if len(given) != 1:
        raise click.UsageError("give one of TOPIC:PARTITION, --group NUMBER and --node ID")
    if group is not None:
        return f"group/{group}"
    if node_id is not None:
        return f"node/{node_id}"
    assert queue is not None, "it is what was given"
    topic, partition = names.queue_of(queue, "; write groups and nodes take --group and --node")
    return f"partition/{topic}/{partition}"
