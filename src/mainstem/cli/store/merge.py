"""`mainstem store merge`: the merges of the queue store, in this terminal or on a Spark cluster."""

from __future__ import annotations

import click

from mainstem.cli.parameters import options
from mainstem.cli.split_application import become


@click.command(
    "merge",
    context_settings={"ignore_unknown_options": True},
    epilog="Further options go to the split application; `mainstem split run -- --help` lists them.",
)
@click.option("--master", help="Where Spark runs: local[N], spark://…, yarn, k8s://…")
@click.option("--once", is_flag=True, help="Merge all runs, however few, then end.")
@options.http_only
@click.argument("more", nargs=-1, type=click.UNPROCESSED, metavar="[-- OPTIONS]")
def command(master: str | None, once: bool, http: str, more: tuple[str, ...]) -> None:
    """Merge runs of a node into packed files and queue segments.

    Splitters merge in what the split leaves, once it is worth it; this merges at once, and splits nothing meanwhile. It
    takes the node's split lease; the embedded splitter gives way.
    """
    become(http, master, more, once=once, only=("--merge-only",))
