"""Reads that must see everything committed before they were asked: read index (section 6.4).

The leader notes its commit index, has a majority confirm that it still leads (a heartbeat that carries a context
number), and lets the read be answered once that index is applied. All reads of a turn share one context, and a
heartbeat that is repeated carries the newest. A follower asks its leader for the index and waits likewise.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import NamedTuple

from mainstem.raft.messages import Message, ReadIndex, ReadIndexResponse
from mainstem.raft.ready import ReadResult

REFUSED_INDEX = -1


class _Batch(NamedTuple):
    context: int
    read_index: int
    own: list[object]
    asked: list[ReadIndex]


class LeaderReads:
    """The reads of one leadership that wait for a majority."""

    def __init__(self, node_id: int, term: int, outbox: list[Message]) -> None:
        self._node_id = node_id
        self._term = term
        self._outbox = outbox
        self.context = 0
        """The newest context given out."""
        self._own: list[object] = []
        self._asked: list[ReadIndex] = []
        self._batches: deque[_Batch] = deque()
        self.waiting = 0

    def add(self, context: object) -> None:
        self._own.append(context)
        self.waiting += 1

    def add_asked(self, message: ReadIndex) -> None:
        self._asked.append(message)
        self.waiting += 1

    @property
    def due(self) -> bool:
        """Whether reads came in that no heartbeat asks about yet."""
        return bool(self._own or self._asked)

    def begin(self, commit_index: int) -> int:
        """Give the waiting reads a context, which the next heartbeat carries."""
        self.context += 1
        self._batches.append(_Batch(self.context, commit_index, self._own, self._asked))
        self._own, self._asked = [], []
        return self.context

    def confirm(self, context: int) -> list[tuple[int, object]]:
        """A majority confirmed everything up to `context`: this node's own reads of that, as (index, context).
        Those of followers are answered."""
        confirmed: list[tuple[int, object]] = []
        while self._batches and self._batches[0].context <= context:
            batch = self._batches.popleft()
            self.waiting -= len(batch.own) + len(batch.asked)
            confirmed.extend((batch.read_index, own) for own in batch.own)
            for message in batch.asked:
                self.answer(message, batch.read_index)
        return confirmed

    def answer(self, message: ReadIndex, read_index: int) -> None:
        self._outbox.append(ReadIndexResponse(self._node_id, message.sender, self._term, message.request, read_index))

    def own_waiting(self) -> list[object]:
        """This node's own waiting reads, which will not be confirmed any more."""
        return [own for batch in self._batches for own in batch.own] + self._own


class PendingReads:
    """The reads of this node: those forwarded to a leader, and those that wait until their index is applied."""

    def __init__(self, first_request: int) -> None:
        """`first_request` is drawn at random: an answer to a read of an earlier life must not find one of this."""
        self._requests = first_request
        self._sent_on: dict[int, object] = {}
        self._confirmed: list[tuple[int, int, object]] = []
        self._order = 0
        self._refused: list[object] = []

    @property
    def waiting(self) -> int:
        return len(self._sent_on) + len(self._confirmed)

    def send_on(self, context: object) -> int:
        """The number under which to ask the leader."""
        self._requests += 1
        self._sent_on[self._requests] = context
        return self._requests

    def answered(self, message: ReadIndexResponse) -> None:
        context = self._sent_on.pop(message.request, self)
        if context is self:
            return
        if message.index == REFUSED_INDEX:
            self._refused.append(context)
        else:
            self.confirmed(message.index, context)

    def confirmed(self, read_index: int, context: object) -> None:
        self._order += 1
        heapq.heappush(self._confirmed, (read_index, self._order, context))

    def refuse(self, contexts: list[object]) -> None:
        self._refused.extend(contexts)

    def leader_gone(self) -> None:
        """Refuse the forwarded reads: the leader will not answer them."""
        self._refused.extend(self._sent_on.values())
        self._sent_on.clear()

    @property
    def settled(self) -> bool:
        """Whether reads can be refused, or answered once their index is applied."""
        return bool(self._confirmed or self._refused)

    def take(self, applied_index: int) -> tuple[ReadResult, ...]:
        """The reads that can be answered, or refused, now."""
        if not self._confirmed and not self._refused:
            return ()
        results = [ReadResult(context, REFUSED_INDEX, False) for context in self._refused]
        self._refused.clear()
        while self._confirmed and self._confirmed[0][0] <= applied_index:
            read_index, _, context = heapq.heappop(self._confirmed)
            results.append(ReadResult(context, read_index, True))
        return tuple(results)
