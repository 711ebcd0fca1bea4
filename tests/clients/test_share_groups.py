"""librdkafka's share consumer (a preview, KIP-932): members read one partition together, records come back that nobody
accepted, and the node is killed; nothing is lost, and nothing that was accepted comes again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import AcknowledgeType, Message
from confluent_kafka.admin import AdminClient, NewTopic
from tests.clients.conftest import SETTINGS
from tests.clients.drivers import librdkafka
from tests.clients.drivers.librdkafka import KEEP_TRYING
from tests.clients.drivers.sharing import Sharing
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving

HASTE = (
    "groups.consumer_heartbeat_interval_ms=100",
    "shares.auto_offset_reset=earliest",
    "shares.lock_duration_ms=2000",
    "shares.record_locks_max=200",
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    serving = Serving(tmp_path_factory.mktemp("node"), *SETTINGS, *HASTE)
    try:
        yield serving.start()
    finally:
        serving.close()


def filled(node: Serving, topic: str, records: int, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka, **KEEP_TRYING})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(PATIENCE_SECONDS)
    sender = librdkafka.producer(node.kafka, **{"batch.num.messages": 10})
    for number in range(records):
        sender.produce(topic, b"%d" % number, partition=number % partitions)
    assert sender.flush(PATIENCE_SECONDS) == 0


def until(done: Callable[[], object], step: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not done():
        assert time.monotonic() < deadline, what
        step()


def test_two_members_read_one_partition_together(node: Serving) -> None:
    filled(node, "together", 2_000)
    with Sharing(node.kafka, "team", "together") as one, Sharing(node.kafka, "team", "together") as two:
        until(
            lambda: len(one.accepted | two.accepted) == 2_000,
            lambda: (one.take(), two.take()),
            "all of it",
        )
        assert one.accepted, "each has a part"
        assert two.accepted, "each has a part"
        assert max((one.seen + two.seen).values()) == 1, "and no record went to both"


def test_records_are_released_and_rejected(node: Serving) -> None:
    filled(node, "mixed", 20)

    def say(message: Message) -> AcknowledgeType:
        first = member.seen[message.partition(), message.offset()] == 1
        if message.offset() == 3:
            return AcknowledgeType.REJECT
        return AcknowledgeType.RELEASE if message.offset() == 5 or (message.offset() == 7 and first) else accepted

    accepted = AcknowledgeType.ACCEPT
    with Sharing(node.kafka, "picky", "mixed") as member:
        until(
            lambda: len(member.accepted) == 18 and member.seen[0, 5] == 5,
            lambda: member.take(say),
            "all but what was rejected, and what was always released",
        )
        member.take(say)
    assert member.seen[0, 3] == 1, "what was rejected goes to nobody"
    assert member.seen[0, 7] == 2, "what was released comes again"
    assert member.seen[0, 5] == 5, "as often as a record is given out at most"
    assert all(member.seen[0, offset] == 1 for offset in range(20) if offset not in (3, 5, 7))


def test_a_group_is_deleted_with_what_it_has_read(node: Serving) -> None:
    filled(node, "deleted", 10)
    admin = AdminClient({"bootstrap.servers": node.kafka, **KEEP_TRYING})
    for _ in range(2):
        with Sharing(node.kafka, "passing", "deleted") as member:
            until(lambda: len(member.accepted) == 10, member.take, "all of it, also by the group's second life")
        admin.delete_consumer_groups(["passing"])["passing"].result(PATIENCE_SECONDS)


def test_the_node_is_killed_on_the_way(node: Serving) -> None:
    filled(node, "killed", 400, partitions=2)
    with Sharing(node.kafka, "brave", "killed") as member:
        until(lambda: len(member.accepted) >= 100, member.take, "a part")
        node.kill()
        node.start()
        before = set(member.accepted)
        with Sharing(node.kafka, "brave", "killed") as other:
            until(
                lambda: len(member.accepted | other.accepted) == 400,
                lambda: (member.take(), other.take()),
                "the rest",
            )
            assert not before & other.seen.keys(), "what was accepted does not come again"
            assert all(member.seen[record] == 1 for record in before)
