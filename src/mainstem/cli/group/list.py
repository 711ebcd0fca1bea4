"""`mainstem group list`"""

from __future__ import annotations

import click

from mainstem.cli.group.coordinators import KINDS, STATES, coordinators
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_json, print_table


@click.command("list")
@click.option(
    "--type",
    "kinds",
    type=click.Choice(KINDS),
    multiple=True,
    help="Show only groups of this type; repeatable.",
)
@click.option(
    "--state",
    "states",
    type=click.Choice(sorted(STATES)),
    multiple=True,
    help="Show only groups in this state; repeatable.",
)
@options.kafka_only
@options.as_json
def command(kinds: tuple[str, ...], states: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """List the groups: consumers of both protocols, share groups and streams groups."""
    with coordinators(bootstrap) as nodes:
        groups = nodes.listed(kinds, states)
    if as_json:
        print_json({"groups": [{"group": one.group, "type": one.kind, "state": one.state} for one in groups]})
    else:
        print_table(["~GROUP", "TYPE", "STATE"], groups, empty="no groups")
