"""`mainstem group describe`"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import click

from mainstem.cli.errors import RequestRefused
from mainstem.cli.parameters import names, options
from mainstem.cli.terminal.output import counted, duration, print_json, print_table, print_text


@click.command("describe")
@click.argument("group", type=names.GROUP)
@options.kafka_only
@options.as_json
def command(group: str, bootstrap: str, as_json: bool) -> None:
    """Show a consumer group's members, offsets and lag per partition, and why it is behind.

    The command lists every partition of the topics that the group reads. END is the offset after the last message. LAG
    counts the offsets from the committed one to END; where nothing is committed (-), all that the partition has. BEHIND
    is the age of the first message of them. WHY says what holds the group up: no leader, rebalancing, idle (no member
    has the partition), slow member (one has it, and is half a minute behind).
    """
    from mainstem.cli.clients import kafka_node
    from mainstem.cli.group.lag import Behind, PartitionLeaders, behind, connected, leaders_of
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
    state = description.state.name.lower()
    connections = connected(bootstrap)
    leaders: PartitionLeaders = {}

    def without_leader(topics: Collection[str]) -> list[tuple[str, int]]:
        nonlocal leaders
        leaders = leaders_of(connections, bootstrap, topics)
        return [queue for queue, leader in leaders.items() if leader is None]

    try:
        offsets = of_all_partitions(admin, group, owners, without_leader)
        found = behind(connections, leaders, offsets.led, owners, state)
    finally:
        connections.close()
    kind = description.type.name.lower() if hasattr(description, "type") else "classic"  # older clients see no others
    if state == "dead" and not offsets.led and not offsets.without_leader:
        raise RequestRefused(f"there is no consumer group {group}; `mainstem group list` shows those there are")
    rows: list[dict[str, Any]] = [
        {**each._asdict(), "lag": each.lag, "lag_seconds": told.seconds, "why": told.why}
        for each in offsets.led
        if (told := found.get((each.topic, each.partition), Behind(None, None)))
    ]
    rows += [
        {"topic": topic, "partition": partition, "committed": committed, "log_start": None, "end": None, "lag": None,
         "lag_seconds": None, "why": "no leader"}
        for topic, partition, committed in offsets.without_leader
    ]  # fmt: skip
    rows.sort(key=lambda row: (row["topic"], row["partition"]))
    if as_json:
        for row in rows:
            owner = owners.get((row["topic"], row["partition"]))
            row["member"] = owner.member_id if owner else None
        members = [
            {"member": member.member_id, "client_id": member.client_id, "host": member.host}
            for member in description.members
        ]
        print_json({"group": group, "type": kind, "state": state, "members": members, "partitions": rows})
        return
    lag = sum(each.lag for each in offsets.led)
    seconds = max((told.seconds for told in found.values() if told.seconds is not None), default=None)
    members_told = counted(len(description.members), "member")
    behind_told = "" if seconds is None else f", {duration(seconds)} behind"
    print_text(f"consumer group {group}: {state}, {kind}, {members_told}, lag {lag:,}{behind_told}\n")
    rows_drawn = []
    for row in rows:
        owner = owners.get((row["topic"], row["partition"]))
        age = "-" if row["lag_seconds"] is None else duration(row["lag_seconds"])
        numbers = ("-" if row[key] is None else row[key] for key in ("committed", "end", "lag"))
        reader = f"{owner.client_id} {owner.host}" if owner else "-"
        rows_drawn.append((row["topic"], row["partition"], *numbers, age, row["why"] or "-", reader))
    print_table(
        ["~TOPIC", ">PARTITION", ">COMMITTED", ">END", ">LAG", ">BEHIND", "WHY", "~MEMBER"],
        rows_drawn,
        empty="no committed offsets",
    )
