"""`mainstem store compact`: the compaction of the queue store, in this terminal or on a Spark cluster."""

from __future__ import annotations

import click

from mainstem.cli.parameters import options
from mainstem.cli.split_application import become


@click.command(
    "compact",
    context_settings={"ignore_unknown_options": True},
    epilog="Further options go to the split application; `mainstem split run -- --help` lists them.",
)
@click.option("--master", help="Where Spark runs: local[N], spark://…, yarn, k8s://…")
@click.option("--once", is_flag=True, help="Merge all runs, compact all that is not compacted yet, then end.")
@options.http_only
@click.argument("more", nargs=-1, type=click.UNPROCESSED, metavar="[-- OPTIONS]")
def command(master: str | None, once: bool, http: str, more: tuple[str, ...]) -> None:
    """Compact the queues of topics with cleanup.policy=compact: of each key the latest record stays.

    Splitters compact in what splits and merges leave, once it is worth it; this compacts at once, and splits nothing
    meanwhile. Files that are not merged yet are merged first. It takes the node's split lease; the embedded splitter
    gives way."""
    become(http, master, more, once=once, only=("--compact-only",))
