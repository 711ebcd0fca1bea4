"""Transactions while nodes of a cluster are killed: librdkafka writes each number to all partitions in one transaction,
and commits an offset with it. Readers of committed data find the same numbers in every partition.

The nodes that are killed are those that matter: the coordinator of the transaction, leaders of the partitions that it
writes to, and the coordinator of the group whose offset it commits; in the middle of a transaction, or of its commit.
Now and then a producer is not heard of any more in the middle of a transaction: nothing of it is ever seen, and readers
get past it when its time is over.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from tests.clients.drivers.librdkafka import KEEP_TRYING, take
from tests.end_to_end.cluster import Cluster, well
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import eventually
from tests.harness.standstills import ClientLog, Standstills

from mainstem.address import parsed
from mainstem.broker.machines.coordinator_topic import coordinator_partition_of
from mainstem.cli.clients.kafka_connection import KafkaConnection
from mainstem.cli.errors import CommandLineError
from mainstem.cli.main import root
from mainstem.protocol.messages.transaction_administration import (
    DescribedProducer,
    DescribeProducersRequest,
    DescribeProducersTopic,
)

PARTITIONS = 4
STATE_PARTITIONS = 4
SETTINGS = (
    "pipeline.mode=off",
    "nameserver.replication_factor=3",
    f"transactions.topic_partitions={STATE_PARTITIONS}",
    f"groups.offsets_topic_partitions={STATE_PARTITIONS}",
)
ID = "the-producer"
GROUP = "g"
TIMEOUT_MS = 10_000
ABANDONED_TIMEOUT_MS = 3_000
END = b"end"

KILLS = int(os.environ.get("KILLS", "100"))
"""Of the long test; by the variable as many as somebody has time for: each takes four seconds on two cores."""
SEED = int(os.environ.get("KILLS_SEED", "1"))
"""Chooses who is killed in the long test, and when: portions of it with other seeds are worth one long run."""
ABANDONED_EVERY = 10


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with well(Cluster(tmp_path_factory.mktemp("transactions"), *SETTINGS)) as cluster:
        yield cluster


def begun(cluster: Cluster, name: str = ID, timeout_ms: int = TIMEOUT_MS, log: ClientLog | None = None) -> Producer:
    """A producer that may begin transactions; with `log`, each of its requests is to be found there."""
    logged = {} if log is None else {"debug": "eos,protocol,broker", "log_level": 7, "logger": log.logger(name)}
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": timeout_ms,
            "linger.ms": 0,
            **KEEP_TRYING,
            **GO_ON,
            **logged,
        }
    )
    while True:
        try:
            producer.init_transactions(PATIENCE_SECONDS)
        except KafkaException as refused:
            if not refused.args[0].retriable():
                raise
        else:
            return producer


def end(producer: Producer) -> bool:
    """Whether the transaction is committed; librdkafka says when to ask again, and when to abort."""
    while True:
        try:
            producer.commit_transaction(PATIENCE_SECONDS)
        except KafkaException as failure:
            error = failure.args[0]
            if error.retriable():
                continue
            if not error.txn_requires_abort():
                raise
            with suppress(KafkaException):
                producer.abort_transaction(PATIENCE_SECONDS)
            return False
        return True


GO_ON = {"connections.max.idle.ms": 3_000}
"""A bug of librdkafka has producers wait for a group's coordinator that they took out of use, until they lose any other
connection (docs/transactions.md)."""

MOMENTS = 4
"""At which a node is killed: before the records are sent, behind them, while the offset is sent, in the commit."""


class Writer:
    """Writes numbers, each to all partitions of a topic, with an offset of the group."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.cluster = cluster
        self.topic = topic
        self.group = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": GROUP, **KEEP_TRYING})
        self.group.assign([TopicPartition(topic, 0, 0)])
        self.committed: dict[int, float] = {}
        """When each number was."""
        self.killed: dict[str, int] = {}
        """How often whom."""
        self.log = ClientLog()
        self.standstills = Standstills(self._where_it_stands, lambda: self._producer.poll(0))
        self.slowest: dict[str, float] = {}
        """Of the client's calls, by name, the seconds of the longest."""
        self._number = -1
        self._chance = random.Random(SEED)
        self._producer = begun(cluster, log=self.log)
        self._abandoned: list[Producer] = []

    def write(self, number: int, kills: bool) -> None:
        """In one transaction, in the middle of which one of the nodes that matter may be killed."""
        self._number = number
        moment, victims = self._chance.randrange(MOMENTS), self._victims()
        role = self._chance.choice(list(victims))
        with ThreadPoolExecutor(1) as beside:
            victim = victims[role]() if kills else 0

            def kill_at(this: int) -> None:
                if victim and moment == this:
                    killing = beside.submit(self.cluster.kill, victim)
                    if moment < 2:  # else it is killed while the client waits for an answer
                        killing.result()
                    self.killed[role] = self.killed.get(role, 0) + 1

            try:
                ended = self._transact(number, kill_at)
            except KafkaException as failure:
                ended = False
                if failure.args[0].fatal():
                    with self._call("init_transactions"):
                        self._producer = begun(self.cluster, log=self.log)
                else:
                    with suppress(KafkaException), self._call("abort_transaction"):
                        self._producer.abort_transaction(PATIENCE_SECONDS)
        if ended:
            self.committed[number] = time.monotonic()
        if victim:
            if victim in self.cluster.running:  # it failed before
                self.cluster.kill(victim)
                self.killed[role] = self.killed.get(role, 0) + 1
            with self._call("the start of a node"):
                self.cluster.start(victim)

    def _transact(self, number: int, kill_at: Callable[[int], None]) -> bool:
        producer = self._producer
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(self.topic, b"%d" % number, partition=partition)
        kill_at(0)
        with self._call("flush"):
            producer.flush(PATIENCE_SECONDS)
        kill_at(1)
        metadata = self.group.consumer_group_metadata()
        kill_at(2)
        with self._call("send_offsets_to_transaction"):
            producer.send_offsets_to_transaction([TopicPartition(self.topic, 0, number)], metadata, PATIENCE_SECONDS)
        kill_at(3)
        with self._call("commit_transaction"):
            return end(producer)

    @contextmanager
    def _call(self, name: str) -> Iterator[None]:
        """A call of the client that waits for answers."""
        began = time.monotonic()
        with self.standstills.watched(f"{name} of number {self._number}"):
            try:
                yield
            finally:
                self.slowest[name] = max(self.slowest.get(name, 0.0), time.monotonic() - began)

    def _where_it_stands(self) -> str:
        """The last requests of the client, the transaction, and the leaders as each node knows them."""
        told = [f"seed {SEED}, killed {self.killed}, nodes {sorted(self.cluster.running)} run"]
        for node_id in sorted(self.cluster.running):
            led = {
                topic: [self.cluster.leader(topic, index, asked=node_id) for index in range(STATE_PARTITIONS)]
                for topic in ("__transaction_state", "__consumer_offsets", self.topic)
            }
            told.append(f"node {node_id} knows as leaders: {led}")
        described = CliRunner().invoke(root, ["txn", "describe", ID, "--json", "--bootstrap", self.cluster.bootstrap])
        told += [described.output, "the client:", *self.log.last()]
        return "\n".join(told)

    def _victims(self) -> dict[str, Callable[[], int]]:
        """By what a node does."""

        def leads(topic: str, partition: int) -> Callable[[], int]:
            def leader() -> int:
                found: int = eventually(
                    lambda: max(0, self.cluster.leader(topic, partition)), what=f"a leader of {topic}-{partition}"
                )
                return found

            return leader

        return {
            "coordinator": leads("__transaction_state", coordinator_partition_of(ID, STATE_PARTITIONS)),
            "a leader": leads(self.topic, len(self.committed) % PARTITIONS),
            "the group's coordinator": leads("__consumer_offsets", coordinator_partition_of(GROUP, STATE_PARTITIONS)),
            "another leader": leads(self.topic, (len(self.committed) + 1) % PARTITIONS),
        }

    @property
    def abandoned(self) -> int:
        """How many producers are not heard of any more."""
        return len(self._abandoned)

    def abandon(self, number: int) -> None:
        """A producer of its own writes to all partitions, and does nothing more."""
        producer = begun(self.cluster, f"abandoned-{number}", ABANDONED_TIMEOUT_MS)
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(self.topic, b"-1", partition=partition)
        producer.flush(PATIENCE_SECONDS)
        self._abandoned.append(producer)

    def last_words(self) -> None:
        last = begun(self.cluster)
        last.begin_transaction()
        for partition in range(PARTITIONS):
            last.produce(self.topic, END, partition=partition)
        last.commit_transaction(PATIENCE_SECONDS)

    def in_force(self) -> int:
        """The offset that the group has committed, whichever node tells it: coordinators may move still."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                offset: int = self.group.committed([TopicPartition(self.topic, 0)], PATIENCE_SECONDS)[0].offset
                return offset
            except KafkaException as failure:
                passes = failure.args[0].retriable() or failure.args[0].code() == KafkaError.NOT_COORDINATOR
                if not passes or time.monotonic() > deadline:
                    raise


def seen(cluster: Cluster, topic: str, partition: int) -> dict[int, float]:
    """The numbers that a reader of committed data gets before the end, in this order, and when."""
    reader = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "unused",
            "isolation.level": "read_committed",
            **KEEP_TRYING,
        }
    )
    reader.assign([TopicPartition(topic, partition, 0)])
    found: dict[int, float] = {}
    while True:
        [message] = take(reader, 1)
        if message.value() == END:
            reader.close()
            return found
        number = int(message.value())
        assert number not in found, f"{number} is twice in partition {partition}"
        found[number] = time.monotonic()


def check(writer: Writer, found: list[dict[int, float]]) -> None:
    """All partitions have the same numbers in order, with all that were committed, and the offset is the last one's."""
    numbers = list(found[0])
    assert all(list(of_partition) == numbers for of_partition in found), "a transaction is half visible"
    assert -1 not in numbers, "a transaction that nobody committed is visible"
    assert set(writer.committed) <= set(numbers)
    assert numbers == sorted(numbers)
    assert writer.in_force() == numbers[-1]


def test_nothing_is_half_visible_when_nodes_are_killed(cluster: Cluster) -> None:
    cluster.create_topic("numbers", PARTITIONS)
    writer = Writer(cluster, "numbers")
    for number in range(12):
        if number == 5:
            writer.abandon(number)
        writer.write(number, kills=number in (4, 7))
    assert len(writer.committed) >= 8
    writer.last_words()
    check(writer, [seen(cluster, "numbers", partition) for partition in range(PARTITIONS)])
    writer.group.close()


def test_every_replica_tells_of_open_transactions(cluster: Cluster) -> None:
    """As Kafka's tool for hanging transactions asks: each broker about all partitions of which it has a replica."""
    cluster.create_topic("open", PARTITIONS)
    group = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "of-an-open-one", **KEEP_TRYING})
    producer = begun(cluster, "an-open-one")
    producer.begin_transaction()
    for partition in range(PARTITIONS):
        producer.produce("open", b"1", partition=partition)
    assert producer.flush(PATIENCE_SECONDS) == 0
    offsets = [TopicPartition("open", 0, 1)]
    producer.send_offsets_to_transaction(offsets, group.consumer_group_metadata(), PATIENCE_SECONDS)
    topics = {"open": PARTITIONS, "__consumer_offsets": STATE_PARTITIONS, "__transaction_state": STATE_PARTITIONS}

    def open_at(node_id: int) -> dict[tuple[str, int], set[tuple[int, int]]] | None:
        """Producers with open transactions by partition; None: one of these is not told of."""
        asked = tuple(
            DescribeProducersTopic(name=name, partition_indexes=tuple(range(count))) for name, count in topics.items()
        )
        try:
            connection = KafkaConnection(parsed(cluster.nodes[node_id].kafka))
            with closing(connection):
                answer = connection.call(DescribeProducersRequest(topics=asked), 0)
        except (CommandLineError, OSError):
            return None
        rows = {(topic.name, row.partition_index): row for topic in answer.topics for row in topic.partitions}
        if any(row.error_code for row in rows.values()):
            return None
        return {
            place: opened
            for place, row in rows.items()
            if (opened := {(it.producer_id, it.producer_epoch) for it in row.active_producers if _is_open(it)})
        }

    def places_at(node_id: int) -> set[tuple[str, int]]:
        """The partitions in which this producer is told to have an open transaction."""
        found = eventually(partial(open_at, node_id), seconds=PATIENCE_SECONDS, what=f"what node {node_id} tells")
        [own] = found["open", 0]
        return {place for place, opened in found.items() if own in opened}

    offsets_of = ("__consumer_offsets", coordinator_partition_of("of-an-open-one", STATE_PARTITIONS))
    for node_id in cluster.nodes:
        assert places_at(node_id) == {offsets_of, *(("open", partition) for partition in range(PARTITIONS))}
    producer.abort_transaction(PATIENCE_SECONDS)
    group.close()


def _is_open(producer: DescribedProducer) -> bool:
    return producer.current_txn_start_offset >= 0


@pytest.mark.long
def test_nothing_is_half_visible_when_nodes_are_killed_again_and_again(cluster: Cluster) -> None:
    """While readers of committed data read. In the end nothing is open anywhere."""
    topic = "many"
    cluster.create_topic(topic, PARTITIONS)
    writer = Writer(cluster, topic)
    began = time.monotonic()
    with ThreadPoolExecutor(PARTITIONS) as readers:
        reading = [readers.submit(seen, cluster, topic, partition) for partition in range(PARTITIONS)]
        for number in range(KILLS):
            if number % ABANDONED_EVERY == 0:
                writer.abandon(number)
            writer.write(number, kills=True)
            print(f"seed {SEED}, number {number}: {writer.killed}", file=sys.stderr, flush=True)
        writer.last_words()
        while_killing = [one.result() for one in reading]
    check(writer, while_killing)
    check(writer, [seen(cluster, topic, partition) for partition in range(PARTITIONS)])
    writer.group.close()
    hanging = CliRunner().invoke(
        root, ["txn", "list", "--hanging", "--idle-minutes", "0", "--json", "--bootstrap", cluster.bootstrap]
    )
    assert hanging.exit_code == 0, hanging.output
    assert json.loads(hanging.output) == {"hanging": []}
    waits = [of_partition[number] - told for of_partition in while_killing for number, told in writer.committed.items()]
    print(
        f"seed {SEED}: {sum(writer.killed.values())} kills ({writer.killed}) in {time.monotonic() - began:.0f} s: "
        f"{len(writer.committed)} of {KILLS} transactions committed, {len(while_killing[0])} visible; "
        f"{writer.abandoned} abandoned; from a commit to its reader {max(waits):.1f} s at most; "
        f"the longest calls, in seconds: { ({name: round(took, 1) for name, took in writer.slowest.items()}) }; "
        f"standstills: {writer.standstills.told}"
    )
