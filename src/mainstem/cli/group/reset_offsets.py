"""`mainstem group reset-offsets`"""

from __future__ import annotations

import click

from mainstem.cli.errors import RequestRefused
from mainstem.cli.parameters import names, options, position
from mainstem.cli.terminal.output import print_json, print_table, stderr


@click.command("reset-offsets")
@click.argument("group", type=names.GROUP)
@click.option(
    "--to",
    "target",
    type=position.PositionType(),
    required=True,
    help=f"Where the group reads on: {position.HELP}",
)
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    help="Move the offsets in this topic; repeatable. Default: every topic that the group has offsets in.",
)
@options.partitions("Move only this one; repeatable.")
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@options.kafka_only
@options.as_json
def command(
    group: str,
    target: position.Position,
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    dry_run: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Move the offsets of a group, which must have no members; of a share group, where it reads on.

    An offset outside a partition is moved to its beginning or end.
    """
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    from mainstem.cli.clients import kafka_node
    from mainstem.cli.group.coordinators import coordinators
    from mainstem.cli.group.offsets import committed

    admin = kafka_node.admin(bootstrap)
    before: dict[tuple[str, int], int | None]
    with coordinators(bootstrap) as nodes:
        shared = nodes.share(group) is not None
        if shared:
            before = {
                (each.topic, each.partition): each.start if each.start >= 0 else None
                for each in nodes.share_offsets(group)
            }
        else:
            before = {(queue.topic, queue.partition): queue.committed for queue in committed(admin, group)}
    queues = (
        [(topic, partition) for topic in topics for partition in position.partitions_of(admin, topic)]
        if topics
        else sorted(before)
    )
    chosen = [queue for queue in queues if not partitions or queue[1] in partitions]
    if not chosen:
        raise RequestRefused(
            f"group {group} has no offsets there to move; name the topic that it is to read with --topic"
        )
    after = position.resolved(admin, position.bounds(admin, chosen), target)
    if not dry_run and shared:
        with coordinators(bootstrap) as nodes:
            nodes.move_share_offsets(group, after)
    elif not dry_run:
        request = ConsumerGroupTopicPartitions(
            group, [TopicPartition(topic, partition, offset) for (topic, partition), offset in after.items()]
        )
        futures = admin.alter_consumer_group_offsets([request], request_timeout=kafka_node.REQUEST_SECONDS)
        result = kafka_node.outcome(futures[group], f"the offsets of {group} were not moved")
        for queue in result.topic_partitions:
            if queue.error is not None:
                raise RequestRefused(f"{queue.topic} [{queue.partition}]: {queue.error.str()}")
    rows = [
        {"topic": queue[0], "partition": queue[1], "before": before.get(queue), "after": offset}
        for queue, offset in after.items()
    ]
    if as_json:
        print_json({"group": group, "moved": not dry_run, "partitions": rows})
    else:
        if dry_run:
            stderr().print("nothing was moved: this is a dry run")
        print_table(
            ["~TOPIC", ">PARTITION", ">BEFORE", ">AFTER"],
            [("-" if value is None else value for value in row.values()) for row in rows],
            empty="nothing to move",
        )
