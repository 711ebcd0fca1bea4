"""The topic of a measurement: found or created, and deleted at the end when it was created for it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import click
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic

from mainstem.cli.clients import kafka_node
from mainstem.cli.errors import RequestRefused

DEFAULT = "mainstem-bench"
PARTITIONS_MAX = 1_000_000
"""More is a slip of the finger."""


class BenchTopic(NamedTuple):
    name: str
    partitions: int
    created: bool
    """By this run, so that it is this run's to delete."""


@contextlib.contextmanager
def bench_topic(
    admin: AdminClient, name: str, *, partitions: int | None, partitions_default: int, keep: bool | None
) -> Iterator[BenchTopic]:
    """The topic, for as long as the block runs. `keep` None deletes what it created and nothing else. Close every
    client of the topic within the block: one that lives on may create it again.

    Raises RequestRefused, also where `partitions` is given and the topic has another number."""
    topic = _found_or_created(admin, name, partitions, partitions_default)
    try:
        yield topic
    finally:
        if keep is False or (keep is None and topic.created):
            future = admin.delete_topics([name], request_timeout=kafka_node.REQUEST_SECONDS)[name]
            kafka_node.outcome(future, f"topic {name} was not deleted")


def partitions_of(admin: AdminClient, name: str) -> int | None:
    """The number of a topic's partitions, None where there is no such topic. Raises RequestRefused."""
    future = admin.describe_topics(TopicCollection([name]), request_timeout=kafka_node.REQUEST_SECONDS)[name]
    try:
        return len(future.result(timeout=kafka_node.REQUEST_SECONDS + 5).partitions)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        raise RequestRefused(f"topic {name}: {kafka_node.reason(error)}") from None
    except TimeoutError:
        raise RequestRefused(f"topic {name}: no answer within {kafka_node.REQUEST_SECONDS:.0f} s") from None


def _found_or_created(admin: AdminClient, name: str, partitions: int | None, default: int) -> BenchTopic:
    there = partitions_of(admin, name)
    if there is not None:
        if partitions not in (None, there):
            raise RequestRefused(f"topic {name} exists already and has {there} partitions, not {partitions}")
        return BenchTopic(name, there, created=False)
    wanted = NewTopic(name, num_partitions=partitions or default, replication_factor=-1)
    future = admin.create_topics([wanted], request_timeout=kafka_node.REQUEST_SECONDS)[name]
    kafka_node.outcome(future, f"topic {name} was not created")
    return BenchTopic(name, partitions or default, created=True)


def topic_options(*, partitions_default: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`topic`, `partitions` (None where not given) and `keep` (None likewise) for a command."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in (
            click.option(
                "--keep/--delete",
                default=None,
                help="Keep or delete the topic at the end. Default: delete it if this run created it.",
            ),
            click.option(
                "-p",
                "--partitions",
                type=click.IntRange(1, PARTITIONS_MAX),
                metavar="N",
                help=f"Partitions of a topic that the run creates.  [default: {partitions_default}]",
            ),
            click.option(
                "-t",
                "--topic",
                default=DEFAULT,
                show_default=True,
                help="The topic; the run creates it where it does not exist.",
            ),
        ):
            command = option(command)
        return command

    return decorate
