"""`mainstem group list`"""

from __future__ import annotations

import click

from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_json, print_table


@click.command("list")
@options.kafka_only
@options.as_json
def command(bootstrap: str, as_json: bool) -> None:
    """List the consumer groups."""
    from mainstem.cli.clients import kafka_node

    admin = kafka_node.admin(bootstrap)  # held until the answer is there: a request ends with its client
    future = admin.list_consumer_groups(request_timeout=kafka_node.REQUEST_SECONDS)
    found = kafka_node.outcome(future, "the consumer groups were not listed")
    groups = sorted((group.group_id, group.type.name.lower(), group.state.name.lower()) for group in found.valid)
    if as_json:
        print_json({"groups": [{"group": group, "type": kind, "state": state} for group, kind, state in groups]})
    else:
        print_table(["~GROUP", "TYPE", "STATE"], groups, empty="no consumer groups")
