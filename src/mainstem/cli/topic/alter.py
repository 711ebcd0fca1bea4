"""`mainstem topic alter`"""

from __future__ import annotations

import click

from mainstem.cli.parameters import names, options
from mainstem.cli.terminal.output import print_json


@click.command("alter")
@click.argument("topic", type=names.TOPIC)
@click.option("-p", "--partitions", type=click.IntRange(min=1), metavar="N", help="Grow to this many partitions.")
@options.configs
@click.option("--unset", metavar="KEY", multiple=True, help="Return a config to its default; repeatable.")
@options.kafka_only
@options.as_json
def command(
    topic: str,
    partitions: int | None,
    configs: tuple[str, ...],
    unset: tuple[str, ...],
    bootstrap: str,
    as_json: bool,
) -> None:
    """Change a topic's configs or add partitions."""
    from confluent_kafka.admin import (
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        NewPartitions,
        ResourceType,
    )

    from mainstem.cli.clients import kafka_node

    assigned = options.topic_configs(configs)
    if not assigned and not unset and partitions is None:
        raise click.UsageError("nothing to change: give --partitions, --set or --unset")
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
    if as_json:
        print_json({"topic": topic, "set": assigned, "unset": list(unset), "partitions": partitions})
    else:
        click.echo(f"altered topic {topic}")
