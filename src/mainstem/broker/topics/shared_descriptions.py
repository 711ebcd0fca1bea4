"""Encodes the description of all topics once for all clients that ask for it while nothing changes.

Consumers of patterns ask for all topics, each of them after every reconnect: a million partitions take some thirty
megabytes and a tenth of a second of the event loop. The encoded form is kept as long as the topics, the leaders and
replicas of their write groups, and the nodes stay the same. A request that comes while it is being encoded waits for
that; one encoding is under way per kind of request, so that changes that come faster than it takes do not pile up.

Requests that came after a change get a new encoding. Requests from before may see the change or not, as if each had
been answered alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Set as AbstractSet

from mainstem.broker.queue_routing import QueueRouting
from mainstem.broker.topics.topic_descriptions import TopicDescriptions
from mainstem.model import SharedBytes, Topic, WriteGroupNodes
from mainstem.ports import Metadata, QueueLeadership
from mainstem.protocol.encoded_array import EncodedArray
from mainstem.turns import Turns

KINDS_KEPT = 3
"""Versions of requests, with and without permissions, that are kept: the clients of a cluster are of few
kinds, and each takes some thirty bytes per partition."""


class _Kept:
    def __init__(
        self,
        topics: tuple[Topic, ...],
        alive: frozenset[int],
        replicas: dict[int, WriteGroupNodes],
        routed: tuple[tuple[int, ...], frozenset[int]],
        encoded: EncodedArray,
    ) -> None:
        self.routed = routed
        self.topics = topics
        self.alive = alive
        self.replicas = replicas
        self.encoded = encoded

    def holds(
        self,
        topics: tuple[Topic, ...],
        alive: AbstractSet[int],
        leadership: QueueLeadership,
        routed: tuple[tuple[int, ...], frozenset[int]],
    ) -> bool:
        """Whether it would be encoded the same now. Every change of a topic makes a new `Topic`, so comparing
        a hundred thousand compares pointers."""
        return (
            self.alive == alive
            and self.routed == routed
            and self.topics == topics
            and all(leadership.replicas(group) == replicas for group, replicas in self.replicas.items())
        )


class SharedDescriptions:
    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], _Kept] = {}
        """By version and operations, in order of use, the newest last."""
        self._under_way: dict[tuple[int, int], asyncio.Future[None]] = {}
        self.encodings = 0
        """How many times all topics were encoded."""

    async def encode(
        self,
        metadata: Metadata,
        leadership: QueueLeadership,
        alive: AbstractSet[int],
        version: int,
        operations: int,
        turns: Turns,
        routing: QueueRouting | None = None,
        apart: frozenset[int] = frozenset(),
    ) -> EncodedArray:
        """The topics of an answer that describes all of them."""
        kind = version, operations
        while (under_way := self._under_way.get(kind)) is not None:
            await asyncio.shield(under_way)
        topics = tuple(metadata.topics())
        kept = self._kept.pop(kind, None)
        routed = routing.brokers() if routing is not None else (), apart
        if kept is not None and kept.holds(topics, alive, leadership, routed):
            self._kept[kind] = kept
            return kept.encoded
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way[kind] = done
        try:
            descriptions = TopicDescriptions(leadership, alive, version, operations, turns, routing, apart)
            encoded = await descriptions.encode(topics)
            shared = EncodedArray(encoded.count, [SharedBytes(part) for part in encoded.buffers])
            self.encodings += 1
            self._kept[kind] = _Kept(topics, frozenset(alive), descriptions.known, routed, shared)
            while len(self._kept) > KINDS_KEPT:
                del self._kept[next(iter(self._kept))]
            return shared
        finally:
            del self._under_way[kind]
            done.set_result(None)
