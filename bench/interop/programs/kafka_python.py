"""kafka-python: a client in pure Python with a codec of its own. Versions 2 and 3."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic
from kafka.errors import KafkaError

from bench.interop.programs.scenario import (
    COMPRESSIONS,
    FIRST_MS,
    MESSAGES,
    SECONDS_MAX,
    NotOffered,
    new_name,
    run,
    same,
    shared_out,
)

MS_MAX = int(1000 * SECONDS_MAX)


def topic(address: str, partitions: int = 1, **configs: str) -> str:
    name = new_name("topic")
    admin = KafkaAdminClient(bootstrap_servers=address)
    admin.create_topics([NewTopic(name, partitions, 1, topic_configs=configs)], timeout_ms=MS_MAX)
    admin.close()
    return name


def producer(address: str, **settings: Any) -> KafkaProducer:
    try:
        return KafkaProducer(bootstrap_servers=address, linger_ms=20, **settings)
    except (AssertionError, TypeError) as unknown:  # the ways in which versions say it
        if "nrecognized config" in str(unknown):
            raise NotOffered(str(unknown)) from unknown
        raise


def send(address: str, name: str, count: int = 0, **settings: Any) -> None:
    """The awkward messages, or so many numbers."""
    sender = producer(address, **settings)
    said = (
        [(one.key, one.value, list(one.headers), one.timestamp_ms) for one in MESSAGES] if not count
        else [(None, b"%d" % number, [], FIRST_MS + number) for number in range(count)]
    )  # fmt: skip
    futures = [
        sender.send(name, value=value, key=key, headers=headers, partition=0, timestamp_ms=timestamp)
        for key, value, headers, timestamp in said
    ]
    for future in futures:
        future.get(timeout=SECONDS_MAX)
    sender.close(timeout=SECONDS_MAX)


def consumer(address: str, *topics: str, **settings: Any) -> KafkaConsumer:
    return KafkaConsumer(
        *topics, bootstrap_servers=address, auto_offset_reset="earliest", enable_auto_commit=False,
        fetch_max_wait_ms=100, **settings,
    )  # fmt: skip


def take(reader: KafkaConsumer, count: int) -> list[Any]:
    found: list[Any] = []
    deadline = time.monotonic() + SECONDS_MAX
    while len(found) < count and time.monotonic() < deadline:
        for records in reader.poll(timeout_ms=200, max_records=count - len(found)).values():
            found += records
    same(len(found), count, "messages that came")
    return found


def read(address: str, name: str, count: int, **settings: Any) -> list[Any]:
    reader = consumer(address, **settings)
    where = TopicPartition(name, 0)
    reader.assign([where])
    reader.seek(where, 0)
    found = take(reader, count)
    reader.close()
    return found


def round_trip(address: str) -> None:
    for compression in COMPRESSIONS:
        name = topic(address)
        send(address, name, compression_type=None if compression == "none" else compression)
        found = [(one.key, one.value, tuple(one.headers), one.timestamp) for one in read(address, name, len(MESSAGES))]
        same(found, [tuple(one) for one in MESSAGES], compression)


def idempotent_producer(address: str) -> None:
    name = topic(address)
    send(address, name, count=500, enable_idempotence=True)
    same([int(one.value) for one in read(address, name, 500)], list(range(500)), "order")


def consumer_group(address: str) -> None:
    name, group = topic(address), new_name("group")
    send(address, name, count=20)
    for first in (0, 10):
        reader = consumer(address, name, group_id=group)
        found = take(reader, 10)
        same([int(one.value) for one in found], list(range(first, first + 10)), "after a commit")
        reader.commit()
        reader.close()


def two_members(address: str) -> None:
    name, group = topic(address, 4), new_name("group")
    deadline = time.monotonic() + SECONDS_MAX
    shares: list[list[int]] = [[], []]
    met = threading.Event()

    def member(number: int) -> None:
        """Polls in a thread of its own: older versions do not return from it while they join."""
        reader = consumer(address, name, group_id=group, heartbeat_interval_ms=300)
        while time.monotonic() < deadline and not met.is_set():
            reader.poll(timeout_ms=300)
            shares[number] = sorted(one.partition for one in reader.assignment())
            if shared_out(shares, 4):
                met.set()  # before one of them leaves, and the other has all of them
        reader.close()

    with ThreadPoolExecutor(2) as threads:
        for ended in [threads.submit(member, number) for number in range(2)]:
            ended.result()
    same(met.is_set(), True, f"two members had all partitions between them (at the end {shares})")


def offsets_by_time(address: str) -> None:
    name = topic(address)
    send(address, name)
    reader, where = consumer(address), TopicPartition(name, 0)
    same(reader.offsets_for_times({where: FIRST_MS + 3_500})[where].offset, 4, "the first message after a time")
    same(reader.beginning_offsets([where])[where], 0, "log start")
    same(reader.end_offsets([where])[where], len(MESSAGES), "end")
    reader.close()


def topics_and_configs(address: str) -> None:
    name = topic(address, 2, **{"retention.ms": "3600000"})
    admin = KafkaAdminClient(bootstrap_servers=address)
    described = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
    same("3600000" in str(described), True, "a config is described")
    admin.create_partitions({name: NewPartitions(3)})
    deadline = time.monotonic() + SECONDS_MAX
    while (count := len(admin.describe_topics([name])[0]["partitions"])) != 3:
        if time.monotonic() > deadline:
            same(count, 3, "partitions")
        time.sleep(0.1)
    admin.delete_topics([name])
    admin.close()


def groups_administered(address: str) -> None:
    name, group = topic(address), new_name("group")
    send(address, name, count=5)
    reader = consumer(address, name, group_id=group)
    take(reader, 5)
    reader.commit()
    reader.close()
    admin = KafkaAdminClient(bootstrap_servers=address)
    lists = getattr(admin, "list_groups", None) or admin.list_consumer_groups  # version 3, version 2
    same(group in str(lists()), True, "the group is listed")
    describes = getattr(admin, "describe_groups", None) or admin.describe_consumer_groups
    same(group in str(describes([group])), True, "the group is described")
    deletes = getattr(admin, "delete_groups", None) or admin.delete_consumer_groups
    deletes([group])
    admin.close()


def transactions(address: str) -> None:
    name = topic(address)
    sender = producer(address, transactional_id=new_name("transaction"))
    sender.init_transactions()
    for commits in (False, True):
        sender.begin_transaction()
        sender.send(name, value=b"%d" % commits)
        if commits:
            sender.commit_transaction()
        else:
            sender.flush()
            sender.abort_transaction()
    sender.close()
    found = read(address, name, 1, isolation_level="read_committed")
    same([one.value for one in found], [b"1"], "what was committed")


def transactional_copy(address: str) -> None:
    """Reads one topic and writes another, offsets within the transaction; the first try is aborted."""
    source, target, group = topic(address), topic(address), new_name("group")
    send(address, source, count=10)
    sender = producer(address, transactional_id=new_name("transaction"))
    if not hasattr(KafkaConsumer, "group_metadata"):
        raise NotOffered("offsets in transactions with the group's metadata")
    sender.init_transactions()
    for commits in (False, True):
        reader = consumer(address, source, group_id=group, isolation_level="read_committed")
        found = [one.value for one in take(reader, 10)]
        same(found, [b"%d" % number for number in range(10)], "read from the last commit on")
        sender.begin_transaction()
        for value in found:
            sender.send(target, value=value, partition=0)
        offsets = {TopicPartition(source, 0): OffsetAndMetadata(10, "", -1)}
        sender.send_offsets_to_transaction(offsets, reader.group_metadata())
        sender.flush()
        (sender.commit_transaction if commits else sender.abort_transaction)()
        reader.close()
    sender.close()
    found = [one.value for one in read(address, target, 10, isolation_level="read_committed")]
    same(found, [b"%d" % number for number in range(10)], "the copy")


def zombie_fenced(address: str) -> None:
    name, identity = topic(address), new_name("transaction")
    old = producer(address, transactional_id=identity)
    old.init_transactions()
    old.begin_transaction()
    old.send(name, value=b"old").get(timeout=SECONDS_MAX)
    successor = producer(address, transactional_id=identity)
    successor.init_transactions()
    successor.begin_transaction()
    successor.send(name, value=b"new")
    successor.commit_transaction()
    try:
        old.commit_transaction()
    except KafkaError as error:
        same("Fenced" in type(error).__name__ or "ProducerEpoch" in type(error).__name__, True, f"{error!r} fences")
    else:
        raise AssertionError("the older producer committed")
    found = read(address, name, 1, isolation_level="read_committed")
    same([one.value for one in found], [b"new"], "what was committed")


if __name__ == "__main__":
    run({
        "round trip": round_trip, "idempotent producer": idempotent_producer, "consumer group": consumer_group,
        "two members": two_members, "offsets by time": offsets_by_time, "topics and configs": topics_and_configs,
        "groups administered": groups_administered, "transactions": transactions,
        "transactional copy": transactional_copy, "zombie fenced": zombie_fenced,
    })  # fmt: skip
