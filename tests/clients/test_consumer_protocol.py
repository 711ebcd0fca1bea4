"""librdkafka with `group.protocol=consumer`: the node assigns. Members come, go and die, the node is killed; nothing is
missed, and no partition has two readers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain

import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.clients.conftest import SETTINGS
from tests.clients.drivers.librdkafka import KEEP_TRYING
from tests.clients.test_consumer_groups import Member, closing, fill, is_shared, poll_until
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
