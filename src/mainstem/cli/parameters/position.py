"""The place in a queue to stand at: `beginning`, `end`, an offset, `-N` (the last N), a time or an age. Used by consume
and by reset-offsets, so that both understand the same words."""

from __future__ import annotations

import contextlib
import datetime
import enum
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import click
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from mainstem.cli.clients import kafka_node
from mainstem.cli.parameters.options import OptionType
from mainstem.quantities import milliseconds_of

HELP = (
    "beginning, end, an offset, -N (the last N of each partition), a time (ISO 8601, UTC unless it says otherwise), "
    "@MS since 1970, or an age such as 1h or 7d."
)


class Anchor(enum.Enum):
    BEGINNING = "beginning"
    END = "end"
    OFFSET = "offset"
    TIME = "time"


class Position(NamedTuple):
    anchor: Anchor
    value: int = 0
    """END: this many before it; OFFSET: the offset; TIME: ms since the epoch."""


class PositionType(OptionType[Position]):
    """The option type; a wrong value names what is allowed."""

    name = "WHERE"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Position:
        if isinstance(value, Position):
            return value
        position = parsed(str(value))
        if position is None:
            self.fail(f"{value!r} is not a valid position; expected {HELP}", param, context)
        return position


def parsed(text: str, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> Position | None:
    """The position a text names, an age before `now_ms` (ms since the epoch); None when it names none."""
    if text in ("beginning", "end"):
        return Position(Anchor(text))
    if re.fullmatch(r"\d{1,18}", text):
        return Position(Anchor.OFFSET, int(text))
    if re.fullmatch(r"-\d{1,18}", text):
        return Position(Anchor.END, -int(text))
    if re.fullmatch(r"@\d{1,15}", text):
        return Position(Anchor.TIME, int(text[1:]))
    with contextlib.suppress(ValueError):
        return Position(Anchor.TIME, max(now_ms() - milliseconds_of(text), 0))
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return Position(Anchor.TIME, int(moment.timestamp() * 1000))


def bounds(admin: AdminClient, queues: Iterable[tuple[str, int]]) -> dict[tuple[str, int], tuple[int, int]]:
    """(log start, high watermark) of queues. Raises RequestRefused."""
    wanted = list(queues)
    starts = listed(admin, wanted, OffsetSpec.earliest())
    ends = listed(admin, wanted, OffsetSpec.latest())
    return {queue: (starts[queue], ends[queue]) for queue in wanted}


def resolved(
    admin: AdminClient, ranges: Mapping[tuple[str, int], tuple[int, int]], position: Position
) -> dict[tuple[str, int], int]:
    """The offset a position means in each queue, within its (log start, high watermark)."""
    wanted = {}
    if position.anchor is Anchor.TIME:
        wanted = listed(admin, ranges, OffsetSpec.for_timestamp(position.value))
    offsets = {}
    for queue, (start, end) in ranges.items():
        match position.anchor:
            case Anchor.BEGINNING:
                offset = start
            case Anchor.END:
                offset = end - position.value
            case Anchor.OFFSET:
                offset = position.value
            case Anchor.TIME:
                # -1: no record is as young as that.
                offset = wanted[queue] if wanted[queue] >= 0 else end
        offsets[queue] = min(max(offset, start), end)
    return offsets


def listed(admin: AdminClient, queues: Iterable[tuple[str, int]], spec: OffsetSpec) -> dict[tuple[str, int], int]:
    """The offsets that ListOffsets answers for many queues at once. Raises RequestRefused naming the queue."""
    requests = {TopicPartition(topic, partition): spec for topic, partition in queues}
    if not requests:
        return {}
    futures = admin.list_offsets(requests, request_timeout=kafka_node.REQUEST_SECONDS)
    return {
        (queue.topic, queue.partition): kafka_node.outcome(
            future, f"no offsets of {queue.topic} [{queue.partition}]"
        ).offset
        for queue, future in futures.items()
    }


def partitions_of(admin: AdminClient, topic: str) -> list[int]:
    """Partitions of a topic. Raises RequestRefused for an unknown one."""
    from confluent_kafka import TopicCollection

    futures = admin.describe_topics(TopicCollection([topic]), request_timeout=kafka_node.REQUEST_SECONDS)
    description = kafka_node.outcome(futures[topic], f"topic {topic}")
    return sorted(partition.id for partition in description.partitions)
