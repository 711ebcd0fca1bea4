"""The broker of a queue knows facts that explain a lag: where the queue ends, how old a message is, and whether a quota
holds a client back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from mainstem.errors import MainstemError
from mainstem.lru import Lru
from mainstem.model import Buffer, Outcome, QueueRead, TimestampType
from mainstem.ports import MessageStore
from mainstem.protocol.errors import ProtocolError
from mainstem.protocol.records import Compression, StoredBatch, stored_batches
from mainstem.protocol.records.lookup import look_into

ENDS_ONLY = -1
"""In place of an offset: nobody asks for a time."""

TIMES_KEPT = 10_000
"""Times of messages that are remembered, about 2 MB: an idle group's first message stays the same, and may lie in an
object store."""

WALKED_BYTES_MAX = 64 * 1024
"""A batch that is larger, or compressed, is judged by its header: the time of a message in it is then as near as its
first and its last one are."""

_ANY_TIME = -(1 << 62)


class QueueAsked(NamedTuple):
    queue_id: int
    first: int
    """The first offset that a group has not committed, whose time is asked for; `ENDS_ONLY`: none is."""


class QueueFacts(NamedTuple):
    log_start: int
    end: int
    time_ms: int | None
    """Of the message; None: it was not asked for, is not there, or could not be read."""


class ClientAsked(NamedTuple):
    client_id: str
    host: str


class LagFacts(NamedTuple):
    """In the order of the questions."""

    queues: Sequence[QueueFacts | None]
    """None: the node does not have the queue."""
    throttled: Sequence[bool]


class QueueFactsHere:
    """Of this node. `held_back` says whether a quota holds a client at an address back now."""

    def __init__(self, store: MessageStore, held_back: Callable[[str, str], bool]) -> None:
        self._store = store
        self._held_back = held_back
        self._times: Lru[QueueAsked, int] = Lru(TIMES_KEPT)

    async def facts(self, queues: Sequence[QueueAsked], clients: Iterable[ClientAsked] = ()) -> LagFacts:
        throttled = [self._held_back(client.client_id, client.host) for client in clients]
        try:
            offsets = await self._store.offsets([asked.queue_id for asked in queues])
        except MainstemError:
            return LagFacts([None] * len(queues), throttled)
        found: list[QueueFacts | None] = []
        for asked, known in zip(queues, offsets, strict=True):
            if known is None:
                found.append(None)
                continue
            time_ms = None
            first = max(asked.first, known.log_start)
            if asked.first != ENDS_ONLY and first < known.high_watermark:
                time_ms = await self._time(QueueAsked(asked.queue_id, first))
            found.append(QueueFacts(known.log_start, known.high_watermark, time_ms))
        return LagFacts(found, throttled)

    async def _time(self, message: QueueAsked) -> int | None:
        """Of the first message at or behind an offset."""
        known = self._times.get(message)
        if known is not None:
            return known
        try:
            [found] = await self._store.read([QueueRead(message.queue_id, message.first, 1)], 1)
            time_ms = _time_in(found.batches, message.first) if found.outcome is Outcome.OK else None
        except (MainstemError, ProtocolError, OSError):
            return None
        if time_ms is not None:
            self._times.put(message, time_ms)
        return time_ms


def _time_in(batches: Iterable[Buffer], offset: int) -> int | None:
    for data in batches:
        for batch in stored_batches(data):
            header = batch.header
            if header.is_control or header.base_offset + header.last_offset_delta < offset:
                continue
            time_ms = _time_of(batch, offset)
            if time_ms is not None:
                return time_ms
    return None


def _time_of(batch: StoredBatch, offset: int) -> int | None:
    header = batch.header
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return header.max_timestamp
    if header.compression is Compression.NONE and len(batch.data) <= WALKED_BYTES_MAX:
        found = look_into(batch, _ANY_TIME, offset).found
        return None if found is None else found.timestamp
    behind = max(offset - header.base_offset, 0) / max(header.last_offset_delta, 1)
    return round(header.base_timestamp + behind * (header.max_timestamp - header.base_timestamp))
