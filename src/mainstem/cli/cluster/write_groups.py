"""`mainstem cluster write-groups`"""

from __future__ import annotations

import click

from mainstem.cli.clients.http_node import HttpNode
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_json, print_table
from mainstem.console.views.asked_changes import WriteGroupsRequest
from mainstem.console.views.of_cluster import ClusterView


@click.command("write-groups")
@click.argument("total", type=click.IntRange(min=1), required=False)
@click.option(
    "--replication-factor",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many replicas each new write group has. Default: as many as the first ones.",
)
@options.http_only
@options.token
@options.as_json
def command(http: str, token: str | None, total: int | None, replication_factor: int | None, as_json: bool) -> None:
    """Show the write groups of the cluster, or have it come to TOTAL, which is more than it has.

    New write groups begin on the nodes that live and hold least, and have leaders within seconds; no restart is needed.
    They take over slots to which no queue hashes yet, so that new topics and partitions spread over them as well.
    Queues that exist stay in the write groups that they are in. The number never goes down.

    Write groups with another number of replicas are a class of their own, for new topics that ask for this replication
    factor. From then on a topic's factor must be that of a class.
    """
    if replication_factor is not None and total is None:
        raise click.UsageError("--replication-factor is of new write groups: say TOTAL, how many there are to be")
    node = HttpNode(http, token)
    before = len(node.get("/v1/cluster", ClusterView).write_groups)
    if total is not None and total != before:
        node.post("/v1/cluster/write-groups", WriteGroupsRequest(total=total, replication_factor=replication_factor))
    groups = node.get("/v1/cluster", ClusterView).write_groups
    if as_json:
        rows = [
            {
                "group": it.group,
                "leader": it.leader,
                "slots": it.slots,
                "replication_factor": it.replication_factor,
                "replicas": [replica.node for replica in it.replicas],
            }
            for it in groups
        ]
        print_json({"added": len(groups) - before, "write_groups": rows})
        return
    if total is not None:
        click.echo(f"{len(groups) - before} write groups were added; the cluster has {len(groups)}")
    print_table(
        [">GROUP", ">LEADER", ">FACTOR", ">SLOTS", "~REPLICAS"],
        [
            (
                it.group, it.leader if it.leader >= 0 else "none", it.replication_factor, it.slots,
                ", ".join(str(replica.node) for replica in it.replicas),
            )
            for it in groups
        ],
        empty="no write groups",
    )  # fmt: skip
