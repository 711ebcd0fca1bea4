"""The transaction machine under random producers, markers, time and crashes: what was answered holds.

Producers come and go on few transactional ids, of both transaction versions. The log is committed up to some record at
a time; a crash loses the rest, with all answers that waited for it, and begins a new machine from the log. Markers are
written one partition at a time, so that a crash can come between any two.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from mainstem.broker.machines.result import Moment, Result
from mainstem.broker.transactions.config import TransactionsConfig
from mainstem.broker.transactions.state_topic import StateTopicCodec
from mainstem.broker.transactions.transaction import (
    EPOCH_MAX,
    StateRecord,
    TopicPartition,
    Transaction,
    TransactionRecord,
    TransactionState,
)
from mainstem.broker.transactions.transaction_machine import Prepared, TransactionMachine
from mainstem.broker.transactions.transitions import Initialization, Need, Producer, TransactionEnding
from mainstem.model import FeatureLevel
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.records import Record

SEEDS, SEEDS_TOGETHER = 300, 50
STEPS = 120

IDS = ("orders", "payments")
PARTITIONS = [("a", 0), ("a", 1), ("b", 0)]
TIMEOUT_MS = 1_000
CONFIG = TransactionsConfig()

_Name = tuple[str, int, int]
"""A transactional id with the producer id and epoch that a marker carries."""


@dataclass
class Client:
    """A producer as it knows itself."""

    transactional_id: str
    version: int
    producer: Producer | None = None
    number: int = 0
    """Of the answer that made it a producer; producers of an id with smaller numbers are zombies."""
    added: dict[TopicPartition, int] = field(default_factory=dict)
    """The partitions of its transaction, with how many markers were written before it added them."""


class World:
    def __init__(self) -> None:
        self.machine = TransactionMachine(CONFIG)
        self.now_ms = 1_000_000
        self.log: list[StateRecord] = []
        self.committed = 0
        self.waiting: list[tuple[int, Any, Any]] = []
        """The length of the log that an answer waits for, what hears it, and the answer."""
        self.markers: list[tuple[_Name, TopicPartition, bool]] = []
        self.ends: list[tuple[_Name, dict[TopicPartition, int], bool]] = []
        """The ends of transactions that producers were told of."""
        self.newest: dict[str, int] = {}
        self.owners: dict[Producer, Client] = {}
        self.initialized = 0
        self.next_id = 100
        self.coordinator_epochs: set[int] = set()
        self.take(self.machine.recovered(self.moment), None)
        self.commit(len(self.log))

    @property
    def moment(self) -> Moment:
        return Moment(self.now_ms, self.now_ms)

    def take(self, result: Result, heard: Any) -> None:
        self.log += result.records
        for answer in result.answers:
            self.waiting.append((len(self.log), heard, answer.response))

    def commit(self, upto: int) -> None:
        """The log is committed so far: answers leave."""
        self.committed = max(self.committed, min(upto, len(self.log)))
        while self.waiting and self.waiting[0][0] <= self.committed:
            _, heard, answer = self.waiting.pop(0)
            heard(answer)

    def crash(self) -> None:
        del self.log[self.committed :]
        self.waiting.clear()
        before = self.machine
        self.machine = TransactionMachine(CONFIG)
        codec = StateTopicCodec()
        for offset, record in enumerate(self.log):
            encoded = codec.encode(record, 5, FeatureLevel.newest())
            decoded = codec.decode(Record(offset, encoded.timestamp, encoded.key, encoded.value, ()))
            assert decoded == record
            self.machine.replay(decoded)
        assert before.coordinator_epoch >= self.machine.coordinator_epoch
        self.take(self.machine.recovered(self.moment), None)

    # --- producers

    def init(self, client: Client, *, recovers: bool) -> None:
        expected = client.producer if recovers and client.producer is not None else Producer()
        asked = Initialization(client.transactional_id, TIMEOUT_MS, expected)

        def heard(answer: Producer | ErrorCode | Need) -> None:
            if answer is Need.PRODUCER_ID:
                self.next_id += 1
                self.take(self.machine.initialize(1, asked, self.next_id, self.moment), heard)
            elif isinstance(answer, Producer):
                owner = self.owners.setdefault(answer, client)
                assert owner is client, f"{answer} is given to two producers"
                self.initialized += 1
                client.producer, client.number = answer, self.initialized
                client.added.clear()
                self.newest[client.transactional_id] = client.number

        self.take(self.machine.initialize(1, asked, None, self.moment), heard)

    def add(self, client: Client, partition: TopicPartition) -> None:
        producer = client.producer
        if producer is None:
            return
        zombie = client.number < self.newest[client.transactional_id]
        before = len(self.markers)

        def heard(code: ErrorCode) -> None:
            assert not (zombie and code is ErrorCode.NONE), "a fenced producer adds a partition"
            if code is ErrorCode.NONE and client.producer == producer:
                client.added.setdefault(partition, before)

        event = self.machine.add(
            1, client.transactional_id, producer, frozenset({partition}), client.version, self.moment
        )
        self.take(event, heard)

    def end(self, client: Client, *, commit: bool) -> None:
        producer = client.producer
        if producer is None:
            return
        zombie = client.number < self.newest[client.transactional_id]
        name_epoch = producer.producer_epoch + (client.version == 2)
        name = client.transactional_id, producer.producer_id, name_epoch

        def heard(answer: TransactionEnding | Need) -> None:
            if answer is Need.PRODUCER_ID:
                self.next_id += 1
                self.take(event(self.next_id), heard)
                return
            assert isinstance(answer, TransactionEnding)
            if answer.code is not ErrorCode.NONE:
                return
            assert not (zombie and commit), "a fenced producer commits"
            if client.producer != producer:
                return
            self.ends.append((name, dict(client.added), commit))
            client.added.clear()
            if client.version == 2:
                assert answer.producer != producer, "an end gives no new epoch"
                owner = self.owners.setdefault(answer.producer, client)
                assert owner is client, f"{answer.producer} is given to two producers"
                client.producer = answer.producer

        def event(new_id: int | None) -> Result:
            version = client.version if client.version == 2 else 0
            return self.machine.end(1, client.transactional_id, producer, commit, version, new_id, self.moment)

        self.take(event(None), heard)

    # --- markers and time

    def write_markers(self, partitions_max: int) -> None:
        """Ask what is prepared, write some of the markers, and tell the machine of transactions that have all."""

        def heard(found: Prepared) -> None:
            left = partitions_max
            for transaction in found.transactions:
                for partition in sorted(transaction.partitions):
                    if left == 0:
                        return
                    left -= 1
                    self._mark(transaction, partition)
                self.take(self.machine.complete(1, transaction, self.moment), lambda news: None)

        self.take(self.machine.prepared(1, True, self.moment), heard)

    def _mark(self, transaction: Transaction, partition: TopicPartition) -> None:
        commit = transaction.state is TransactionState.PREPARE_COMMIT
        name = transaction.transactional_id, transaction.producer_id, transaction.producer_epoch
        self.markers.append((name, partition, commit))

    def settle(self) -> None:
        """No more requests, and all markers can be written: everything ends."""
        self.now_ms += 2 * TIMEOUT_MS
        self.take(self.machine.advance(self.moment), None)
        self.commit(len(self.log))
        self.write_markers(1_000)
        for _ in range(3):
            self.commit(len(self.log))
        for transaction in self.machine.transactions.values():
            assert transaction.is_over, transaction
        for name, added, commit in self.ends:
            for partition, before in added.items():
                written = [
                    as_commit
                    for other, place, as_commit in self.markers[before:]
                    if (other, place) == (name, partition)
                ]
                assert written, f"{name} was told of its end, and {partition} has no marker"
                assert written[0] == commit, f"{name} was told commit={commit}, and {partition} has the other marker"


KINDS = ("init", "add", "add", "add", "end", "end", "commit", "commit", "markers", "markers", "wait", "crash")


@pytest.mark.parametrize("near_the_end", [False, True], ids=["plain", "epochs run out"])
@pytest.mark.parametrize("first_seed", range(0, SEEDS, SEEDS_TOGETHER))
def test_what_was_answered_holds(first_seed: int, near_the_end: bool) -> None:
    for seed in range(first_seed, first_seed + SEEDS_TOGETHER):
        try:
            play(seed, near_the_end)
        except AssertionError as failure:
            raise AssertionError(f"seed {seed}: {failure}") from failure


def play(seed: int, near_the_end: bool) -> World:
    chance = Random(seed)
    world = World()
    clients = [Client(IDS[number % 2], 2 if number < 2 else 1) for number in range(4)]
    if near_the_end:
        for transactional_id in IDS:
            world.next_id += 1
            spent = Transaction(transactional_id, TransactionState.EMPTY, world.next_id, EPOCH_MAX - 4, TIMEOUT_MS, 5)
            record = TransactionRecord(transactional_id, spent)
            world.machine.replay(record)
            world.log.append(record)
        world.commit(len(world.log))
    for client in chance.sample(clients, 2):
        world.init(client, recovers=False)
        world.commit(len(world.log))
    for _ in range(STEPS):
        kind, client = chance.choice(KINDS), chance.choice(clients)
        if kind == "init" and chance.random() < 0.4:
            world.init(client, recovers=chance.random() < 0.5)
        elif kind == "add":
            world.add(client, chance.choice(PARTITIONS))
        elif kind == "end":
            world.end(client, commit=chance.random() < 0.6)
        elif kind == "commit":
            world.commit(world.committed + chance.choice([1, 2, 100, 100]))
        elif kind == "markers":
            world.write_markers(chance.choice([1, 2, 100]))
        elif kind == "wait":
            world.now_ms += chance.randrange(TIMEOUT_MS // 3)
            world.take(world.machine.advance(world.moment), None)
        elif kind == "crash" and chance.random() < 0.3:
            world.crash()
    _same_from_log(world)
    world.commit(len(world.log))
    world.settle()
    _same_from_log(world)
    return world


def _same_from_log(world: World) -> None:
    """The log makes the same machine, and so does a snapshot of it."""
    from_log, from_snapshot = TransactionMachine(CONFIG), TransactionMachine(CONFIG)
    for record in world.log:
        from_log.replay(record)
    for section in world.machine.sections():
        for record in world.machine.snapshot(section):
            from_snapshot.replay(record)
    for other in (from_log, from_snapshot):
        assert other.transactions == world.machine.transactions
        assert other.coordinator_epoch == world.machine.coordinator_epoch
        assert other.bytes_held == world.machine.bytes_held


def test_the_stories_are_about_something() -> None:
    worlds = [play(seed, near_the_end=False) for seed in range(30)]
    committed = sum(commit and bool(added) for world in worlds for _, added, commit in world.ends)
    assert committed > 20
    assert sum(world.machine.counts.timed_out for world in worlds) > 5
    assert sum(world.machine.counts.fenced for world in worlds) > 30
