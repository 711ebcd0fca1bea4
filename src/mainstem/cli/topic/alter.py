"""`mainstem topic alter`"""

from __future__ import annotations

import click

from mainstem.cli.parameters import names, options
from mainstem.cli.terminal.output import counted, print_json


@click.command("alter")
@click.argument("topic", type=names.TOPIC)
@click.option("-p", "--partitions", type=click.IntRange(min=1), metavar="N", help="Grow to this many partitions.")
@click.option(
    "--replication-factor",
    type=click.IntRange(min=1),
    metavar="N",
    help="Come to so many copies: partitions move to write groups with as many replicas.",
)
@options.configs
@click.option("--unset", metavar="KEY", multiple=True, help="Return a config to its default; repeatable.")
@options.both
@options.as_json
def command(
    topic: str,
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    unset: tuple[str, ...],
    bootstrap: str,
    http: str,
    as_json: bool,
) -> None:
    """Change a topic's configs, add partitions, or have it kept more or fewer times.

    Another replication factor moves every partition that has another one, with its slot, as `cluster move-queue` does;
    the command returns when the moves are asked for, and `cluster status` shows them. HTTP is asked for the write
    groups. To fewer copies a partition moves only if no queue of another topic shares its slot; what it had before
    keeps its copies until retention removes it.
    """
    from confluent_kafka.admin import (
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        NewPartitions,
        ResourceType,
    )

    from mainstem.cli.clients import kafka_node

    assigned = options.topic_configs(configs)
    if not assigned and not unset and partitions is None and replication_factor is None:
        raise click.UsageError("nothing to change: give --partitions, --replication-factor, --set or --unset")
    admin = kafka_node.admin(bootstrap)
    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in assigned.items()]
    entries += [ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE) for key in unset]
    if entries:
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        futures = admin.incremental_alter_configs([resource], request_timeout=kafka_node.REQUEST_SECONDS)
        kafka_node.outcome(futures[resource], f"the configs of {topic} were not changed")
    if partitions is not None:
        futures = admin.create_partitions(
            [NewPartitions(topic, partitions)], request_timeout=kafka_node.REQUEST_SECONDS
        )
        kafka_node.outcome(futures[topic], f"no partitions were added to {topic}")
    moving = 0
    if replication_factor is not None:
        from mainstem.cli.topic import replica_change

        moving = replica_change.change(bootstrap, http, topic, replication_factor)
    if as_json:
        print_json(
            {
                "topic": topic,
                "set": assigned,
                "unset": list(unset),
                "partitions": partitions,
                "replication_factor": replication_factor,
                "moving": moving,
            }
        )
    else:
        moves = f"; {counted(moving, 'partition')} to move: mainstem cluster status" if moving else ""
        click.echo(f"altered topic {topic}{moves}")
