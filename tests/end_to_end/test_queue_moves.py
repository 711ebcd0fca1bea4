"""Queues move between the write groups of a node, round and round, under the load of an idempotent producer and of
transactions, while readers read and the node is killed: nothing is lost, repeated or reordered, and leader epochs never
go back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import AcknowledgeType, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import TopicPartition as PythonPartition
from kafka.errors import NoReassignmentInProgressError
from tests.clients.drivers import kafka_python, librdkafka
from tests.clients.drivers.sharing import Sharing
from tests.end_to_end.load import Load, Queue
from tests.end_to_end.readers import read_all
from tests.end_to_end.shell import all_have_moved, mainstem, mainstem_json, refused
from tests.end_to_end.tiering import split_and_merge
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving, eventually

WRITE_GROUPS = 4
PARTITIONS = 6
TOPIC, BANK = "moving", "bank"
MESSAGES_PER_SECOND = 400


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Serving]:
    serving = Serving(
        tmp_path, f"nameserver.write_groups={WRITE_GROUPS}", "pipeline.mode=off", "journal.segment_bytes=1MiB",
        "storage.write_cache_bytes=1MiB", "groups.offsets_topic_partitions=1", "transactions.topic_partitions=1",
    )  # fmt: skip
    serving.start()
    try:
        yield serving
    finally:
        serving.drop()


def group_of(node: Serving, topic: str, partition: int) -> int:
    group: int = mainstem_json(node, "cluster", "explain", f"{topic}:{partition}")["group"]
    return group


def is_in(node: Serving, topic: str, group: int) -> bool:
    return group_of(node, topic, 0) == group


def move(node: Serving, topic: str, partition: int) -> int:
    """Move a queue to the next write group, and return that."""
    to = (group_of(node, topic, partition) + 1) % WRITE_GROUPS
    told = mainstem(node, "cluster", "move-queue", f"{topic}:{partition}", "--to", str(to), "--wait")
    assert f"is in write group {to}" in told
    return to


def goes_on(load: Load) -> None:
    before = [load.count(Queue(TOPIC, partition)) for partition in range(PARTITIONS)]
    eventually(
        lambda: all(load.count(Queue(TOPIC, partition)) > count for partition, count in enumerate(before)),
        seconds=PATIENCE_SECONDS,
        what="acknowledgements in every partition",
    )


def epochs(bootstrap: str, topic: str, ends: dict[int, int]) -> dict[int, list[int]]:
    """Partition → the leader epochs of its records, in their order."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "epochs", "enable.auto.commit": False})
    found: dict[int, list[int]] = {partition: [] for partition in ends}
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
        for message in librdkafka.take(consumer, sum(ends.values())):
            found[message.partition()].append(message.leader_epoch())
    finally:
        consumer.close()
    return found


def test_queues_move_under_load(node: Serving) -> None:
    mainstem(node, "topic", "create", TOPIC, "--partitions", str(PARTITIONS))
    load = Load(node.kafka, [TOPIC], MESSAGES_PER_SECOND)
    load.start()
    try:
        goes_on(load)
        for partition in range(PARTITIONS):
            move(node, TOPIC, partition)
        goes_on(load)
        split_and_merge(node)
        node.kill()
        node.start()
        goes_on(load)
        for partition in range(PARTITIONS):
            move(node, TOPIC, partition)
        for partition in range(PARTITIONS):  # the node is killed half-way, wherever that is
            to = (group_of(node, TOPIC, partition) + 1) % WRITE_GROUPS
            mainstem(node, "cluster", "move-queue", f"{TOPIC}:{partition}", "--to", str(to))
            if partition == PARTITIONS // 2:
                node.kill()
                node.start()
        all_have_moved(node)
        goes_on(load)
        load.finish()
    finally:
        load.stop()
    split_and_merge(node)
    load.check_order()
    expected = load.expected()
    ends = {queue: len(records) for queue, records in expected.items()}
    assert read_all(node.kafka, ends) == expected
    by_partition = epochs(node.kafka, TOPIC, {queue.partition: end for queue, end in ends.items()})
    assert all(found == sorted(found) for found in by_partition.values()), "leader epochs never go back"
    described = mainstem_json(node, "topic", "describe", TOPIC)["partitions"]
    stays = {one["partition"]: [stay["write_group"] for stay in one["stays"]] for one in described}
    assert all(len(groups) == 4 for groups in stays.values()), stays
    of_files = {file["name"] for one in described for file in one["files"]}
    assert of_files, "all that lies in sealed segments is split"
    assert "WAS IN GROUP" in mainstem(node, "topic", "describe", TOPIC)
    node.stop()
    node.start()
    assert read_all(node.kafka, ends) == expected


def test_transactions_go_on_behind_a_move(node: Serving) -> None:
    mainstem(node, "topic", "create", BANK)
    producer = librdkafka.producer(node.kafka, **{"transactional.id": "teller"})
    producer.init_transactions(PATIENCE_SECONDS)
    kept: list[bytes] = []
    for number in range(3):
        producer.begin_transaction()
        producer.produce(BANK, b"first of %d" % number, partition=0)
        producer.flush(PATIENCE_SECONDS)
        to = (group_of(node, BANK, 0) + 1) % WRITE_GROUPS
        mainstem(node, "cluster", "move-queue", f"{BANK}:0", "--to", str(to))
        eventually(
            lambda: "transaction is open" in mainstem(node, "cluster", "status"),
            seconds=PATIENCE_SECONDS,
            what="that the move waits for the transaction",
        )
        if not number:
            cancelled_and_begun_again(node, BANK, to)
        producer.produce(BANK, b"last of %d" % number, partition=0)
        if number % 3 == 1:
            producer.abort_transaction(PATIENCE_SECONDS)
        else:
            producer.commit_transaction(PATIENCE_SECONDS)
            kept += [b"first of %d" % number, b"last of %d" % number]
        eventually(
            partial(is_in, node, BANK, to),
            seconds=PATIENCE_SECONDS,
            what="the queue in its new write group",
        )
    for _ in range(2):
        reader = librdkafka.consumer(node.kafka, "committed", **{"isolation.level": "read_committed"})
        try:
            reader.assign([TopicPartition(BANK, 0, 0)])
            assert [message.value() for message in librdkafka.take(reader, len(kept))] == kept
        finally:
            reader.close()
        node.kill()
        node.start()


def cancelled_and_begun_again(node: Serving, topic: str, to: int) -> None:
    """A move that waits is listed, cancelled by a client of Kafka, begun anew, taken back on the command line, and
    begun a third time."""
    python = kafka_python.admin(node.kafka)
    queue = PythonPartition(topic, 0)
    again = ("cluster", "move-queue", f"{topic}:0", "--to", str(to))
    try:
        (listed,) = python.list_partition_reassignments().items()
        assert listed[0] == queue
        assert python.alter_partition_reassignments({queue: None}) == {queue: None}
        assert python.list_partition_reassignments() == {}
        assert python.alter_partition_reassignments({queue: None}) == {queue: NoReassignmentInProgressError}
    finally:
        python.close()
    mainstem(node, *again)
    assert "stays in write group" in mainstem(node, "cluster", "move-queue", f"{topic}:0", "--cancel")
    assert "is not on its way" in refused(node, "cluster", "move-queue", f"{topic}:0", "--cancel")
    mainstem(node, *again)


def test_what_cannot_move_is_refused_with_its_reason(node: Serving) -> None:
    mainstem(node, "topic", "create", "plain")
    here = group_of(node, "plain", 0)
    other = (here + 1) % WRITE_GROUPS

    def why(queue: str, to: int) -> str:
        return refused(node, "cluster", "move-queue", queue, "--to", str(to))

    assert f"is in write group {here} already" in why("plain:0", here)
    assert "there is no write group 99" in why("plain:0", 99)
    assert "no partition 7" in why("plain:7", other)
    assert "there is no topic" in why("absent:0", other)
    producer = librdkafka.producer(node.kafka)
    producer.produce("plain", b"a record", partition=0)
    assert producer.flush(PATIENCE_SECONDS) == 0
    move(node, "plain", 0)
    compacted = refused(node, "topic", "alter", "plain", "--config", "cleanup.policy=compact")
    assert "cannot be compacted" in compacted
    explained = mainstem(node, "cluster", "explain", "plain:0")
    assert f"has moved: what its queues had before is in write group {here}, until retention" in explained


def test_a_queue_returns_to_where_it_has_records(node: Serving) -> None:
    mainstem(node, "topic", "create", "back")
    here = group_of(node, "back", 0)
    producer = librdkafka.producer(node.kafka)
    for value in (b"before", b"elsewhere", b"behind"):
        producer.produce("back", value, partition=0)
        assert producer.flush(PATIENCE_SECONDS) == 0
        if value == b"before":
            move(node, "back", 0)
        elif value == b"elsewhere":
            told = mainstem(node, "cluster", "move-queue", "back:0", "--to", str(here), "--wait")
            assert f"is in write group {here}" in told
    split_and_merge(node)
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "back", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition("back", 0, 0)])
        found = [(message.offset(), message.value()) for message in librdkafka.take(consumer, 3)]
    finally:
        consumer.close()
    assert found == [(0, b"before"), (1, b"elsewhere"), (2, b"behind")]


def test_coordinators_go_along_with_their_queues(node: Serving) -> None:
    """A consumer group and a transactional producer commit before a move of their coordinators, behind it, and once the
    node has started again."""
    mainstem(node, "topic", "create", "read", "--partitions", "2")
    reader = librdkafka.consumer(node.kafka, "team")
    places = [TopicPartition("read", 0), TopicPartition("read", 1)]
    producer = None
    try:
        for number in range(1, 5):
            if producer is None:
                producer = librdkafka.producer(node.kafka, **{"transactional.id": "teller"})
                producer.init_transactions(PATIENCE_SECONDS)
            producer.begin_transaction()
            producer.produce("read", b"%d" % number, partition=0)
            offsets = [TopicPartition("read", 1, number)]
            producer.send_offsets_to_transaction(offsets, reader.consumer_group_metadata(), PATIENCE_SECONDS)
            producer.commit_transaction(PATIENCE_SECONDS)
            reader.commit(offsets=[TopicPartition("read", 0, number)], asynchronous=False)
            for topic in ("__consumer_offsets", "__transaction_state"):
                move(node, topic, 0)
            if number == 3:
                node.kill()
                node.start()
                producer = None  # librdkafka's sends no offsets any more once its only node was away
            found = reader.committed(places, PATIENCE_SECONDS)
            assert [one.offset for one in found] == [number, number]
    finally:
        reader.close()


def test_share_groups_go_on_where_they_were(node: Serving) -> None:
    """Each record is accepted once, before moves and behind them, also when nothing is left of the write group that the
    queue was in when the group began."""
    mainstem(node, "topic", "create", "shared")
    mainstem(node, "config", "alter", "--group", "team", "--set", "share.auto.offset.reset=earliest")
    producer = librdkafka.producer(node.kafka)
    accepted: Counter[int] = Counter()
    for number, end in enumerate((25, 75, 150)):
        for _ in range(50):
            producer.produce("shared", b"a record", partition=0)
        assert producer.flush(PATIENCE_SECONDS) == 0
        with Sharing(node.kafka, "team", "shared") as member:
            eventually(
                partial(has_all_before, member, end, sum(accepted.values())),
                seconds=PATIENCE_SECONDS,
                what=f"the records before {end}",
            )
            accepted.update(offset for _, offset in member.accepted)
        move(node, "shared", 0)
        if number == 1:
            admin = AdminClient({"bootstrap.servers": node.kafka})
            admin.delete_records([TopicPartition("shared", 0, 60)])[TopicPartition("shared", 0)].result(30)
            node.kill()
            node.start()
    assert sorted(accepted) == list(range(150))
    assert max(accepted.values()) == 1


def has_all_before(member: Sharing, end: int, before: int) -> bool:
    """Take records, and accept those below an offset; whether all are accepted, some of them by earlier members."""
    member.take(lambda message: AcknowledgeType.ACCEPT if (message.offset() or 0) < end else AcknowledgeType.RELEASE)
    return len(member.accepted) == end - before
