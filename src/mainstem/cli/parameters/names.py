"""Arguments that name something on a node, which shells complete by asking it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem

from mainstem.cli.parameters.options import OptionType

_ANSWER_SECONDS = 2.0
"""A person waits for a completion with a finger on the key."""


class NameType(OptionType[str]):
    """Any text. `listed` asks a node, by its Kafka address, for the names there are."""

    def __init__(self, name: str, listed: Callable[[str], Iterable[str]]) -> None:
        self.name = name
        self._listed = listed

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> str:
        return str(value)

    def shell_complete(
        self, context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """None where no node answers: a shell shows no errors."""
        names: list[str] = []
        with contextlib.suppress(Exception):
            names = sorted(self._listed(context.params["bootstrap"]))
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _topics(bootstrap: str) -> Iterable[str]:
    from mainstem.cli.clients import kafka_node

    return list(kafka_node.admin(bootstrap).list_topics(timeout=_ANSWER_SECONDS).topics)


def _groups(bootstrap: str) -> Iterable[str]:
    from mainstem.cli.clients import kafka_node

    admin = kafka_node.admin(bootstrap)
    found = admin.list_consumer_groups(request_timeout=_ANSWER_SECONDS).result(timeout=_ANSWER_SECONDS)
    return [group.group_id for group in found.valid]


TOPIC = NameType("topic", _topics)
GROUP = NameType("group", _groups)


def queue_of(text: str, else_take: str = "") -> tuple[str, int]:
    """The topic and partition of TOPIC:PARTITION. Raises UsageError, with what to do instead."""
    topic, colon, partition = text.rpartition(":")
    if not colon or not topic or not (partition.isascii() and partition.isdigit()):
        raise click.UsageError(f"{text!r} is not TOPIC:PARTITION{else_take}")
    return topic, int(partition)
