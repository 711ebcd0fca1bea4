"""`mainstem split run`: the split application in this terminal, or on a Spark cluster."""

from __future__ import annotations

import click

from mainstem.cli.parameters import options
from mainstem.cli.split_application import become


@click.command(
    "run",
    context_settings={"ignore_unknown_options": True},
    epilog="Further options go to the split application; `mainstem split run -- --help` lists them.",
)
@click.option("--master", help="Where Spark runs: local[N], spark://…, yarn, k8s://…")
@click.option("--once", is_flag=True, help="Split everything committed now, then end.")
@options.http_only
@click.argument("more", nargs=-1, type=click.UNPROCESSED, metavar="[-- OPTIONS]")
def command(master: str | None, once: bool, http: str, more: tuple[str, ...]) -> None:
    """Run a splitter against a node, here or on a Spark cluster.

    The splitter takes the node's split lease; the embedded splitter gives way.
    """
    become(http, master, more, once=once)
