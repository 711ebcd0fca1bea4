"""Keeps the kernel's entries for topics that Produce and Fetch requests name, ready made.

A topic's entry is valid as long as the metadata has the very `Topic` it was made from: every change of a topic makes
a new one. So no change has to be reported here, and one lookup by name serves both names and ids.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from mainstem.kernel import MalformedProduce, PlannedTopic, ProduceTopic, Verdict
from mainstem.model import TimestampType, Topic
from mainstem.ports import Metadata

TOPICS_MAX = 100_000
"""Some 300 bytes each. With more topics in use, each use may cost making the entry again, a microsecond or
two."""

_BYTES_MAX = 2**31 - 1

_UNKNOWN_NAME = ProduceTopic(refusal=Verdict.UNKNOWN_TOPIC)
_UNKNOWN_ID = ProduceTopic(refusal=Verdict.UNKNOWN_TOPIC_ID)
_FORBIDDEN = ProduceTopic(refusal=Verdict.NOT_AUTHORIZED)


class ProduceTopics:
    """The entries for Produce requests."""

    def __init__(self, metadata: Metadata, topics_max: int = TOPICS_MAX) -> None:
        self._metadata = metadata
        self._topics_max = topics_max
        self.min_insync_max = 1
        """The largest min.insync.replicas of any topic so far: while as many replicas are in sync everywhere,
        no topic needs to be checked."""
        self._kept: dict[bytes, tuple[Topic, ProduceTopic]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def by_name(self, key: bytes) -> ProduceTopic:
        """The topic of a name in UTF-8. Raises MalformedProduce for a name that is not UTF-8."""
        kept = self._kept.get(key)
        if kept is not None and self._metadata.topic(kept[0].name) is kept[0]:
            return kept[1]
        try:
            name = key.decode()
        except UnicodeDecodeError:
            raise MalformedProduce("a topic name is not UTF-8") from None
        return self._keep(key, self._metadata.topic(name), _UNKNOWN_NAME)

    def by_id(self, key: bytes) -> ProduceTopic:
        """The topic of the 16 bytes of an id."""
        kept = self._kept.get(key)
        if kept is not None and self._metadata.topic(kept[0].name) is kept[0]:
            return kept[1]
        return self._keep(key, self._metadata.topic_by_id(UUID(bytes=key)), _UNKNOWN_ID)

    def name_of(self, key: bytes) -> str | None:
        """The name of the topic of an id, once `by_id` was asked for it; None: there is no such topic."""
        kept = self._kept.get(key)
        return None if kept is None else kept[0].name

    def _keep(self, key: bytes, topic: Topic | None, unknown: ProduceTopic) -> ProduceTopic:
        self._kept.pop(key, None)
        if topic is None:
            return unknown
        if len(self._kept) >= self._topics_max:
            del self._kept[next(iter(self._kept))]
        made = _described(topic)
        self.min_insync_max = max(self.min_insync_max, topic.settings.min_insync_replicas)
        self._kept[key] = topic, made
        return made


class ProduceTopicsOf:
    """The entries for Produce requests of one client. `may_write`: to a topic of this name."""

    __slots__ = ("_may_write", "_topics")

    def __init__(self, topics: ProduceTopics, may_write: Callable[[str], bool]) -> None:
        self._topics = topics
        self._may_write = may_write

    def by_name(self, key: bytes) -> ProduceTopic:
        """As `ProduceTopics.by_name`. Whether a topic exists is not told to whom may not write to it."""
        try:
            allowed = self._may_write(key.decode())
        except UnicodeDecodeError:
            return self._topics.by_name(key)
        return self._topics.by_name(key) if allowed else _FORBIDDEN

    def by_id(self, key: bytes) -> ProduceTopic:
        found = self._topics.by_id(key)
        name = self._topics.name_of(key)
        return found if name is None or self._may_write(name) else _FORBIDDEN


def _described(topic: Topic) -> ProduceTopic:
    settings = topic.settings
    return ProduceTopic(
        number=topic.number,
        partitions=topic.partitions,
        message_bytes_max=min(settings.max_message_bytes, _BYTES_MAX),
        log_append_time=settings.message_timestamp_type is TimestampType.LOG_APPEND_TIME,
        timestamp_before_ms_max=settings.message_timestamp_before_max_ms,
        timestamp_after_ms_max=settings.message_timestamp_after_max_ms,
        compacted="compact" in settings.cleanup_policy,
        refusal=Verdict.INTERNAL_TOPIC if topic.internal else Verdict.OK,
    )


TOPICS_KEPT_MAX = 100_000
"""Some hundred bytes each. Beyond it the oldest is dropped; making it again costs a microsecond or two."""

_FETCH_UNKNOWN_NAME = PlannedTopic(0, 0, Verdict.UNKNOWN_TOPIC)
_FETCH_UNKNOWN_ID = PlannedTopic(0, 0, Verdict.UNKNOWN_TOPIC_ID)
_FETCH_FORBIDDEN = PlannedTopic(0, 0, Verdict.NOT_AUTHORIZED)


class FetchTopics:
    """The entries for Fetch requests."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._kept: dict[str | bytes, tuple[Topic, PlannedTopic]] = {}

    def resolve(self, key: str | bytes) -> PlannedTopic:
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
        made = PlannedTopic(topic.number, topic.partitions, spread=topic.settings.read_spread_enable)
        self._kept[key] = topic, made
        return made

    def resolve_for(self, key: str | bytes, may_read: Callable[[str], bool]) -> PlannedTopic:
        """As `resolve`, for a client that may read some topics, by their names. Whether a topic exists is not told to
        whom may not read it."""
        if isinstance(key, str):
            return self.resolve(key) if may_read(key) else _FETCH_FORBIDDEN
        found = self.resolve(key)
        kept = self._kept.get(key)
        return found if kept is None or may_read(kept[0].name) else _FETCH_FORBIDDEN

    def _find(self, key: str | bytes) -> tuple[Topic | None, PlannedTopic]:
        if isinstance(key, bytes):
            return self._metadata.topic_by_id(UUID(bytes=key)), _FETCH_UNKNOWN_ID
        return self._metadata.topic(key), _FETCH_UNKNOWN_NAME
