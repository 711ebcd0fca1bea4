"""`mainstem group delete`"""

from __future__ import annotations

import click

from mainstem.cli.errors import RequestRefused
from mainstem.cli.parameters import names, options
from mainstem.cli.terminal.output import print_json


@click.command("delete")
@click.argument("groups", type=names.GROUP, metavar="GROUP...", nargs=-1, required=True)
@options.kafka_only
@options.as_json
def command(groups: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """Delete groups of any type that have no members, and their offsets."""
    from mainstem.cli.clients import kafka_node

    admin = kafka_node.admin(bootstrap)
    futures = admin.delete_consumer_groups(list(groups), request_timeout=kafka_node.REQUEST_SECONDS)
    deleted, failures = [], []
    for group, future in futures.items():
        try:
            kafka_node.outcome(future, f"group {group} was not deleted")
        except RequestRefused as failure:
            failures.append(str(failure))
        else:
            deleted.append(group)
            if not as_json:
                click.echo(f"deleted group {group}")
    if as_json:
        print_json({"deleted": deleted})
    if failures:
        raise RequestRefused("; ".join(failures))
