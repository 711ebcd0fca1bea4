"""`mainstem group describe`"""

from __future__ import annotations

import click

from mainstem.cli.errors import RequestRefused
from mainstem.cli.parameters import names, options
from mainstem.cli.terminal.output import counted, print_json, print_table, print_text


@click.command("describe")
@click.argument("group", type=names.GROUP)
@options.kafka_only
@options.as_json
def command(group: str, bootstrap: str, as_json: bool) -> None:
    """Show a consumer group's members, offsets and lag per partition.

    The command lists every partition of the topics that the group reads. END is the offset after the last message. LAG
    counts the offsets from the committed one to END; where nothing is committed (-), all that the partition has.
    """
    from mainstem.cli.clients import kafka_node
    from mainstem.cli.group.offsets import of_all_partitions

    admin = kafka_node.admin(bootstrap)
    description = kafka_node.outcome_of_coordinator(
        lambda: admin.describe_consumer_groups([group], request_timeout=kafka_node.REQUEST_SECONDS)[group],
        f"consumer group {group}",
    )
    owners = {
        (queue.topic, queue.partition): member
        for member in description.members
        for queue in (member.assignment.topic_partitions if member.assignment else [])
    }
    offsets = of_all_partitions(admin, group, owners)
    state = description.state.name.lower()
    kind = description.type.name.lower() if hasattr(description, "type") else "classic"  # older clients see no others
    if state == "dead" and not offsets:
        raise RequestRefused(f"there is no consumer group {group}; `mainstem group list` shows those there are")
    if as_json:
        rows = []
        for queue in offsets:
            owner = owners.get((queue.topic, queue.partition))
            rows.append(queue._asdict() | {"lag": queue.lag, "member": owner.member_id if owner else None})
        members = [
            {"member": member.member_id, "client_id": member.client_id, "host": member.host}
            for member in description.members
        ]
        print_json({"group": group, "type": kind, "state": state, "members": members, "partitions": rows})
        return
    lag = sum(queue.lag for queue in offsets)
    members_told = counted(len(description.members), "member")
    print_text(f"consumer group {group}: {state}, {kind}, {members_told}, lag {lag:,}\n")
    rows_drawn = []
    for queue in offsets:
        owner = owners.get((queue.topic, queue.partition))
        committed = "-" if queue.committed is None else queue.committed
        reader = f"{owner.client_id} {owner.host}" if owner else "-"
        rows_drawn.append((queue.topic, queue.partition, committed, queue.end, queue.lag, reader))
    print_table(
        ["~TOPIC", ">PARTITION", ">COMMITTED", ">END", ">LAG", "~MEMBER"],
        rows_drawn,
        empty="no committed offsets",
    )
