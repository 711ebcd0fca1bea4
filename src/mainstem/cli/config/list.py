"""`mainstem config list`"""

from __future__ import annotations

import click

from mainstem.cli.config import resources
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_json, print_table


@click.command("list")
@options.kafka_only
@options.as_json
def command(bootstrap: str, as_json: bool) -> None:
    """List the groups and client metrics that have configs of their own."""
    found = resources.listed(bootstrap)
    if as_json:
        print_json({"resources": [{"kind": it.kind.name.lower(), "name": it.name} for it in found]})
        return
    rows = [(resources.kind_named(it.kind), it.name) for it in found]
    print_table(["KIND", "~NAME"], rows, empty="no configs are set")
