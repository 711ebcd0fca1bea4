"""librdkafka with `group.protocol=consumer`: the node assigns. Members come, go and die, the node is killed; nothing is
missed, and no partition has two readers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.clients.conftest import SETTINGS
from tests.clients.drivers.librdkafka import KEEP_TRYING, producer
from tests.clients.test_consumer_groups import COOPERATIVE, EAGER, Member, closing, fill, is_shared, poll_until
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving

PROTOCOL = {"group.protocol": "consumer"}
HASTE = ("groups.consumer_heartbeat_interval_ms=100", "groups.consumer_session_timeout_ms=3000")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    serving = Serving(tmp_path_factory.mktemp("node"), *SETTINGS, *HASTE)
    try:
        yield serving.start()
    finally:
        serving.close()


def topic_of(node: Serving, name: str) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": node.kafka, **KEEP_TRYING})
    admin.create_topics([NewTopic(name, 4, 1)])[name].result(PATIENCE_SECONDS)
    return admin


def test_members_come_and_go_and_die(node: Serving) -> None:
    topic = group = "shared"
    admin = topic_of(node, topic)
    fill(node.kafka, topic, 4, 50)
    settings = {**PROTOCOL, "enable.auto.commit": True, "auto.commit.interval.ms": 100}
    first = Member(node.kafka, group, topic, **settings)
    with closing(first):
        poll_until([first], lambda: len(set(first.read)) == 200, "all of it")
        with closing(Member(node.kafka, group, topic, **settings)) as (second,):
            poll_until([first, second], lambda: is_shared([first, second], 4), "an even share of two")
            (listed,) = admin.list_consumer_groups().result(PATIENCE_SECONDS).valid
            assert (listed.group_id, listed.type) == (group, ConsumerGroupType.CONSUMER)
            described = admin.describe_consumer_groups([group])[group].result(PATIENCE_SECONDS)
            assert described.state is ConsumerGroupState.STABLE
            owned = [sorted(at.partition for at in member.assignment.topic_partitions) for member in described.members]
            assert sorted(owned) == sorted([first.partitions, second.partitions])
            fill(node.kafka, topic, 4, 50)
            poll_until([first, second], lambda: len({*first.read, *second.read}) == 400, "all of it")
            assert len(first.revoked) == 2, "what a member keeps is not taken away meanwhile"
        poll_until([first], lambda: is_shared([first], 4), "the rest goes to the one who stays")
        dying = start_dying(node.kafka, group, topic)
        try:
            poll_until([first], lambda: len(first.partitions) == 2, "a share beside the other")
            dying.send_signal(signal.SIGKILL)
            dying.wait()
            fill(node.kafka, topic, 4, 50)
            poll_until([first], lambda: is_shared([first], 4), "the session of the dead ends")
            late = {(partition, offset) for partition in range(4) for offset in range(100, 150)}
            poll_until([first], lambda: late <= set(first.read), "all of it")
        finally:
            dying.kill()
            dying.wait()


DYING = """
import sys
from tests.clients.test_consumer_groups import Member
member = Member(*sys.argv[1:4], **{"group.protocol": "consumer", "enable.auto.commit": False})
while True:
    member.poll()
"""


def start_dying(bootstrap: str, group: str, topic: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", DYING, bootstrap, group, topic],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_assignments_and_commits_outlive_the_node(node: Serving) -> None:
    topic = group = "outlived"
    topic_of(node, topic)
    fill(node.kafka, topic, 4, 10)
    settings = {**PROTOCOL, "enable.auto.commit": False}
    with closing(*(Member(node.kafka, group, topic, **settings) for _ in range(2))) as members:
        poll_until(members, lambda: is_shared(members, 4), "an even share of two")
        poll_until(members, lambda: len(set(chain(*(member.read for member in members)))) == 40, "all of it")
        for member in members:
            member.reader.commit(
                offsets=[TopicPartition(topic, partition, 10) for partition in member.partitions], asynchronous=False
            )
        before = [member.partitions for member in members]
        node.kill()
        node.start()
        fill(node.kafka, topic, 4, 10)
        poll_until(members, lambda: len(set(chain(*(member.read for member in members)))) == 80, "all of it")
        assert [member.partitions for member in members] == before
        asked = [TopicPartition(topic, partition) for partition in range(4)]
        assert [at.offset for at in members[0].reader.committed(asked, timeout=PATIENCE_SECONDS)] == [10] * 4


def test_a_regular_expression_is_resolved_by_the_node(node: Serving) -> None:
    topic_of(node, "logs-a")
    with closing(Member(node.kafka, "expressions", "^logs-.*", **PROTOCOL)) as (member,):
        fill(node.kafka, "logs-a", 4, 1)
        poll_until([member], lambda: len(set(member.read)) == 4, "all of it")


@pytest.mark.parametrize("assignor", [EAGER, COOPERATIVE])
def test_a_group_rolls_to_the_new_protocol_and_back_under_load(node: Serving, assignor: str) -> None:
    topic = group = f"rolling-{assignor}"
    admin = topic_of(node, topic)
    commits = {"enable.auto.commit": True, "auto.commit.interval.ms": 100}
    classic = {**commits, "partition.assignment.strategy": assignor, "heartbeat.interval.ms": 100}
    sender, sent = producer(node.kafka), 0
    members: list[Member] = []
    read: set[tuple[int, int]] = set()

    def shared() -> bool:
        """More has been written, nobody reads what another does, and all partitions are read."""
        nonlocal sent
        for partition in range(4):
            sender.produce(topic, b"%d" % sent, partition=partition)
        sent += 1
        sender.poll(0)
        owned = list(chain(*(member.partitions for member in members)))
        assert len(owned) == len(set(owned)), "a partition has two readers"
        return is_shared(members, 4)

    def roll(settings: dict[str, Any]) -> None:
        """Each member ends, and one with other settings takes its place."""
        for _ in range(3):
            ended = members.pop(0)
            ended.reader.close()
            read.update(ended.read)
            members.append(Member(node.kafka, group, topic, **settings))
            poll_until(members, shared, "an even share of three")

    def kind() -> ConsumerGroupType:
        found = admin.list_consumer_groups().result(PATIENCE_SECONDS).valid
        return next(listed.type for listed in found if listed.group_id == group)

    members += (Member(node.kafka, group, topic, **classic) for _ in range(3))
    try:
        poll_until(members, shared, "an even share of three")
        assert kind() is ConsumerGroupType.CLASSIC
        roll({**PROTOCOL, **commits})
        assert kind() is ConsumerGroupType.CONSUMER
        roll(classic)
        assert kind() is ConsumerGroupType.CLASSIC
        assert sender.flush(PATIENCE_SECONDS) == 0
        everything = {(partition, offset) for partition in range(4) for offset in range(sent)}
        poll_until(members, lambda: read.union(*(it.read for it in members)) >= everything, "all of it")
    finally:
        for member in members:
            member.reader.close()
    with closing(Member(node.kafka, group, topic, **commits)) as (after,):
        asked = [TopicPartition(topic, partition) for partition in range(4)]
        committed = after.reader.committed(asked, timeout=PATIENCE_SECONDS)
        assert [at.offset for at in committed] == [sent] * 4
