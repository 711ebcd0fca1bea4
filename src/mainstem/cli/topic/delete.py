"""`mainstem topic delete`"""

from __future__ import annotations

import click

from mainstem.cli.errors import RequestRefused
from mainstem.cli.parameters import names, options
from mainstem.cli.terminal.output import print_json


@click.command("delete")
@click.argument("topics", type=names.TOPIC, metavar="TOPIC...", nargs=-1, required=True)
@click.option("-y", "--yes", is_flag=True, help="Delete without asking.")
@options.kafka_only
@options.as_json
def command(topics: tuple[str, ...], yes: bool, bootstrap: str, as_json: bool) -> None:
    """Delete topics and free their data."""
    from mainstem.cli.clients import kafka_node

    admin = kafka_node.admin(bootstrap)
    if not yes:
        click.confirm(f"delete {', '.join(topics)} and all messages in them?", abort=True, err=True)
    futures = admin.delete_topics(list(topics), request_timeout=kafka_node.REQUEST_SECONDS)
    deleted, failures = [], []
    for topic, future in futures.items():
        try:
            kafka_node.outcome(future, f"topic {topic} was not deleted")
        except RequestRefused as failure:
            failures.append(str(failure))
        else:
            deleted.append(topic)
            if not as_json:
                click.echo(f"deleted topic {topic}")
    if as_json:
        print_json({"deleted": deleted})
    if failures:
        raise RequestRefused("; ".join(failures))
