"""`mainstem user list`"""

from __future__ import annotations

import click

from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_json, print_table
from mainstem.cli.user import scram_users


@click.command("list")
@options.kafka_only
@options.as_json
def command(bootstrap: str, as_json: bool) -> None:
    """List the users that have passwords."""
    from mainstem.cli.clients import kafka_node

    users = scram_users.described(kafka_node.admin(bootstrap))
    if as_json:
        print_json({"users": [{"user": name, "mechanisms": dict(user)} for name, user in users.items()]})
        return
    rows = [(name, mechanism, iterations) for name, user in users.items() for mechanism, iterations in user.items()]
    print_table(["~USER", "MECHANISM", "ITERATIONS"], rows, empty="no users")
