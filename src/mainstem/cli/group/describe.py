"""`mainstem group describe`"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import click

from mainstem.cli.clients.http_node import HttpNode
from mainstem.cli.errors import RequestRefused
from mainstem.cli.parameters import names, options
from mainstem.cli.terminal.output import counted, duration, print_json, print_table, print_text

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from mainstem.cli.clients.kafka_connection import KafkaConnections
    from mainstem.cli.group.shown_group import ShownGroup


@click.command("describe")
@click.argument("group", type=names.GROUP)
@options.both
@options.as_json
def command(group: str, bootstrap: str, http: str, as_json: bool) -> None:
    """Show a group's members, offsets and lag per partition, and why it is behind.

    The command lists every partition of the topics that the group reads. END is the offset after the last message. LAG
    counts the offsets from the committed one to END; where nothing is committed (-), all that the partition has. BEHIND
    is the age of the first message of them. WHY says what holds the group up: no leader, rebalance loop (ten
    generations in five minutes), rebalancing, idle (no member has the partition), throttled (a quota holds its member
    back), slow member (it is half a minute behind); loops and quotas are known where HTTP answers. Streams groups have
    their tasks besides, each as subtopology_partition. For share groups, START is the first offset that is not done.
    """
    from mainstem.cli.clients import kafka_node
    from mainstem.cli.group.coordinators import coordinators
    from mainstem.cli.group.share import show_share_group
    from mainstem.cli.group.shown_group import of_consumers, of_streams

    admin = kafka_node.admin(bootstrap)
    with coordinators(bootstrap) as nodes:
        share = nodes.share(group)
        if share is not None:
            show_share_group(nodes, share, as_json=as_json)
            return
        streams = nodes.streams(group)
        if streams is not None:
            described = of_streams(streams)
        else:
            described = of_consumers(
                kafka_node.outcome_of_coordinator(
                    lambda: admin.describe_consumer_groups([group], request_timeout=kafka_node.REQUEST_SECONDS)[group],
                    f"consumer group {group}",
                )
            )
        rows = _rows(admin, nodes.connections, bootstrap, HttpNode(http), group, described)
    if not rows and described.state == "dead":
        raise RequestRefused(f"there is no consumer group {group}; `mainstem group list` shows those there are")
    if as_json:
        print_json(_as_json(group, described, rows))
    else:
        _show(group, described, rows)


def _rows(
    admin: AdminClient,
    connections: KafkaConnections,
    bootstrap: str,
    http: HttpNode,
    group: str,
    described: ShownGroup,
) -> list[dict[str, Any]]:
    """One per partition that the group reads."""
    from mainstem.cli.group.lag import Behind, KnownLeaders, behind, leaders_of, with_causes_of
    from mainstem.cli.group.offsets import of_all_partitions

    leaders = KnownLeaders(None, {})

    def without_leader(topics: Collection[str]) -> list[tuple[str, int]]:
        nonlocal leaders
        leaders = leaders_of(connections, bootstrap, topics)
        return [queue for queue, leader in leaders.of.items() if leader is None]

    offsets = of_all_partitions(admin, group, described.owners, without_leader)
    found = behind(connections, leaders.of, offsets.led, described.owners, described.state)
    if found:
        found = with_causes_of(http, group, leaders.cluster_id, found)
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
    return sorted(rows, key=lambda row: (row["topic"], row["partition"]))


def _as_json(group: str, described: ShownGroup, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    for row in rows:
        owner = described.owners.get((row["topic"], row["partition"]))
        row["member"] = owner.member_id if owner else None
    members = []
    for member in described.members:
        told: dict[str, Any] = {"member": member.member_id, "client_id": member.client_id, "host": member.host}
        if member.tasks is not None:
            told |= {"active": member.tasks.active, "standby": member.tasks.standby, "warmup": member.tasks.warmup}
        members.append(told)
    found: dict[str, Any] = {"group": group, "type": described.kind, "state": described.state}
    if described.kind == "streams":
        found |= {"epoch": described.epoch, "topology_epoch": described.topology_epoch}
    return found | {"members": members, "partitions": rows}


def _show(group: str, described: ShownGroup, rows: Sequence[dict[str, Any]]) -> None:
    lag = sum(row["lag"] or 0 for row in rows)
    seconds = max((row["lag_seconds"] for row in rows if row["lag_seconds"] is not None), default=None)
    members_told = counted(len(described.members), "member")
    behind_told = "" if seconds is None else f", {duration(seconds)} behind"
    kind, noun = described.kind, "consumer group"
    if kind == "streams":
        noun, kind = "streams group", f"epoch {described.epoch}"
        kind += "" if described.topology_epoch is None else f", topology {described.topology_epoch}"
    print_text(f"{noun} {group}: {described.state}, {kind}, {members_told}, lag {lag:,}{behind_told}\n")
    if described.kind == "streams":
        print_table(
            ["~MEMBER", "ACTIVE", "STANDBY", "WARM-UP"],
            [
                (f"{one.client_id} {one.host}", *(" ".join(some) or "-" for some in one.tasks))
                for one in described.members
                if one.tasks is not None
            ],
            empty="no members",
        )
        print_text("")
    rows_drawn = []
    for row in rows:
        owner = described.owners.get((row["topic"], row["partition"]))
        age = "-" if row["lag_seconds"] is None else duration(row["lag_seconds"])
        numbers = ("-" if row[key] is None else row[key] for key in ("committed", "end", "lag"))
        reader = f"{owner.client_id} {owner.host}" if owner else "-"
        rows_drawn.append((row["topic"], row["partition"], *numbers, age, row["why"] or "-", reader))
    print_table(
        ["~TOPIC", ">PARTITION", ">COMMITTED", ">END", ">LAG", ">BEHIND", "WHY", "~MEMBER"],
        rows_drawn,
        empty="no committed offsets",
    )
