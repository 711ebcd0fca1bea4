"""`mainstem group delete`"""

from __future__ import annotations

import click

from mainstem.cli import options
from mainstem.cli.output import print_json


@click.command("delete")
@click.argument("groups", metavar="GROUP...", nargs=-1, required=True)
@options.bootstrap
@options.as_json
def command(groups: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """Delete groups that have no members."""
    from mainstem.cli import kafka_node

    admin = kafka_node.admin(bootstrap)
    futures = admin.delete_consumer_groups(list(groups), request_timeout=kafka_node.REQUEST_SECONDS)
    for group, future in futures.items():
        kafka_node.outcome(future, f"group {group} was not deleted")
        if not as_json:
            click.echo(f"deleted group {group}")
    if as_json:
        print_json({"deleted": list(futures)})
