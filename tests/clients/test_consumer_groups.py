"""Consumer groups as clients live them: sharing, publishing, rebalances, static members, offsets."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AsyncioPartition
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import TopicPartition as PythonPartition
from kafka.structs import OffsetAndMetadata
from tests.clients.conftest import MakeTopic
from tests.clients.drivers import kafka_python, kcat, librdkafka
from tests.clients.drivers.message import Message
from tests.harness.patience import PATIENCE_SECONDS

EAGER, COOPERATIVE = "range", "cooperative-sticky"
ASSIGNORS = pytest.mark.parametrize("assignor", [EAGER, "roundrobin", COOPERATIVE])


def fill(bootstrap: str, topic: str, partitions: int, each: int) -> None:
    sender = librdkafka.producer(bootstrap)
    for number in range(each):
        for partition in range(partitions):
            sender.produce(topic, b"%d" % number, b"%d" % partition, partition=partition)
    assert sender.flush(PATIENCE_SECONDS) == 0


class Member:
    """One member of a group, driven by `poll_all`."""

    def __init__(self, bootstrap: str, group: str, topic: str, **settings: Any) -> None:
        self.reader = librdkafka.consumer(bootstrap, group, **settings)
        self.read: list[tuple[int, int]] = []
        self.assignments = 0
        self.revoked: list[int] = []
        self.reader.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked)

    def _assigned(self, _: Consumer, __: list[TopicPartition]) -> None:
        self.assignments += 1

    def _revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.revoked += [partition.partition for partition in partitions]

    @property
    def partitions(self) -> list[int]:
        return sorted(partition.partition for partition in self.reader.assignment())

    def poll(self) -> None:
        for message in self.reader.consume(500, timeout=0.05):
            if message.error() is None:
                self.read.append((message.partition(), message.offset()))
            elif not message.error().retriable():
                raise KafkaException(message.error())


def poll_until(members: list[Member], check: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not check():
        for member in members:
            member.poll()
        state = [(member.partitions, len(member.read)) for member in members]
        assert time.monotonic() < deadline, f"{what} did not come true; assigned and read: {state}"


def is_shared(members: list[Member], partitions: int) -> bool:
    """Every partition has one owner, and nobody has much more than others."""
    owned = [member.partitions for member in members]
    counts = [len(each) for each in owned]
    return sorted(chain(*owned)) == list(range(partitions)) and max(counts) - min(counts) <= 1


@contextmanager
def closing(*members: Member) -> Iterator[list[Member]]:
    try:
        yield list(members)
    finally:
        for member in members:
            member.reader.close()


@ASSIGNORS
def test_members_share_what_groups_get_in_full(bootstrap: str, make_topic: MakeTopic, name: str, assignor: str) -> None:
    topic = make_topic(partitions=6)
    strategy = {"partition.assignment.strategy": assignor}
    with closing(
        *(Member(bootstrap, f"{name}-shared", topic, **strategy) for _ in range(3)),
        Member(bootstrap, f"{name}-alone", topic, **strategy),
    ) as members:
        *shared, alone = members
        poll_until(members, lambda: is_shared(shared, 6) and is_shared([alone], 6), "an even share")
        fill(bootstrap, topic, 6, 100)
        everything = {(partition, offset) for partition in range(6) for offset in range(100)}
        poll_until(
            members,
            lambda: len(alone.read) >= 600 and sum(len(member.read) for member in shared) >= 600,
            "everything read",
        )
        assert set(alone.read) == everything
        assert len(alone.read) == 600
        assert sorted(chain(*(member.read for member in shared))) == sorted(everything), "each message once"
        assert all(len(member.read) == 200 for member in shared)


@ASSIGNORS
def test_members_that_join_and_leave_move_partitions_and_no_message_is_missed(
    bootstrap: str, make_topic: MakeTopic, name: str, assignor: str
) -> None:
    topic = make_topic(partitions=4)
    settings = {
        "partition.assignment.strategy": assignor, "enable.auto.commit": True, "auto.commit.interval.ms": 200,
    }  # fmt: skip
    first = Member(bootstrap, name, topic, **settings)
    second = Member(bootstrap, name, topic, **settings)
    with closing(first):
        with closing(second):
            fill(bootstrap, topic, 4, 50)
            poll_until([first, second], lambda: is_shared([first, second], 4), "an even share of two")
            fill(bootstrap, topic, 4, 50)
            poll_until([first, second], lambda: len({*first.read, *second.read}) == 400, "all of it")
            kept = set(first.partitions)
            first.revoked.clear()
        fill(bootstrap, topic, 4, 50)
        poll_until([first], lambda: is_shared([first], 4), "the rest goes to the one who stays")
        poll_until([first], lambda: len({*first.read, *second.read}) == 600, "all of it")
        if assignor == COOPERATIVE:
            assert not kept & set(first.revoked), "what a member keeps is not taken away meanwhile"
        else:
            assert kept == set(first.revoked)
        # closing commits, so what the second one had read is not read again
        assert not {at for at in first.read if at in second.read and at[0] not in kept}


DYING = """
import sys, time
from tests.clients.test_consumer_groups import Member
member = Member(*sys.argv[1:4], **{
    "enable.auto.commit": True, "auto.commit.interval.ms": 100,
    "session.timeout.ms": 2_000, "heartbeat.interval.ms": 300,
})
while not member.read:
    member.poll()
print("reading", flush=True)
while True:
    member.poll()
"""


def test_the_partitions_of_a_member_that_died_go_to_the_others(
    bootstrap: str, make_topic: MakeTopic, name: str
) -> None:
    topic = make_topic(partitions=4)
    fill(bootstrap, topic, 4, 10)
    process = subprocess.Popen(
        [sys.executable, "-c", DYING, bootstrap, name, topic],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"reading\n"
        with closing(Member(bootstrap, name, topic)) as (survivor,):
            poll_until([survivor], lambda: len(survivor.partitions) == 2, "a share beside the other")
            process.send_signal(signal.SIGKILL)
            process.wait()
            fill(bootstrap, topic, 4, 10)
            poll_until([survivor], lambda: is_shared([survivor], 4), "the session of the dead ends")
            poll_until(
                [survivor],
                lambda: {at for at in survivor.read if at[1] >= 10} == late_half(4, 10),
                "all of it",
            )
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def late_half(partitions: int, each: int) -> set[tuple[int, int]]:
    return {(partition, offset) for partition in range(partitions) for offset in range(each, 2 * each)}


def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance(
    bootstrap: str, make_topic: MakeTopic, name: str
) -> None:
    topic = make_topic(partitions=4)
    settings = {"session.timeout.ms": 60_000}
    other = Member(bootstrap, name, topic, **settings, **{"group.instance.id": "other"})
    leaving = Member(bootstrap, name, topic, **settings, **{"group.instance.id": "static"})
    with closing(other):
        with closing(leaving):
            poll_until([other, leaving], lambda: is_shared([other, leaving], 4), "an even share")
            owned, before = leaving.partitions, (other.assignments, list(other.revoked))
        back = Member(bootstrap, name, topic, **settings, **{"group.instance.id": "static"})
        with closing(back):
            poll_until([other, back], lambda: bool(back.partitions), "it is back")
            assert back.partitions == owned
            assert (other.assignments, other.revoked) == before, "the other one noticed nothing"


def test_a_second_static_member_of_the_same_name_fences_the_first(
    bootstrap: str, make_topic: MakeTopic, name: str
) -> None:
    topic = make_topic(partitions=2)
    first = Member(bootstrap, name, topic, **{"group.instance.id": "twin"})
    poll_until([first], lambda: is_shared([first], 2), "the assignment")
    second = Member(bootstrap, name, topic, **{"group.instance.id": "twin"})
    try:
        with pytest.raises(KafkaException) as fenced:
            poll_until([first, second], lambda: False, "the fence")
        assert fenced.value.args[0].code() in (
            KafkaError._FENCED,
            KafkaError.FENCED_INSTANCE_ID,
            KafkaError._FATAL,
        )
        poll_until([second], lambda: is_shared([second], 2), "the second one owns all")
    finally:
        second.reader.close()
        first.reader.close()


def test_clients_of_different_make_share_one_group(bootstrap: str, make_topic: MakeTopic, name: str) -> None:
    """All three know the assignor "roundrobin", each by an implementation of its own."""
    asyncio.run(_mixed_group(bootstrap, make_topic(partitions=6), name))


async def _mixed_group(bootstrap: str, topic: str, group: str) -> None:
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

    fill(bootstrap, topic, 6, 20)
    by_librdkafka = Member(bootstrap, group, topic, **{"partition.assignment.strategy": "roundrobin"})
    by_python = kafka_python.consumer(
        bootstrap, topic, group_id=group, session_timeout_ms=45_000, heartbeat_interval_ms=300,
        partition_assignment_strategy=[RoundRobinPartitionAssignor],
    )  # fmt: skip
    by_asyncio = AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False,
        session_timeout_ms=45_000, heartbeat_interval_ms=300, fetch_max_wait_ms=100,
    )  # fmt: skip
    owned: dict[str, list[int]] = {"librdkafka": [], "kafka-python": [], "aiokafka": []}

    def poll_librdkafka() -> None:
        by_librdkafka.poll()
        owned["librdkafka"] = by_librdkafka.partitions

    def poll_python() -> None:
        by_python.poll(50)
        owned["kafka-python"] = sorted(partition.partition for partition in by_python.assignment())

    async def poll_asyncio() -> None:
        await by_asyncio.getmany(timeout_ms=50)
        owned["aiokafka"] = sorted(partition.partition for partition in by_asyncio.assignment())

    async def keep_polling(poll: Callable[[], Awaitable[None]]) -> None:
        """On its own: a member that joins blocks its own poll until all others have noticed, in theirs."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while [len(each) for each in owned.values()] != [2, 2, 2]:
            assert time.monotonic() < deadline, owned
            await poll()

    async def start_and_poll_asyncio() -> None:
        await by_asyncio.start()  # waits for its first partitions, and so for the others' polls
        await keep_polling(poll_asyncio)

    try:
        await asyncio.gather(
            keep_polling(lambda: asyncio.to_thread(poll_librdkafka)),
            keep_polling(lambda: asyncio.to_thread(poll_python)),
            start_and_poll_asyncio(),
        )
        assert sorted(chain(*owned.values())) == list(range(6))
    finally:
        await by_asyncio.stop()
        await asyncio.to_thread(by_python.close)
        await asyncio.to_thread(by_librdkafka.reader.close)


def test_commits_are_found_again_by_every_client(
    bootstrap: str, make_topic: MakeTopic, admin: AdminClient, name: str
) -> None:
    topic = make_topic(partitions=3)
    fill(bootstrap, topic, 3, 10)
    reader = librdkafka.consumer(bootstrap, name)
    reader.subscribe([topic])
    librdkafka.take(reader, 30)
    wanted = [TopicPartition(topic, 0, 4, metadata="a note"), TopicPartition(topic, 1, 10)]
    reader.commit(offsets=wanted, asynchronous=False)
    found = reader.committed(librdkafka.partitions(topic, range(3)), PATIENCE_SECONDS)
    assert [partition.offset for partition in found] == [4, 10, -1001]
    assert found[0].metadata == "a note"
    lag = 0
    for partition in found[:2]:
        low, high = reader.get_watermark_offsets(partition, PATIENCE_SECONDS)
        lag += high - partition.offset
        assert low == 0
    assert lag == 6
    reader.close()

    by_python = kafka_python.consumer(bootstrap, group_id=name)
    by_python.assign([PythonPartition(topic, number) for number in range(3)])
    assert by_python.committed(PythonPartition(topic, 0)) == 4
    assert by_python.committed(PythonPartition(topic, 2)) is None
    by_python.commit({PythonPartition(topic, 2): OffsetAndMetadata(7, "", -1)})
    by_python.close()

    async def by_asyncio() -> list[int | None]:
        async with AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=name, enable_auto_commit=False) as reader:
            reader.assign([AsyncioPartition(topic, number) for number in range(3)])
            await reader.commit({AsyncioPartition(topic, 1): 9})
            return [await reader.committed(AsyncioPartition(topic, number)) for number in range(3)]

    assert asyncio.run(by_asyncio()) == [4, 9, 7]

    again = librdkafka.consumer(bootstrap, name)
    again.subscribe([topic])
    read = {(message.partition(), message.offset()) for message in librdkafka.take(again, 10)}
    assert read == {(0, offset) for offset in range(4, 10)} | {(1, 9)} | {(2, offset) for offset in range(7, 10)}
    again.close()


def test_a_member_that_was_dropped_learns_that_its_commit_comes_too_late(bootstrap: str, topic: str, name: str) -> None:
    reader = librdkafka.consumer(bootstrap, name, **{"session.timeout.ms": 1_500, "max.poll.interval.ms": 1_500})
    librdkafka.produce(bootstrap, topic, [Message(b"1")])
    reader.subscribe([topic])
    librdkafka.take(reader, 1)

    def commit_without_polling() -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            time.sleep(0.2)
            reader.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)

    with pytest.raises(KafkaException) as refused:
        commit_without_polling()
    assert refused.value.args[0].code() in (
        KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError._STATE, KafkaError._NO_OFFSET,
    )  # fmt: skip
    reader.close()


def test_kcat_as_members_of_a_group(bootstrap: str, make_topic: MakeTopic, name: str) -> None:
    topic = make_topic(partitions=3)
    fill(bootstrap, topic, 3, 20)
    printed = kcat.output(
        bootstrap, "-G", name, "-c", "60", "-X", "auto.offset.reset=earliest", "-f", "%p %o\\n", topic
    )
    assert sorted(printed.split(b"\n")[:-1]) == sorted(b"%d %d" % (p, o) for p in range(3) for o in range(20))
    fill(bootstrap, topic, 3, 1)
    printed = kcat.output(bootstrap, "-G", name, "-c", "3", "-f", "%p %o\\n", topic)
    assert sorted(printed.split(b"\n")[:-1]) == [b"0 20", b"1 20", b"2 20"], "it goes on where it was"
