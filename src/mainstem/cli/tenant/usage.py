"""`mainstem tenant usage`"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click
import msgspec

from mainstem.cli.clients.every_node import of_every_node
from mainstem.cli.clients.http_node import HttpNode
from mainstem.cli.errors import CommandLineError
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_json, print_table, size, stderr
from mainstem.console.views.of_cluster import ClusterView, NodeView
from mainstem.console.views.of_tenants import TenantUsagesView, TenantUsageView

TIMEOUT_SECONDS = 30.0
"""A node may look at the indexes of files for some seconds."""


class ClusterTenantUsages(msgspec.Struct, frozen=True, kw_only=True):
    tenants: Sequence[TenantUsageView]
    nodes: Sequence[int]
    """Those whose figures are in it."""
    silent: Sequence[int]
    """Those that did not answer: what they hold and what passed through them is missing."""


@click.command("usage")
@click.argument("name", required=False)
@click.option("--this-node", is_flag=True, help="Show the part of the node that is asked alone.")
@options.http_only
@options.as_json
def command(name: str | None, this_node: bool, http: str, as_json: bool) -> None:
    """Show what tenants, or the tenant NAME, take of the cluster.

    Sizes are those of batches, as they lie in the journals and on the disks 2 of all nodes, so that each replica
    counts, and in the remote tier, which counts once: what is deleted counts until its file goes. UNSPLIT is what
    nodes have still to split of the journals, and FOR the time that the oldest of it has waited. The bytes that a
    tenant's users produced and fetched are counted since each node started."""
    path = "/v1/tenants/usage" if name is None else f"/v1/tenants/usage/{name}"

    def question(node: HttpNode) -> TenantUsagesView:
        return node.get(path, TenantUsagesView)

    asked = HttpNode(http, timeout_seconds=TIMEOUT_SECONDS)
    if this_node:
        view = question(asked)
        show(view.tenants, view, as_json)
        return
    nodes = asked.get("/v1/cluster", ClusterView).nodes
    answers = of_every_node(http, nodes, question, timeout_seconds=TIMEOUT_SECONDS)
    heard = [(node, answer) for node in nodes if (answer := answers[node.node_id]) is not None]
    if not heard:
        question(asked)  # says what is wrong, such as that there is no such tenant
        raise CommandLineError(f"{http} answers, but at none of the addresses that nodes of its cluster tell")
    silent = sorted(node_id for node_id, answer in answers.items() if answer is None)
    tenants = sums_of(heard)
    show(
        tenants,
        ClusterTenantUsages(tenants=tenants, nodes=sorted(node.node_id for node, _ in heard), silent=silent),
        as_json,
    )
    if silent:
        stderr().print(
            f"{'nodes' if silent[1:] else 'node'} {', '.join(map(str, silent))} did not answer: their part is missing"
        )


def sums_of(heard: Sequence[tuple[NodeView, TenantUsagesView]]) -> list[TenantUsageView]:
    """The sums of what tenants take of nodes, by name. Traffic is that of nodes with the broker role: where these have
    no storage, the nodes that have it count the same bytes once more."""
    by_name: dict[str, list[tuple[NodeView, TenantUsageView]]] = {}
    for node, view in heard:
        for tenant in view.tenants:
            by_name.setdefault(tenant.name, []).append((node, tenant))
    return [
        TenantUsageView(
            name=name,
            topics=max(it.topics for _, it in parts),
            queues=max(it.queues for _, it in parts),
            queues_max=parts[0][1].queues_max,
            journal_bytes=_sum(it.journal_bytes for _, it in parts),
            unsplit_bytes=_sum(it.unsplit_bytes for _, it in parts),
            split_lag_seconds=max(
                (it.split_lag_seconds for _, it in parts if it.split_lag_seconds is not None), default=None
            ),
            stored_bytes=_sum(it.stored_bytes for _, it in parts),
            remote_bytes=max((it.remote_bytes for _, it in parts if it.remote_bytes is not None), default=None),
            produced_bytes=_sum(it.produced_bytes for node, it in parts if "broker" in node.roles),
            fetched_bytes=_sum(it.fetched_bytes for node, it in parts if "broker" in node.roles),
        )
        for name, parts in sorted(by_name.items())
    ]


def _sum(parts: Iterable[int | None]) -> int | None:
    """None where no node tells."""
    told = [part for part in parts if part is not None]
    return sum(told) if told else None


def show(tenants: Sequence[TenantUsageView], view: msgspec.Struct, as_json: bool) -> None:
    if as_json:
        print_json(view)
        return
    print_table(
        ["~TENANT", ">TOPICS", ">QUEUES", ">AT MOST", ">JOURNAL", ">UNSPLIT", ">FOR", ">DISK 2", ">REMOTE", ">PRODUCED",
         ">FETCHED"],
        [
            (it.name, it.topics, it.queues, it.queues_max or "-", size(it.journal_bytes), size(it.unsplit_bytes),
             "-" if it.split_lag_seconds is None else f"{it.split_lag_seconds:.0f} s", size(it.stored_bytes),
             size(it.remote_bytes), size(it.produced_bytes), size(it.fetched_bytes))
            for it in tenants
        ],
        empty="no tenants",
    )  # fmt: skip
