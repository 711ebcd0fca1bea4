"""`mainstem group list`"""

from __future__ import annotations

import click

from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_json, print_table


@click.command("list")
@click.option(
    "--type",
    "kinds",
    type=click.Choice(["classic", "consumer", "share", "streams"]),
    multiple=True,
    help="Show only groups of this type; repeatable.",
)
@options.kafka_only
@options.as_json
def command(kinds: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """List the groups: consumers of both protocols, share groups and streams groups."""
    from mainstem.cli.group.coordinators import coordinators

    with coordinators(bootstrap) as nodes:
        groups = nodes.listed(kinds)
    if as_json:
        print_json({"groups": [{"group": one.group, "type": one.kind, "state": one.state} for one in groups]})
    else:
        print_table(["~GROUP", "TYPE", "STATE"], groups, empty="no groups")
