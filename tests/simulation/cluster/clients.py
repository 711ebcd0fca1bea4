"""Producers and readers of the cluster: they look for leaders, time out, try again, and keep what they were told."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from tests.simulation.cluster.cluster import SimulatedCluster
from tests.simulation.cluster.node import SimulatedNode
from tests.simulation.oracle import require

from mainstem.model import AppendResult, BatchAppend, Outcome, QueueRead, QueueSlice
from mainstem.protocol.records import NewRecord, build_batch
from mainstem.storage.errors import StorageError
from mainstem.storage.role import Storage

SIZES = (0, 10, 100, 1000, 3000)

KEYS = 8
"""Of the records of a compacted queue."""

ANSWERS = {
    Outcome.OK,
    Outcome.NOT_LEADER,
    Outcome.STORAGE_BUSY,
    Outcome.STORAGE_FAILED,
    Outcome.UNKNOWN_QUEUE,
    Outcome.UNDECIDED,
}
"""The answers that a well-behaved producer may be told. One request in flight for a queue never skips a sequence
number."""

REFUSALS = {Outcome.NOT_LEADER, Outcome.STORAGE_BUSY, Outcome.UNKNOWN_QUEUE}
"""Answers that mean: not in the log, nor will it be."""


@dataclass(slots=True)
class Batch:
    """As it is sent, each time the same."""

    queue_id: int
    append: BatchAppend
    data: bytes


class Clients:
    """Shared by them: how values are made, and how leaders are found."""

    def __init__(self, cluster: SimulatedCluster, rng: random.Random) -> None:
        self.cluster = cluster
        self.rng = rng
        self.ending = False
        """Nothing new is begun any more."""
        self.acknowledged = 0
        self.read_batches = 0
        self.replica_batches = 0
        """Read from replicas."""
        self._values = 0
        self.terms: dict[int, int] = {}

    def new_batch(self, queue_id: int, producer: tuple[int, int, int], count: int) -> Batch:
        records = []
        if queue_id in self.cluster.history.compacted:
            records = [self._keyed_record() for _ in range(count)]
        for _ in range(count - len(records)):
            self._values += 1
            records.append(NewRecord(1000 + self._values, None, b"%d " % self._values + bytes(self.rng.choice(SIZES))))
        new = build_batch(records, producer_id=producer[0], producer_epoch=producer[1], base_sequence=producer[2])
        append = new.to_append(queue_id)
        return Batch(queue_id, append, bytes(new.data))

    def _keyed_record(self) -> NewRecord:
        """One for a compacted queue, unlike all others: of few keys, often a tombstone, now and then without a key."""
        rng = self.rng
        self._values += 1
        key = None if rng.random() < 0.05 else b"key %d" % min(rng.randrange(KEYS), rng.randrange(KEYS))
        value = None if key is not None and rng.random() < 0.3 else bytes(rng.choice(SIZES))
        return NewRecord(self.cluster.loop.now_ms(), key, value, (("number", b"%d" % self._values),))

    def node_for(self, group: int) -> SimulatedNode | None:
        """Somebody to ask; usually the leader."""
        up = [node for node in self.cluster.nodes.values() if node.serving is not None]
        leaders = self.cluster.leaders(group)
        if leaders and self.rng.random() < 0.9:
            return self.rng.choice(leaders)
        return self.rng.choice(up) if up else None


class Producer:
    """One producer with one request in flight per queue. Idempotent ones (`producer_id` >= 0) ask for acks=all and
    send a batch again until they know what became of it; others go on after a while."""

    def __init__(self, clients: Clients, queue_ids: list[int], producer_id: int, acks: int) -> None:
        self._clients = clients
        self._rng = clients.rng
        self._queue_ids = queue_ids
        self._producer_id = producer_id
        self._acks = acks if producer_id < 0 else -1
        self._next: dict[int, int] = {}
        self._terms: dict[int, int] = {}
        """Per group the newest leader epoch it was told: it goes to no older leader, as Kafka's clients do not."""

    async def run(self) -> None:
        while not self._clients.ending:
            await self.produce()
            await asyncio.sleep(self._rng.choice([0.0, 0.01, 0.1, 0.5]))

    async def produce(self) -> None:
        """One request with a batch for each of a few queues."""
        rng = self._rng
        chosen = rng.sample(self._queue_ids, min(len(self._queue_ids), rng.choice([1, 1, 2, 4])))
        waiting: dict[int, Batch] = {}
        for queue_id in chosen:
            count = rng.choice([1, 1, 3])
            waiting[queue_id] = self._clients.new_batch(
                queue_id, (self._producer_id, 0 if self._producer_id >= 0 else -1, self._sequence(queue_id)), count
            )
        tries = 0
        while waiting:
            by_group: dict[int, list[Batch]] = {}
            for queue_id, batch in waiting.items():
                by_group.setdefault(self._clients.cluster.group_of(queue_id), []).append(batch)
            for group, batches in by_group.items():
                for batch, result in zip(batches, await self.send(group, batches), strict=True):
                    if result is not None and result.outcome is Outcome.OK:
                        del waiting[batch.queue_id]
                        self._advance(batch)
            tries += 1
            if waiting:
                if self._clients.ending or (self._producer_id < 0 and tries > 3):
                    if self._producer_id >= 0:  # what became of it is unknown, so nothing more can be sent
                        for queue_id in waiting:
                            self._queue_ids.remove(queue_id)
                    return
                await asyncio.sleep(rng.choice([0.0, 0.05, 0.2]))

    def _sequence(self, queue_id: int) -> int:
        return self._next.get(queue_id, 0) if self._producer_id >= 0 else -1

    def _advance(self, batch: Batch) -> None:
        self._clients.acknowledged += 1
        self._next[batch.queue_id] = self._sequence(batch.queue_id) + batch.append.record_count

    async def send(self, group: int, batches: list[Batch]) -> list[AppendResult | None]:
        """The answer of a node; None: there is none."""
        node, history = self._clients.node_for(group), self._clients.cluster.history
        unknown: list[AppendResult | None] = [None for _ in batches]
        if node is None or node.serving is None:
            return unknown
        known = self._terms.get(group, 0)
        answer = await node.call(
            self._append(node.serving, group, known, batches), patience=self._rng.choice([0.3, 1.0, 5.0])
        )
        if answer is None:
            return unknown
        term, results = answer
        for batch, result in zip(batches, results, strict=True):
            what = f"node {node.node_id}: queue {batch.queue_id:#x} of producer {self._producer_id}"
            require(result.outcome in ANSWERS, f"{what}: {result} for {batch.append.base_sequence}", "D")
            if result.outcome is Outcome.OK:
                crc = batch.append.crc
                history.acknowledged(batch.queue_id, result.base_offset, crc, promised=self._acks == -1)
                self._terms[group] = max(known, term)
        return list(results)

    async def _append(
        self, storage: Storage, group: int, known: int, batches: list[Batch]
    ) -> tuple[int, list[AppendResult]]:
        term = storage.groups[group].term
        if term < known:
            return term, [AppendResult(Outcome.NOT_LEADER) for _ in batches]
        history = self._clients.cluster.history
        for batch in batches:
            history.sending(batch.data)
        results = await storage.messages.append([batch.append for batch in batches], self._acks)
        for batch, result in zip(batches, results, strict=True):
            if result.outcome in REFUSALS:
                history.refused(batch.append.crc)
        return term, results


class Reader:
    """Follows queues at their leaders; what it was once shown stays."""

    def __init__(self, clients: Clients, queue_ids: list[int]) -> None:
        self._clients = clients
        self._rng = clients.rng
        self._queue_ids = queue_ids
        self._next: dict[int, int] = {}
        self._seen: dict[int, tuple[int, int]] = {}
        """Queue id → (term, high watermark)."""

    async def run(self) -> None:
        while not self._clients.ending:
            await asyncio.sleep(self._rng.choice([0.02, 0.2, 1.0]))
            await self.read(self._rng.choice(self._queue_ids))

    async def read(self, queue_id: int) -> None:
        """Read on, or anywhere, at the leader, or at any node."""
        rng, cluster = self._rng, self._clients.cluster
        group = cluster.group_of(queue_id)
        node = self._clients.node_for(group)
        if node is None or node.serving is None:
            return
        offset = self._next.get(queue_id, 0)
        if rng.random() < 0.3:
            offset = rng.randint(0, offset)
        bytes_max = rng.choice([1, 500, 5000, 1 << 20])
        answer = await node.call(self._read(node.serving, group, QueueRead(queue_id, offset, bytes_max)), patience=5)
        if answer is None:
            return
        served, term, applied, found = answer
        what = f"node {node.node_id}"
        if found.outcome is not Outcome.OK:
            allowed = {Outcome.UNKNOWN_QUEUE, Outcome.OFFSET_OUT_OF_RANGE, Outcome.NOT_LEADER}
            if node.disk1.troubles or node.disk2.troubles or cluster.store_troubles:
                allowed.add(Outcome.STORAGE_FAILED)
            not_there_yet = cluster.history.queue(queue_id).block_of(offset) > applied
            if not served and not_there_yet and group in node.took_snapshots:
                # the queues of a snapshot are younger than its block: what they say is there comes with the log, before
                # the node leads
                allowed.add(Outcome.STORAGE_FAILED)
            require(found.outcome in allowed, f"{what}: {found}")
            if found.outcome is Outcome.STORAGE_FAILED:
                return
            before, high_watermark = self._seen.get(queue_id, (0, 0))
            behind = not served or term < before or offset > high_watermark
            behind = behind or offset < cluster.history.queue(queue_id).log_start
            require(behind, f"{what}: queue {queue_id:#x} at {offset}: {found.outcome} in term {term}", "B")
            return
        self._clients.read_batches += len(found.batches)
        if found.batches and offset < cluster.history.queue(queue_id).log_start:  # it moved while this was read
            offset = max(offset, int.from_bytes(found.batches[0][:8], "big"))
        cluster.history.check_read(what, queue_id, offset, found.batches, found.next_offset)
        if not served:
            return
        high_watermark = found.offsets.high_watermark
        before_term, before_end = self._seen.get(queue_id, (0, 0))
        if term >= before_term:
            require(
                high_watermark >= before_end,
                f"{what}: queue {queue_id:#x} ends at {high_watermark} in term {term}, it ended at {before_end} "
                f"in term {before_term}",
                "B",
            )
            self._seen[queue_id] = (term, high_watermark)
            self._next[queue_id] = max(found.next_offset, offset)

    async def _read(self, storage: Storage, group: int, read: QueueRead) -> tuple[bool, int, int, QueueSlice]:
        """(whether the node led, then and still; its term; the last block it had applied by then; what it read)."""
        replica = storage.groups[group]
        term, served, applied = replica.term, replica.serving, replica.applied_index
        try:
            (found,) = await storage.messages.read([read], 1 << 20)
        except (StorageError, OSError):
            found = QueueSlice(read.queue_id, Outcome.NOT_LEADER, [], (-1, -1, -1, -1))  # type: ignore[arg-type]
            return False, term, applied, found
        return served and replica.serving and replica.term == term, term, applied, found
