"""Idempotent producers: which sequence numbers a queue has seen from each producer id.

Two layers. `committed` changes only when a block is applied, and is what checkpoints carry; the overlay holds
what was appended and not yet applied. A batch is checked against the overlay first. Were the two one, a
checkpoint could remember a batch that a crash then lost, and a retry of it would be taken for a duplicate.

Kafka's rules (KIP-98): five batches are remembered per producer and queue, and known again; the next one goes on
where the newest ended; a higher epoch starts at sequence 0, an older one is refused. And (KIP-360): a producer the
queue does not know may start at any sequence, as the queue may have forgotten it.

Ours is patience. A batch that skips sequence numbers is refused as `SKIPPED_SEQUENCE` for a while, which clients take
for "not now": what is missing may be on its way, behind it or refused a moment ago. Only then it is what Kafka says
at once, out of order; and only then a producer that is unknown starts in the middle. librdkafka, told "out of order"
for a batch that is not the next it expects an answer for, takes a new epoch and sends everything unanswered again: what
of that was committed is there twice. And of a batch accepted from an unknown producer it concludes that those before it
were, too: they are lost.

Refusals are counted by this node alone, never in a checkpoint, and forgotten with the overlay. Their table is small
and fixed. Producers that share a place share its patience: what one of them was refused is missing from the other's.
What resets a count is its producer's batch in order, for which there is a mark of who was refused last: without it a
busy producer would reset the count of another again and again, who would never be heard.
"""

from __future__ import annotations

import itertools
import struct
from array import array
from collections.abc import Iterable
from typing import NamedTuple

from mainstem.kernel.errors import MalformedImage
from mainstem.kernel.layout import REMEMBERED_BATCHES, SEQUENCE_MODULUS
from mainstem.model import Outcome

EXPIRE_LIMIT = 1 << 14
"""Producers looked at per call of `expire`: a few milliseconds of the event loop even if all of them are gone."""

PATIENCE = 100
"""Refusals of a known producer's batches that skip sequence numbers before they are out of order. With the backoff of
Kafka's clients (100 ms, growing to 1 s) at least 2.5 s, when four batches wait for the missing one: longer than a
leader takes to be elected; and at most 100 s, within the two minutes after which they give a batch up."""

UNKNOWN_PATIENCE = 10
"""The same for a producer that is unknown, before it may start there: twice as many batches as clients have in flight,
so that all of two volleys are refused whose first was."""

COUNTERS = 1024
"""Counts of refusals of known producers, and as many of unknown ones: 8 KiB. What is counted is rare and soon over."""

COUNT_MASK = 0x7F
SPREAD = 0x9E3779B97F4A7C15

ROW = struct.Struct("<QqqhB5x" + REMEMBERED_BATCHES * "iiqq")
"""One producer in an image, 152 bytes: queue id, producer id, last timestamp (ms), epoch, count of batches, five
bytes of 0, then five batches of base sequence, last sequence, base offset, block index, oldest first; those that
are not there are 0."""

QUEUE_ID_MASK = (1 << 64) - 1


class SeenBatch(NamedTuple):
    base_sequence: int
    last_sequence: int
    base_offset: int
    block_index: int


class ProducerState(NamedTuple):
    """What one queue knows of one producer; `batches` oldest first, at most five."""

    epoch: int
    batches: tuple[SeenBatch, ...]
    last_timestamp_ms: int


class Verdict(NamedTuple):
    """`outcome` OK with `duplicate` None: append it; with a batch: answer with that batch's offset, once its
    block is committed."""

    outcome: Outcome
    duplicate: SeenBatch | None = None


FRESH = Verdict(Outcome.OK)
STALE_EPOCH = Verdict(Outcome.STALE_PRODUCER_EPOCH)
SKIPPED = Verdict(Outcome.SKIPPED_SEQUENCE)
OUT_OF_ORDER = Verdict(Outcome.OUT_OF_ORDER_SEQUENCE)

Key = tuple[int, int]
"""(queue id, producer id)"""


def key_of(queue_id: int, producer_id: int) -> Key:
    """Queue ids may come as the signed numbers that cells are read as."""
    return queue_id & QUEUE_ID_MASK, producer_id


class ProducerStates:
    """The producers of all queues of one write group."""

    def __init__(self) -> None:
        self._committed: dict[Key, ProducerState] = {}
        self._overlay: dict[Key, ProducerState] = {}
        self._refusals = array("I", bytes(4 * 2 * COUNTERS))
        """At each place a count in the lowest 7 bits, above it the mark of who was refused last; unknown producers' in
        the second half. 0: nobody."""
        self._unswept: list[Key] = []
        """What `expire` has yet to look at in this round."""

    def check(
        self, queue_id: int, producer_id: int, epoch: int, base_sequence: int, record_count: int
    ) -> Verdict:
        """May this batch be appended?"""
        key = key_of(queue_id, producer_id)
        place, mark = place_of(*key)
        state = self._overlay.get(key) or self._committed.get(key)
        if state is None:
            place += COUNTERS
            if base_sequence == 0:
                return self._in_order(place, mark)
            return self._refused(place, mark, UNKNOWN_PATIENCE, FRESH)
        if epoch < state.epoch:
            return STALE_EPOCH
        if epoch > state.epoch:
            if base_sequence == 0:
                return self._in_order(place, mark)
            return self._refused(place, mark, PATIENCE, OUT_OF_ORDER)
        last_sequence = last_sequence_of(base_sequence, record_count)
        for seen in state.batches:
            if seen.base_sequence == base_sequence and seen.last_sequence == last_sequence:
                return Verdict(Outcome.OK, seen)
        expected = (state.batches[-1].last_sequence + 1) % SEQUENCE_MODULUS if state.batches else 0
        if base_sequence == expected:
            return self._in_order(place, mark)
        if (base_sequence - expected) % SEQUENCE_MODULUS < SEQUENCE_MODULUS // 2:
            return self._refused(place, mark, PATIENCE, OUT_OF_ORDER)
        return OUT_OF_ORDER

    def _in_order(self, place: int, mark: int) -> Verdict:
        if self._refusals[place] ^ mark <= COUNT_MASK:
            self._refusals[place] = 0
        return FRESH

    def _refused(self, place: int, mark: int, patience: int, at_last: Verdict) -> Verdict:
        """Once more; after as many times as there is patience for, `at_last`, and counting begins anew."""
        count = self._refusals[place] & COUNT_MASK
        if count >= patience:
            self._refusals[place] = 0
            return at_last
        self._refusals[place] = mark | count + 1
        return SKIPPED

    def appended(
        self,
        queue_id: int,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        record_count: int,
        base_offset: int,
        block_index: int,
        now_ms: int,
    ) -> None:
        """Remember a batch that went into block `block_index`, in the overlay."""
        key = key_of(queue_id, producer_id)
        state = self._overlay.get(key) or self._committed.get(key)
        self._overlay[key] = grown(
            state, epoch, base_sequence, record_count, base_offset, block_index, now_ms
        )

    def applied(
        self,
        queue_id: int,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        record_count: int,
        base_offset: int,
        block_index: int,
        now_ms: int,
    ) -> None:
        """Remember a batch of an applied block for good."""
        key = key_of(queue_id, producer_id)
        state = self._committed.get(key)
        self._committed[key] = grown(
            state, epoch, base_sequence, record_count, base_offset, block_index, now_ms
        )
        waiting = self._overlay.get(key)
        if waiting is not None and waiting.batches[-1].block_index <= block_index:
            del self._overlay[key]

    def discard_overlay(self) -> None:
        """Forget everything appended and not applied, and what was refused."""
        self._overlay.clear()
        self._refusals = array("I", bytes(4 * 2 * COUNTERS))

    def forget_topics(self, topic_numbers: Iterable[int]) -> None:
        """Forget the producers of all queues of these topics, in one look at all of them."""
        gone = set(topic_numbers)
        for states in (self._committed, self._overlay):
            for key in [key for key in states if key[0] >> 32 in gone]:
                del states[key]

    def expire(self, before_ms: int, limit: int = EXPIRE_LIMIT) -> int:
        """Look at `limit` producers, going on where the last call ended, and forget those last seen before a
        time (ms); how many. A limit of `len` or more is a look at all."""
        if limit >= len(self._committed) or not self._unswept:
            self._unswept = list(self._committed)
        looked_at, self._unswept = self._unswept[:limit], self._unswept[limit:]
        gone = 0
        for key in looked_at:
            state = self._committed.get(key)
            if state is not None and state.last_timestamp_ms < before_ms:
                del self._committed[key]
                gone += 1
        return gone

    # --- checkpoint -------------------------------------------------------------------------------------

    def dump(self) -> list[tuple[int, int, ProducerState]]:
        """(queue id, producer id, state) of all that was applied, by queue and producer."""
        return [
            (queue_id, producer_id, self._committed[queue_id, producer_id])
            for queue_id, producer_id in sorted(self._committed)
        ]

    def load(self, states: Iterable[tuple[int, int, ProducerState]]) -> None:
        """Take over what `dump` gave."""
        for queue_id, producer_id, (epoch, batches, last_timestamp_ms) in states:
            self._committed[key_of(queue_id, producer_id)] = ProducerState(
                epoch, batches[-REMEMBERED_BATCHES:], last_timestamp_ms
            )

    def image(self) -> bytes:
        """What `dump` gives, as rows of `ROW`."""
        rows = bytearray()
        for queue_id, producer_id, (epoch, batches, last_timestamp_ms) in self.dump():
            cells = list(itertools.chain.from_iterable(batches))
            cells += [0] * (4 * REMEMBERED_BATCHES - len(cells))
            rows += ROW.pack(queue_id, producer_id, last_timestamp_ms, epoch, len(batches), *cells)
        return bytes(rows)

    def load_image(self, image: bytes) -> None:
        """Take over what `image` gave. Raises `MalformedImage`, and nothing was taken over."""
        if len(image) % ROW.size:
            raise MalformedImage(f"{len(image)} bytes are not a number of rows of {ROW.size}")
        states = []
        for number, (queue_id, producer_id, last_timestamp_ms, epoch, count, *cells) in enumerate(
            ROW.iter_unpack(image)
        ):
            if count > REMEMBERED_BATCHES:
                raise MalformedImage(f"row {number} has {count} batches")
            batches = tuple(SeenBatch(*cells[4 * place : 4 * place + 4]) for place in range(count))
            states.append((queue_id, producer_id, ProducerState(epoch, batches, last_timestamp_ms)))
        self.load(states)

    def __len__(self) -> int:
        return len(self._committed)


def place_of(queue_id: int, producer_id: int) -> tuple[int, int]:
    """Where refusals of a producer are counted, and its mark there: the highest ten bits of a hash, the next 25."""
    spread = (queue_id * SPREAD + producer_id) * SPREAD
    return spread >> 54 & COUNTERS - 1, spread >> 22 & 0xFFFFFF80


def last_sequence_of(base_sequence: int, record_count: int) -> int:
    return (base_sequence + record_count - 1) % SEQUENCE_MODULUS


def grown(
    state: ProducerState | None,
    epoch: int,
    base_sequence: int,
    record_count: int,
    base_offset: int,
    block_index: int,
    now_ms: int,
) -> ProducerState:
    """A producer's state after one more batch."""
    seen = SeenBatch(base_sequence, last_sequence_of(base_sequence, record_count), base_offset, block_index)
    if state is None or state.epoch != epoch:
        return ProducerState(epoch, (seen,), now_ms)
    return ProducerState(epoch, (*state.batches[1 - REMEMBERED_BATCHES :], seen), now_ms)
