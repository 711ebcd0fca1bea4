"""Producer states: the sequence numbers that a queue has seen from each idempotent producer.

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

The committed states kept here are a cache of what the node has in files (`producer_files.py`). One that
changed is written there sooner or later (`changed`); one that is there as it is here may go (`evict`). Of those that
have gone the kernel knows the names (`set_cold`), and answers `COLD_PRODUCER` for them, until the node has read them
(`warm`). A block is applied without reading: what it brings for a producer that has gone makes a state without its
past, `partial`, and the two are put together when they meet. A producer that came back since it was last looked at is
passed over, so that a client that invents ids pushes out its own.

A batch that is applied again changes nothing: at or below a producer's newest, it is known.

A marker that ends a transaction has no sequence. If its epoch is newer than the producer's (KIP-890), it stands where a
batch would, with sequences before 0, so that the next batch starts at sequence 0; of the same epoch it changes no more
than when the producer was last seen.

Refusals are counted by this node alone, never in a checkpoint, and forgotten with the overlay. Their table is small and
fixed. Producers that share a place share its patience: what one of them was refused is missing from the other's. A
count is reset by its producer's batch in order, for which there is a mark of who was refused last: without it a busy
producer would reset the count of another again and again, who would never be heard."""

from __future__ import annotations

import itertools
import struct
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mainstem.kernel.errors import MalformedImage
from mainstem.kernel.layout import REMEMBERED_BATCHES, SEQUENCE_MODULUS
from mainstem.model import Buffer, Outcome

EXPIRE_LIMIT = 1 << 14
"""Producers looked at per call of `expire`: a few milliseconds of the event loop even if all of them are gone."""

INDEX_MAX = (1 << 63) - 1
"""An index behind all blocks."""

PATIENCE = 100
"""Refusals of a known producer's batches that skip sequence numbers before they are out of order. With the backoff of
Kafka's clients (100 ms, growing to 1 s) at least 2.5 s, when four batches wait for the missing one: longer than a
leader takes to be elected; and at most 100 s, within the two minutes after which they give a batch up."""

UNKNOWN_PATIENCE = 10
"""Refusals of an unknown producer before it may start there: twice as many batches as clients have in flight, so that
all of two volleys are refused whose first was."""

COUNTERS = 1024
"""Counts of refusals of known producers, and as many of unknown ones: 8 KiB. Counted refusals are rare and soon
over."""

COUNT_MASK = 0x7F
SPREAD = 0x9E3779B97F4A7C15

KEY = struct.Struct("<Qq")
"""Queue id and producer id, as `set_cold` takes them: sorted, one behind the other."""

COLD_FILES_MAX = 32
"""Files whose names `set_cold` takes: a look at each is some twenty steps, for producers that are not in memory."""

ROW = struct.Struct("<QqqhB5x" + REMEMBERED_BATCHES * "iiqq")
"""One producer in an image, 152 bytes: queue id, producer id, last timestamp (ms), epoch, count of batches, five
bytes of 0, then five batches of base sequence, last sequence, base offset, block index, oldest first; those that
are not there are 0. In a file of producers the fourth of the five bytes of 0 is 1 where the state is `partial`."""

PARTIAL_AT = 30
"""That byte."""

QUEUE_ID_MASK = (1 << 64) - 1

UNKNOWN_EPOCH = -1
COLD_EPOCH = -2


class SeenBatch(NamedTuple):
    base_sequence: int
    last_sequence: int
    base_offset: int
    block_index: int


class ProducerState(NamedTuple):
    """The state of one producer in one queue; `batches` oldest first, at most five."""

    epoch: int
    batches: tuple[SeenBatch, ...]
    last_timestamp_ms: int


class SequenceVerdict(NamedTuple):
    """`outcome` OK with `duplicate` None: append it; with a batch: answer with that batch's offset, once its
    block is committed."""

    outcome: Outcome
    duplicate: SeenBatch | None = None


FRESH = SequenceVerdict(Outcome.OK)
COLD = SequenceVerdict(Outcome.COLD_PRODUCER)
FULL = SequenceVerdict(Outcome.STORAGE_BUSY)
STALE_EPOCH = SequenceVerdict(Outcome.STALE_PRODUCER_EPOCH)
SKIPPED = SequenceVerdict(Outcome.SKIPPED_SEQUENCE)
OUT_OF_ORDER = SequenceVerdict(Outcome.OUT_OF_ORDER_SEQUENCE)

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
        """Producers that `expire` has yet to check in this round."""
        self.asked: list[tuple[int, int, int]] = []
        """(write group, queue id, producer id) of batches that were answered `COLD_PRODUCER`; who reads them empties
        it. The groups of a node share one."""
        self.settled = False
        """Everything there was to be read for the batches that are looked at now has been: nobody is cold."""
        self.count_max = 0
        """Unknown producers are refused as STORAGE_BUSY while there are as many as this; 0: never."""
        self._cold: list[memoryview] = []
        self._changed: set[Key] = set()
        self._partial: set[Key] = set()
        self._used: set[Key] = set()
        """Producers that came back since `evict` last checked them."""
        self._listed: list[Key] = []
        """Producers that `changed` has yet to hand out in this round."""
        self._passing: list[Key] = []
        """Producers that `evict` has yet to check in this round."""

    def check(
        self, queue_id: int, producer_id: int, epoch: int, base_sequence: int, record_count: int
    ) -> SequenceVerdict:
        """Judge whether a batch may be appended."""
        key = key_of(queue_id, producer_id)
        place, mark = place_of(*key)
        state = self._overlay.get(key)
        if state is None:
            state = self._committed.get(key)
            if not self.settled and (key in self._partial or (state is None and self.is_cold(*key))):
                return COLD
        if state is None:
            if self.count_max and len(self._committed) + len(self._overlay) >= self.count_max:
                return FULL
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
                return SequenceVerdict(Outcome.OK, seen)
        expected = (state.batches[-1].last_sequence + 1) % SEQUENCE_MODULUS if state.batches else 0
        if base_sequence == expected:
            return self._in_order(place, mark)
        if (base_sequence - expected) % SEQUENCE_MODULUS < SEQUENCE_MODULUS // 2:
            return self._refused(place, mark, PATIENCE, OUT_OF_ORDER)
        return OUT_OF_ORDER

    def epoch_of(self, queue_id: int, producer_id: int) -> int:
        """The newest epoch that a queue has seen of a producer; `UNKNOWN_EPOCH` and `COLD_EPOCH` where there is none,
        or it lies in a file."""
        key = key_of(queue_id, producer_id)
        state = self._overlay.get(key)
        if state is None:
            state = self._committed.get(key)
            if not self.settled and (key in self._partial or (state is None and self.is_cold(*key))):
                return COLD_EPOCH
        return UNKNOWN_EPOCH if state is None else state.epoch

    def _in_order(self, place: int, mark: int) -> SequenceVerdict:
        if self._refusals[place] ^ mark <= COUNT_MASK:
            self._refusals[place] = 0
        return FRESH

    def _refused(self, place: int, mark: int, patience: int, at_last: SequenceVerdict) -> SequenceVerdict:
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
        """Remember a batch that went into block `block_index`, in the overlay; with a negative sequence, a marker."""
        key = key_of(queue_id, producer_id)
        state = self._overlay.get(key) or self._committed.get(key)
        if base_sequence < 0 and state is not None and state.epoch == epoch:
            return
        self._overlay[key] = grown(state, epoch, base_sequence, record_count, base_offset, block_index, now_ms)

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
        """Remember a batch of an applied block for good, unless it is known; with a negative sequence, a marker."""
        key = key_of(queue_id, producer_id)
        state = self._committed.get(key)
        if state is None:
            if self.is_cold(*key):
                self._partial.add(key)
        else:
            self._used.add(key)
        if base_sequence < 0 and state is not None and state.epoch == epoch:
            self._committed[key] = state._replace(last_timestamp_ms=now_ms)
            self._changed.add(key)
        elif state is None or not state.batches or state.batches[-1].base_offset < base_offset:
            self._committed[key] = grown(state, epoch, base_sequence, record_count, base_offset, block_index, now_ms)
            self._changed.add(key)
        waiting = self._overlay.get(key)
        if waiting is not None and waiting.batches[-1].block_index <= block_index:
            del self._overlay[key]

    def discard_overlay(self) -> None:
        """Forget everything appended and not applied, and the counts of refusals."""
        self._overlay.clear()
        self._refusals = array("I", bytes(4 * 2 * COUNTERS))

    def forget_topics(self, topic_numbers: Iterable[int]) -> None:
        """Forget the producers of all queues of these topics, in one look at all of them."""
        gone = set(topic_numbers)
        for key in [key for key in self._overlay if key[0] >> 32 in gone]:
            del self._overlay[key]
        for key in [key for key in self._committed if key[0] >> 32 in gone]:
            self._forget(key)

    def _forget(self, key: Key) -> None:
        del self._committed[key]
        for marked in (self._changed, self._partial, self._used):
            marked.discard(key)

    def expire(self, before_ms: int, limit: int = EXPIRE_LIMIT, up_to_index: int = INDEX_MAX) -> int:
        """Look at `limit` producers, going on where the last call ended, and forget those last seen before a
        time (ms) and in no block after this one; how many. A limit of `len` or more is a look at all."""
        if limit >= len(self._committed) or not self._unswept:
            self._unswept = list(self._committed)
        looked_at, self._unswept = self._unswept[:limit], self._unswept[limit:]
        gone = 0
        for key in looked_at:
            state = self._committed.get(key)
            if state is None or state.last_timestamp_ms >= before_ms:
                continue
            if not state.batches or state.batches[-1].block_index <= up_to_index:
                self._forget(key)
                gone += 1
        return gone

    # --- the cold ones ------------------------------------------------------------------------------------

    def set_cold(self, names: Sequence[Buffer]) -> None:
        """These files have states of the producers named, each sorted, as `KEY`s."""
        if len(names) > COLD_FILES_MAX:
            raise ValueError(f"{len(names)} files of producers; at most {COLD_FILES_MAX} can be looked at")
        self._cold = [memoryview(one).cast("B") for one in names]

    def is_cold(self, queue_id: int, producer_id: int) -> bool:
        """Whether a file has a state of this producer."""
        key = key_of(queue_id, producer_id)
        for names in self._cold:
            low, high = 0, len(names) // KEY.size
            while low < high:
                middle = (low + high) // 2
                found = KEY.unpack_from(names, middle * KEY.size)
                if found == key:
                    return True
                if found < key:
                    low = middle + 1
                else:
                    high = middle
        return False

    def changed(self, begin: bool, limit: int) -> bytes | None:
        """Rows of committed states that have changed since they were handed out, from up to `limit` of them; None at
        the end of a round. With `begin` a round begins: what changes while it lasts may be left for the next."""
        if begin:
            self._listed = sorted(self._changed)
        if not self._listed:
            return None
        taken, self._listed = self._listed[:limit], self._listed[limit:]
        rows = bytearray()
        for key in taken:
            if key in self._changed:
                self._changed.discard(key)
                row = bytearray(row_of(*key, self._committed[key]))
                row[PARTIAL_AT] = key in self._partial
                rows += row
        return bytes(rows)

    def all_changed(self) -> None:
        """Count all states as changed again, because those handed out were not saved."""
        self._changed = set(self._committed)

    def evict(self, target: int, limit: int) -> int:
        """Look at `limit` states, going on where the last call ended, and let go of those that are in a file as they
        are here and were not used since they were last looked at, until `target` are left; how many went."""
        gone = 0
        for _ in range(limit):
            if len(self._committed) <= target:
                break
            if not self._passing:
                self._passing = list(reversed(self._committed))
            key = self._passing.pop()
            if key in self._used:
                self._used.discard(key)
            elif key in self._committed and key not in self._changed and key not in self._overlay:
                self._forget(key)
                gone += 1
        return gone

    def warm(self, queue_id: int, producer_id: int, rows: Buffer) -> None:
        """Take in what the files have of a producer, oldest first; nothing: it is not there, or too old."""
        key = key_of(queue_id, producer_id)
        states = [state for *_key, state in states_of(rows)]
        own = self._committed.get(key)
        partial = key in self._partial
        self._partial.discard(key)
        if not states or (own is not None and not partial):
            return
        state = states[0]
        for newer in [*states[1:], *([own] if own is not None else [])]:
            state = joined(state, newer)
        self._committed[key] = state

    def held(self, names: Buffer) -> bytes:
        """Rows of those of these producers, `KEY`s one behind the other, whose committed states are here, in that
        order; partial ones are marked. Raises `MalformedImage` for names that are cut short."""
        if len(names) % KEY.size:
            raise MalformedImage(f"{len(names)} bytes are not a number of names of {KEY.size}")
        rows = bytearray()
        for key in KEY.iter_unpack(names):
            state = self._committed.get(key)
            if state is not None:
                row = bytearray(row_of(key[0], key[1], state))
                row[PARTIAL_AT] = key in self._partial
                rows += row
        return bytes(rows)

    # --- checkpoint -------------------------------------------------------------------------------------

    def dump(self) -> list[tuple[int, int, ProducerState]]:
        """(queue id, producer id, state) of all that was applied, by queue and producer."""
        return [
            (queue_id, producer_id, self._committed[queue_id, producer_id])
            for queue_id, producer_id in sorted(self._committed)
        ]

    def load(self, states: Iterable[tuple[int, int, ProducerState]]) -> None:
        """Load the states of a `dump`."""
        for queue_id, producer_id, (epoch, batches, last_timestamp_ms) in states:
            key = key_of(queue_id, producer_id)
            self._committed[key] = ProducerState(epoch, batches[-REMEMBERED_BATCHES:], last_timestamp_ms)
            self._changed.add(key)
            self._partial.discard(key)

    def image(self) -> bytes:
        """The states of a `dump`, as rows of `ROW`."""
        return b"".join(row_of(*row) for row in self.dump())

    def load_image(self, image: bytes) -> None:
        """Load an `image`. Raises `MalformedImage`, and loads nothing then."""
        self.load(states_of(image))

    def __len__(self) -> int:
        return len(self._committed)


def row_of(queue_id: int, producer_id: int, state: ProducerState) -> bytes:
    cells = list(itertools.chain.from_iterable(state.batches))
    cells += [0] * (4 * REMEMBERED_BATCHES - len(cells))
    return ROW.pack(queue_id, producer_id, state.last_timestamp_ms, state.epoch, len(state.batches), *cells)


def states_of(image: Buffer) -> list[tuple[int, int, ProducerState]]:
    """(queue id, producer id, state) of each row. Raises `MalformedImage`."""
    if len(image) % ROW.size:
        raise MalformedImage(f"{len(image)} bytes are not a number of rows of {ROW.size}")
    states = []
    for number, (queue_id, producer_id, last_timestamp_ms, epoch, count, *cells) in enumerate(ROW.iter_unpack(image)):
        if count > REMEMBERED_BATCHES:
            raise MalformedImage(f"row {number} has {count} batches")
        batches = tuple(SeenBatch(*cells[4 * place : 4 * place + 4]) for place in range(count))
        states.append((queue_id, producer_id, ProducerState(epoch, batches, last_timestamp_ms)))
    return states


def joined(older: ProducerState, newer: ProducerState) -> ProducerState:
    """Join two states of one producer in one queue: within one epoch, the newest batches of both."""
    if older.epoch != newer.epoch:
        return newer
    kept, added = older.batches, newer.batches
    if kept and added and added[0].base_sequence < 0:
        added = added[1:]  # a marker, which begins nothing where the epoch has batches
    if added:
        kept = tuple(batch for batch in kept if batch.base_offset < added[0].base_offset)
    return ProducerState(newer.epoch, (*kept, *added)[-REMEMBERED_BATCHES:], newer.last_timestamp_ms)


def place_of(queue_id: int, producer_id: int) -> tuple[int, int]:
    """The place where refusals of a producer are counted, and its mark there: the highest ten bits of a hash, the next
    25."""
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
