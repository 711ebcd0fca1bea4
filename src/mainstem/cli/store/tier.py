"""`mainstem store tier`: uploads to the remote tier, in this terminal or on a Spark cluster."""

from __future__ import annotations

import click

from mainstem.cli.clients.http_node import HttpNode
from mainstem.cli.errors import CommandFailed
from mainstem.cli.parameters import options
from mainstem.cli.split_application import become
from mainstem.console.views.of_split import SplitEndpoint


@click.command(
    "tier",
    context_settings={"ignore_unknown_options": True},
    epilog="Further options go to the split application; `mainstem split run -- --help` lists them.",
)
@click.option("--master", help="Where Spark runs: local[N], spark://…, yarn, k8s://…")
@click.option("--once", is_flag=True, help="Merge all runs, upload all that may move and has not, then end.")
@options.http_only
@click.argument("more", nargs=-1, type=click.UNPROCESSED, metavar="[-- OPTIONS]")
def command(master: str | None, once: bool, http: str, more: tuple[str, ...]) -> None:
    """Upload merged files of topics with remote.storage.enable=true to the remote tier.

    Splitters upload in what splits and merges leave; this does it at once, and splits nothing meanwhile. A node uploads
    for the write groups that it leads. Files that are not merged yet are merged first. It takes the node's split lease;
    the embedded splitter gives way."""
    if "--help" not in more and (shared := HttpNode(http).get("/v1/split/endpoint", SplitEndpoint).shared_store):
        raise CommandFailed(f"{shared.url} is a shared store: files are written straight to it, and none is uploaded")
    become(http, master, more, once=once, only=("--tier-only",))
