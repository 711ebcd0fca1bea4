"""`mainstem group describe`"""

from __future__ import annotations

import click

from mainstem.cli import options
from mainstem.cli.errors import RequestRefused
from mainstem.cli.output import print_json, print_table


@click.command("describe")
@click.argument("group")
@options.kafka_only
@options.as_json
def command(group: str, bootstrap: str, as_json: bool) -> None:
    """Show a group's members, offsets and lag per partition."""
    from mainstem.cli import kafka_node
    from mainstem.cli.group.offsets import committed

    admin = kafka_node.admin(bootstrap)
    futures = admin.describe_consumer_groups([group], request_timeout=kafka_node.REQUEST_SECONDS)
    description = kafka_node.outcome(futures[group], f"group {group}")
    owners = {
        (queue.topic, queue.partition): member
        for member in description.members
        for queue in (member.assignment.topic_partitions if member.assignment else [])
    }
    offsets = committed(admin, group, owners)
    state = description.state.name.lower()
    if state == "dead" and not offsets:
        raise RequestRefused(f"there is no group {group}")
    if as_json:
        rows = []
        for queue in offsets:
            owner = owners.get((queue.topic, queue.partition))
            rows.append(queue._asdict() | {"lag": queue.lag, "member": owner.member_id if owner else None})
        members = [
            {"member": member.member_id, "client_id": member.client_id, "host": member.host}
            for member in description.members
        ]
        print_json({"group": group, "state": state, "members": members, "partitions": rows})
        return
    lag = sum(queue.lag or 0 for queue in offsets)
    click.echo(f"group {group}: {state}, {len(description.members)} members, lag {lag}\n")
    rows_drawn = []
    for queue in offsets:
        owner = owners.get((queue.topic, queue.partition))
        reader = f"{owner.client_id} {owner.host}" if owner else "-"
        figures = ("-" if value is None else value for value in (queue.committed, queue.end, queue.lag))
        rows_drawn.append((queue.topic, queue.partition, *figures, reader))
    print_table(
        ["TOPIC", ">PARTITION", ">COMMITTED", ">END", ">LAG", "MEMBER"], rows_drawn, empty="no committed offsets"
    )
