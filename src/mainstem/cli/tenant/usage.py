"""`mainstem tenant usage`"""

from __future__ import annotations

import click

from mainstem.cli.clients.http_node import HttpNode
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_json, print_table, size
from mainstem.console.views.of_tenants import TenantUsagesView

TIMEOUT_SECONDS = 30.0
"""The node may look at the indexes of files for some seconds."""


@click.command("usage")
@click.argument("name", required=False)
@options.http_only
@options.as_json
def command(name: str | None, http: str, as_json: bool) -> None:
    """Show what tenants, or the tenant NAME, take of a node.

    Sizes are those of batches, as they lie in the journal, on disk 2 and in the remote tier: what is deleted counts
    until its file goes. The bytes that a tenant's users produced and fetched are counted since the node started."""
    path = "/v1/tenants/usage" if name is None else f"/v1/tenants/usage/{name}"
    view = HttpNode(http, timeout_seconds=TIMEOUT_SECONDS).get(path, TenantUsagesView)
    if as_json:
        print_json(view)
        return
    print_table(
        ["~TENANT", ">TOPICS", ">QUEUES", ">AT MOST", ">JOURNAL", ">DISK 2", ">REMOTE", ">PRODUCED", ">FETCHED"],
        [
            (it.name, it.topics, it.queues, it.queues_max or "-", size(it.journal_bytes), size(it.stored_bytes),
             size(it.remote_bytes), size(it.produced_bytes), size(it.fetched_bytes))
            for it in view.tenants
        ],
        empty="no tenants",
    )  # fmt: skip
