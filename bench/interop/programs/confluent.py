"""confluent-kafka: librdkafka from Python."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition, libversion
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic

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


def topic(address: str, partitions: int = 1, **configs: str) -> str:
    name = new_name("topic")
    admin = AdminClient({"bootstrap.servers": address})  # it must live until the answer is there
    admin.create_topics([NewTopic(name, partitions, 1, config=configs)])[name].result(SECONDS_MAX)
    return name


def send(address: str, name: str, count: int = 0, settings: Mapping[str, Any] = MappingProxyType({})) -> None:
    """The awkward messages, or so many numbers."""
    failed: list[object] = []
    sender = Producer({"bootstrap.servers": address, "linger.ms": 20, **settings})
    said = (
        [(one.key, one.value, list(one.headers), one.timestamp_ms) for one in MESSAGES] if not count
        else [(None, b"%d" % number, [], FIRST_MS + number) for number in range(count)]
    )  # fmt: skip
    for key, value, headers, timestamp in said:
        sender.produce(
            name, value=value, key=key, headers=headers, partition=0, timestamp=timestamp,
            on_delivery=lambda error, _: failed.append(error) if error is not None else None,
        )  # fmt: skip
    same(sender.flush(SECONDS_MAX), 0, "unacknowledged messages")
    same(failed, [], "refused messages")


def consumer(address: str, group: str, **settings: Any) -> Consumer:
    return Consumer({
        "bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False,
        "fetch.wait.max.ms": 100, **settings,
    })  # fmt: skip


def take(reader: Consumer, count: int) -> list[Message]:
    found: list[Message] = []
    deadline = time.monotonic() + SECONDS_MAX
    while len(found) < count and time.monotonic() < deadline:
        for message in reader.consume(count - len(found), timeout=0.2):
            if message.error() is not None:
                raise KafkaException(message.error())
            found.append(message)
    same(len(found), count, "messages that came")
    return found


def read(address: str, name: str, count: int, **settings: Any) -> list[Message]:
    reader = consumer(address, new_name("unused"), **settings)
    reader.assign([TopicPartition(name, 0, 0)])
    found = take(reader, count)
    reader.close()
    return found


def round_trip(address: str) -> None:
    for compression in COMPRESSIONS:
        name = topic(address)
        send(address, name, settings={"compression.type": compression})
        found = [
            (one.key(), one.value(), tuple(one.headers() or ()), one.timestamp()[1])
            for one in read(address, name, len(MESSAGES))
        ]
        same(found, [tuple(one) for one in MESSAGES], compression)


def idempotent_producer(address: str) -> None:
    name = topic(address)
    send(address, name, 500, {"enable.idempotence": True})
    same([int(one.value() or b"") for one in read(address, name, 500)], list(range(500)), "order")


def consumer_group(address: str) -> None:
    name, group = topic(address), new_name("group")
    send(address, name, count=20)
    for first in (0, 10):
        reader = consumer(address, group)
        reader.subscribe([name])
        found = take(reader, 10)
        same([int(one.value() or b"") for one in found], list(range(first, first + 10)), "after a commit")
        reader.commit(message=found[-1], asynchronous=False)
        reader.close()


def two_members(address: str) -> None:
    name, group = topic(address, 4), new_name("group")
    readers = [consumer(address, group) for _ in range(2)]
    for reader in readers:
        reader.subscribe([name])
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        for reader in readers:
            reader.poll(0.1)
        shares = [sorted(one.partition for one in reader.assignment()) for reader in readers]
        if shared_out(shares, 4):
            break
    same(shared_out(shares, 4), True, f"two members have {shares}, which are all partitions")
    for reader in readers:
        reader.close()


def offsets_by_time(address: str) -> None:
    name = topic(address)
    send(address, name)
    reader = consumer(address, new_name("unused"))
    asked = [TopicPartition(name, 0, FIRST_MS + 3_500)]
    same(reader.offsets_for_times(asked, SECONDS_MAX)[0].offset, 4, "the first message after a time")
    same(reader.get_watermark_offsets(TopicPartition(name, 0), SECONDS_MAX), (0, len(MESSAGES)), "watermarks")
    reader.close()


def topics_and_configs(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    name = topic(address, 2, **{"retention.ms": "3600000"})
    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    same(admin.describe_configs([resource])[resource].result(SECONDS_MAX)["retention.ms"].value, "3600000", "a config")
    admin.create_partitions([NewPartitions(name, 3)])[name].result(SECONDS_MAX)
    deadline = time.monotonic() + SECONDS_MAX
    while (count := len(admin.list_topics(name, SECONDS_MAX).topics[name].partitions)) != 3:
        if time.monotonic() > deadline:
            same(count, 3, "partitions")
        time.sleep(0.1)
    admin.delete_topics([name])[name].result(SECONDS_MAX)


def groups_administered(address: str) -> None:
    name, group = topic(address), new_name("group")
    send(address, name, count=5)
    reader = consumer(address, group)
    reader.subscribe([name])
    reader.commit(message=take(reader, 5)[-1], asynchronous=False)
    reader.close()
    admin = AdminClient({"bootstrap.servers": address})
    listed = admin.list_consumer_groups().result(SECONDS_MAX)
    same(group in {one.group_id for one in listed.valid}, True, "the group is listed")
    admin.describe_consumer_groups([group])[group].result(SECONDS_MAX)
    admin.delete_consumer_groups([group])[group].result(SECONDS_MAX)


def delete_records(address: str) -> None:
    if not hasattr(AdminClient, "delete_records"):
        raise NotOffered("from version 2.5 on")
    name = topic(address)
    send(address, name, count=20)
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.delete_records([TopicPartition(name, 0, 15)]).values():
        same(future.result(SECONDS_MAX).low_watermark, 15, "log start")


def transactions(address: str) -> None:
    name = topic(address)
    sender = Producer({"bootstrap.servers": address, "transactional.id": new_name("transaction")})
    sender.init_transactions(SECONDS_MAX)
    for commits in (False, True):
        sender.begin_transaction()
        sender.produce(name, value=b"%d" % commits)
        if commits:
            sender.commit_transaction(SECONDS_MAX)
        else:
            sender.flush(SECONDS_MAX)
            sender.abort_transaction(SECONDS_MAX)
    found = read(address, name, 1, **{"isolation.level": "read_committed"})
    same([one.value() for one in found], [b"1"], "what was committed")


def _transactional(address: str, identity: str) -> Producer:
    sender = Producer({"bootstrap.servers": address, "transactional.id": identity})
    sender.init_transactions(SECONDS_MAX)
    return sender


def transactional_copy(address: str) -> None:
    """Reads one topic and writes another, offsets within the transaction; the first try is aborted."""
    source, target, group = topic(address), topic(address), new_name("group")
    send(address, source, count=10)
    sender = _transactional(address, new_name("transaction"))
    for commits in (False, True):
        reader = consumer(address, group, **{"isolation.level": "read_committed"})
        reader.subscribe([source])
        found = [one.value() for one in take(reader, 10)]
        same(found, [b"%d" % number for number in range(10)], "read from the last commit on")
        sender.begin_transaction()
        for value in found:
            sender.produce(target, value=value, partition=0)
        sender.send_offsets_to_transaction(
            [TopicPartition(source, 0, 10)], reader.consumer_group_metadata(), SECONDS_MAX
        )
        (sender.commit_transaction if commits else sender.abort_transaction)(SECONDS_MAX)
        reader.close()
    found = [one.value() for one in read(address, target, 10, **{"isolation.level": "read_committed"})]
    same(found, [b"%d" % number for number in range(10)], "the copy")


def zombie_fenced(address: str) -> None:
    name, identity = topic(address), new_name("transaction")
    old = _transactional(address, identity)
    old.begin_transaction()
    old.produce(name, value=b"old")
    same(old.flush(SECONDS_MAX), 0, "unacknowledged messages")
    successor = _transactional(address, identity)
    successor.begin_transaction()
    successor.produce(name, value=b"new")
    successor.commit_transaction(SECONDS_MAX)
    try:
        old.commit_transaction(SECONDS_MAX)
    except KafkaException as error:
        same(error.args[0].fatal(), True, f"whether {error} is fatal")
    else:
        raise AssertionError("the older producer committed")
    found = read(address, name, 1, **{"isolation.level": "read_committed"})
    same([one.value() for one in found], [b"new"], "what was committed")


def new_group_protocol(address: str) -> None:
    """Two members get the messages of a topic, and the partitions between them, by the protocol of KIP-848."""
    if int(libversion()[0].split(".")[1]) < 10:  # released for use in 2.12, there from 2.10 on
        raise NotOffered("group.protocol=consumer")
    name, group = topic(address, 4), new_name("group")
    send(address, name, count=10)
    readers = [consumer(address, group, **{"group.protocol": "consumer"}) for _ in range(2)]
    for reader in readers:
        reader.subscribe([name])
    shares: list[list[int]] = []
    found: list[bytes | None] = []
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline and not (shared_out(shares, 4) and len(found) == 10):
        for reader in readers:
            message = reader.poll(0.2)
            if message is not None and message.error() is None:
                found.append(message.value())
        shares = [sorted(one.partition for one in reader.assignment()) for reader in readers]
    same(shared_out(shares, 4), True, f"two members have {shares}, which are all partitions")
    same(sorted(one or b"" for one in found), sorted(b"%d" % number for number in range(10)), "messages")
    for reader in readers:
        reader.close()


def share_group(address: str) -> None:
    """Messages that a consumer releases come again, those that it rejects do not."""
    if not hasattr(confluent_kafka, "ShareConsumer"):
        raise NotOffered("share groups")
    name, group = topic(address), new_name("share")
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": address})
    admin.incremental_alter_configs([resource])[resource].result(SECONDS_MAX)
    send(address, name, count=20)
    reader = confluent_kafka.ShareConsumer({
        "bootstrap.servers": address, "group.id": group, "share.acknowledgement.mode": "explicit",
    })  # fmt: skip
    reader.subscribe([name])
    accepted: set[int] = set()
    released: set[int] = set()
    kinds = confluent_kafka.AcknowledgeType
    deadline = time.monotonic() + SECONDS_MAX
    while len(accepted) < 16 and time.monotonic() < deadline:
        for message in reader.poll(0.2):
            number = int(message.value() or b"")
            if number % 5 == 0:
                reader.acknowledge(message, kinds.REJECT)
            elif number % 5 == 1 and number not in released:
                released.add(number)
                reader.acknowledge(message, kinds.RELEASE)
            else:
                accepted.add(number)
                reader.acknowledge(message, kinds.ACCEPT)
        reader.commit_sync()
    reader.close()
    same(sorted(accepted), [number for number in range(20) if number % 5], "accepted messages")


if __name__ == "__main__":
    run({
        "round trip": round_trip, "idempotent producer": idempotent_producer, "consumer group": consumer_group,
        "two members": two_members, "offsets by time": offsets_by_time, "topics and configs": topics_and_configs,
        "groups administered": groups_administered, "delete records": delete_records, "transactions": transactions,
        "transactional copy": transactional_copy, "zombie fenced": zombie_fenced,
        "new group protocol": new_group_protocol, "share group": share_group,
    })  # fmt: skip
