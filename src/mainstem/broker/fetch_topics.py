"""Keeps the kernel's entries for topics that Fetch requests name, ready made.

A topic's entry is valid as long as the metadata has the very `Topic` it was made from: every change of a topic makes
a new one. So no change has to be reported here, and one lookup by name serves both names and ids.
"""

from __future__ import annotations

from uuid import UUID

from mainstem.kernel import FetchTopic, Verdict
from mainstem.model import Topic
from mainstem.ports import Metadata

TOPICS_KEPT_MAX = 100_000
"""Some hundred bytes each. Beyond it the oldest is dropped; making it again costs a microsecond or two."""

_UNKNOWN_NAME = FetchTopic(0, 0, Verdict.UNKNOWN_TOPIC)
_UNKNOWN_ID = FetchTopic(0, 0, Verdict.UNKNOWN_TOPIC_ID)


class FetchTopics:
    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._kept: dict[str | bytes, tuple[Topic, FetchTopic]] = {}

    def resolve(self, key: str | bytes) -> FetchTopic:
        """The topic of a name, or of the 16 bytes of an id."""
        kept = self._kept.get(key)
        if kept is not None:
            if self._metadata.topic(kept[0].name) is kept[0]:
                return kept[1]
            del self._kept[key]
        topic, unknown = self._find(key)
        if topic is None:
            return unknown
        if len(self._kept) >= TOPICS_KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        made = FetchTopic(topic.number, topic.partitions)
        self._kept[key] = topic, made
        return made

    def _find(self, key: str | bytes) -> tuple[Topic | None, FetchTopic]:
        if isinstance(key, bytes):
            return self._metadata.topic_by_id(UUID(bytes=key)), _UNKNOWN_ID
        return self._metadata.topic(key), _UNKNOWN_NAME
