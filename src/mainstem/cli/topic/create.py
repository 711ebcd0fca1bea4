"""`mainstem topic create`"""

from __future__ import annotations

import click

from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_json


@click.command("create")
@click.argument("topic")
@click.option(
    "-p",
    "--partitions",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many partitions. Default: the node's num_partitions.",
)
@click.option(
    "--replication-factor",
    type=click.IntRange(min=1),
    metavar="N",
    help="Copies of every partition: those that a class of write groups keeps. Default: the node's.",
)
@options.configs
@click.option("--if-not-exists", is_flag=True, help="Succeed where the topic exists already, and leave it as it is.")
@options.kafka_only
@options.as_json
def command(
    topic: str,
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Create a topic."""
    from confluent_kafka.admin import NewTopic

    from mainstem.cli.clients import kafka_node

    wanted = NewTopic(
        topic,
        num_partitions=partitions or -1,
        replication_factor=replication_factor or -1,
        config=options.topic_configs(configs),
    )
    admin = kafka_node.admin(bootstrap)
    future = admin.create_topics([wanted], request_timeout=kafka_node.REQUEST_SECONDS)[topic]
    created = kafka_node.created(future, f"topic {topic} was not created", exists_is_fine=if_not_exists)
    if as_json:
        print_json({"topic": topic, "created": created})
    else:
        click.echo(f"created topic {topic}" if created else f"topic {topic} exists already")
