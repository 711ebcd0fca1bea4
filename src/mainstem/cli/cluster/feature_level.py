"""`mainstem cluster feature-level`"""

from __future__ import annotations

import click

from mainstem.cli.clients.http_node import HttpNode
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_json
from mainstem.console.views.asked_changes import FeatureLevelRequest
from mainstem.console.views.of_cluster import ClusterView


@click.command("feature-level")
@click.option("--raise", "raise_it", is_flag=True, help="Raise the level to the newest that all nodes read.")
@options.http_only
@options.token
@options.as_json
def command(http: str, token: str | None, raise_it: bool, as_json: bool) -> None:
    """Show what the nodes of the cluster may write, and what each of them reads.

    A new version reads what older ones wrote, and writes nothing that they cannot read until somebody raises the level:
    until then every node may go back to the version it came from. --raise ends that. The cluster refuses it, with the
    reason, while a node is away or runs a version that does not read the higher level.
    """
    node = HttpNode(http, token)
    view = node.get("/v1/cluster", ClusterView)
    levels = [it.level_newest for it in view.nodes]
    newest = max(view.feature_level, *(level for level in levels if level is not None), view.feature_level_newest)
    nodes = sorted(view.nodes, key=lambda it: it.node_id)
    raises = raise_it and newest > view.feature_level
    if raises:
        node.post("/v1/cluster/feature-level", FeatureLevelRequest(level=newest))
    if as_json:
        print_json(
            {
                "feature_level": newest if raises else view.feature_level,
                "raised": raises,
                "nodes": [{"node_id": it.node_id, "level_newest": it.level_newest} for it in nodes],
            }
        )
    elif raises:
        click.echo(f"the cluster is at feature level {newest}; older versions cannot join it any more")
    elif raise_it:
        click.echo(f"the cluster is at feature level {view.feature_level} already, the newest that there is")
    else:
        click.echo(f"feature level {view.feature_level}")
        for it in nodes:
            reads = f"reads up to {it.level_newest}" if it.level_newest is not None else "does not answer"
            click.echo(f"node {it.node_id}: {reads}")
