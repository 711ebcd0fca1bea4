"""The bytes of the objects that say which topics a cluster has, for whoever has nothing but the store: packed files and
the chain know topics by their numbers alone.

Objects are frames, as those of the chain are (`chain_format.py`):

    list     a frame with the version, frames with some topics each, and a frame without any
    head     one frame: the version of the newest list

The version is that of the metadata, the index of its log's entry: a list of a version has the same bytes, whichever
node writes it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import msgspec

from mainstem.model import Buffer, Topic, TopicsAsOf, is_slot_table
from mainstem.storage.errors import FormatError
from mainstem.storage.remote.chain.chain_format import decoded, frame, frames, only_frame

LIST_MAGIC, TOPIC_HEAD_MAGIC = b"MSRTOP01", b"MSRTOPH1"

TOPICS_PER_FRAME = 1_000
"""Some 100 KB, and a millisecond of the event loop."""


class ListedTopic(msgspec.Struct, frozen=True, array_like=True):
    name: str
    number: int
    topic_id: uuid.UUID
    partitions: int
    replication_factor: int
    configs: dict[str, str]
    """Explicit overrides only, under Kafka's names."""
    internal: bool


class TopicListStart(msgspec.Struct, frozen=True, array_like=True):
    version: int
    next_number: int
    """Topics of smaller numbers that are not in the list were deleted."""
    write_groups: int
    topics: int
    """How many follow."""
    slots: list[int] = []
    """The write group of each slot, class by class, where they are not in turns."""


class TopicHead(msgspec.Struct, frozen=True, array_like=True):
    """A hint: there may be a later list."""

    version: int


class TopicList(NamedTuple):
    """A list of topics, as it was read."""

    version: int
    next_number: int
    write_groups: int
    topics: tuple[ListedTopic, ...]
    """By their numbers."""
    slots: tuple[int, ...] = ()
    """The write group of each slot, class by class; empty: they are in turns."""


def listed(topic: Topic) -> ListedTopic:
    return ListedTopic(
        name=topic.name,
        number=topic.number,
        topic_id=topic.topic_id,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=dict(sorted(topic.configs.items())),
        internal=topic.internal,
    )


def encode_topic_list(now: TopicsAsOf) -> Iterator[bytes]:
    """The frames of a list."""
    left = iter(sorted(now.topics, key=lambda topic: topic.number))
    start: list[object] = [*now[:3], len(now.topics)]
    if now.slots:  # without them the bytes are those that versions write which know of none
        start.append(list(now.slots))
    yield frame(LIST_MAGIC, start)
    while some := list(islice(left, TOPICS_PER_FRAME)):
        yield frame(LIST_MAGIC, [listed(topic) for topic in some])
    yield frame(LIST_MAGIC, [])


def decode_topic_list(content: Buffer, where: str, version: int) -> TopicList:
    """Raises `FormatError` naming `where` if this is not the whole list of this version."""
    payloads = frames(content, LIST_MAGIC, where)
    start = decoded(next(payloads, b""), TopicListStart, where)
    topics: list[ListedTopic] = []
    ended = False
    for payload in payloads:
        some = decoded(payload, list[ListedTopic], where)
        if ended:
            raise FormatError(f"{where}: goes on behind its end")
        ended = not some
        topics += some
    if start.slots and not is_slot_table(start.slots, start.write_groups):
        raise FormatError(f"{where}: slots of write groups that there are not, or not all slots")
    if start.version != version or not ended or len(topics) != start.topics:
        raise FormatError(
            f"{where}: has {len(topics)} of {start.topics} topics of version {start.version}"
            + ("" if ended else ", and no end")
        )
    return TopicList(start.version, start.next_number, start.write_groups, tuple(topics), tuple(start.slots))


def encode_topic_head(version: int) -> bytes:
    return frame(TOPIC_HEAD_MAGIC, TopicHead(version))


def decode_topic_head(content: Buffer, where: str) -> int:
    """The version of the newest list. Raises `FormatError` naming `where`."""
    return only_frame(content, TOPIC_HEAD_MAGIC, TopicHead, where).version
