"""aiokafka: a client for asyncio with a codec of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.errors import InvalidProducerEpoch, KafkaError, ProducerFenced

from bench.interop.programs.scenario import (
    COMPRESSIONS,
    FIRST_MS,
    MESSAGES,
    SECONDS_MAX,
    new_name,
    run,
    same,
    shared_out,
)


async def topic(address: str, partitions: int = 1) -> str:
    name = new_name("topic")
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    await admin.create_topics([NewTopic(name, partitions, 1)])
    await admin.close()
    return name


async def send(address: str, name: str, count: int = 0, **settings: Any) -> None:
    """The awkward messages, or so many numbers."""
    said = (
        [(one.key, one.value, list(one.headers), one.timestamp_ms) for one in MESSAGES] if not count
        else [(None, b"%d" % number, [], FIRST_MS + number) for number in range(count)]
    )  # fmt: skip
    async with AIOKafkaProducer(bootstrap_servers=address, linger_ms=20, **settings) as sender:
        futures = [
            await sender.send(name, value=value, key=key, headers=headers, partition=0, timestamp_ms=timestamp)
            for key, value, headers, timestamp in said
        ]
        await asyncio.wait_for(asyncio.gather(*futures), SECONDS_MAX)


def consumer(address: str, *topics: str, **settings: Any) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        *topics, bootstrap_servers=address, auto_offset_reset="earliest", enable_auto_commit=False,
        fetch_max_wait_ms=100, **settings,
    )  # fmt: skip


async def take(reader: AIOKafkaConsumer, count: int) -> list[Any]:
    return [await asyncio.wait_for(reader.getone(), SECONDS_MAX) for _ in range(count)]


async def read(address: str, name: str, count: int, **settings: Any) -> list[Any]:
    async with consumer(address, **settings) as reader:
        where = TopicPartition(name, 0)
        reader.assign([where])
        reader.seek(where, 0)
        return await take(reader, count)


async def round_trip(address: str) -> None:
    for compression in COMPRESSIONS:
        name = await topic(address)
        await send(address, name, compression_type=None if compression == "none" else compression)
        found = [
            (one.key, one.value, tuple(one.headers), one.timestamp) for one in await read(address, name, len(MESSAGES))
        ]
        same(found, [tuple(one) for one in MESSAGES], compression)


async def idempotent_producer(address: str) -> None:
    name = await topic(address)
    await send(address, name, count=500, enable_idempotence=True)
    same([int(one.value) for one in await read(address, name, 500)], list(range(500)), "order")


async def consumer_group(address: str) -> None:
    name, group = await topic(address), new_name("group")
    await send(address, name, count=20)
    for first in (0, 10):
        async with consumer(address, name, group_id=group) as reader:
            found = await take(reader, 10)
            same([int(one.value) for one in found], list(range(first, first + 10)), "after a commit")
            await reader.commit({TopicPartition(name, 0): found[-1].offset + 1})


async def two_members(address: str) -> None:
    name, group = await topic(address, 4), new_name("group")
    readers = [consumer(address, name, group_id=group, heartbeat_interval_ms=300) for _ in range(2)]
    for reader in readers:
        await reader.start()
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        await asyncio.sleep(0.2)
        shares = [sorted(one.partition for one in reader.assignment()) for reader in readers]
        if shared_out(shares, 4):
            break
    same(shared_out(shares, 4), True, f"two members have {shares}, which are all partitions")
    for reader in readers:
        await reader.stop()


async def offsets_by_time(address: str) -> None:
    name = await topic(address)
    await send(address, name)
    async with consumer(address) as reader:
        where = TopicPartition(name, 0)
        found = await reader.offsets_for_times({where: FIRST_MS + 3_500})
        same(found[where].offset, 4, "the first message after a time")
        same((await reader.end_offsets([where]))[where], len(MESSAGES), "end")


async def topics_and_configs(address: str) -> None:
    name = await topic(address, 2)
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    await admin.create_partitions({name: NewPartitions(3)})
    deadline = time.monotonic() + SECONDS_MAX
    while (count := len((await admin.describe_topics([name]))[0]["partitions"])) != 3:
        if time.monotonic() > deadline:
            same(count, 3, "partitions")
        await asyncio.sleep(0.1)
    await admin.delete_topics([name])
    await admin.close()


async def transactions(address: str) -> None:
    name = await topic(address)
    async with AIOKafkaProducer(bootstrap_servers=address, transactional_id=new_name("transaction")) as sender:
        for commits in (False, True):
            await sender.begin_transaction()
            await sender.send_and_wait(name, b"%d" % commits)
            await (sender.commit_transaction() if commits else sender.abort_transaction())
    found = await read(address, name, 1, isolation_level="read_committed")
    same([one.value for one in found], [b"1"], "what was committed")


async def transactional_copy(address: str) -> None:
    """Reads one topic and writes another, offsets within the transaction; the first try is aborted."""
    source, target, group = await topic(address), await topic(address), new_name("group")
    await send(address, source, count=10)
    where, identity = TopicPartition(source, 0), new_name("transaction")
    async with AIOKafkaProducer(bootstrap_servers=address, transactional_id=identity) as sender:
        for commits in (False, True):
            async with consumer(address, source, group_id=group, isolation_level="read_committed") as reader:
                found = [one.value for one in await take(reader, 10)]
            same(found, [b"%d" % number for number in range(10)], "read from the last commit on")
            await sender.begin_transaction()
            for value in found:
                await sender.send_and_wait(target, value, partition=0)
            await sender.send_offsets_to_transaction({where: 10}, group)
            await (sender.commit_transaction() if commits else sender.abort_transaction())
    found = [one.value for one in await read(address, target, 10, isolation_level="read_committed")]
    same(found, [b"%d" % number for number in range(10)], "the copy")


async def zombie_fenced(address: str) -> None:
    name, identity = await topic(address), new_name("transaction")
    old = AIOKafkaProducer(bootstrap_servers=address, transactional_id=identity)
    await old.start()
    await old.begin_transaction()
    await old.send_and_wait(name, b"old")
    successor = AIOKafkaProducer(bootstrap_servers=address, transactional_id=identity)
    async with successor, successor.transaction():
        await successor.send_and_wait(name, b"new")
    try:
        await old.commit_transaction()
    except KafkaError as error:
        same(isinstance(error, (ProducerFenced, InvalidProducerEpoch)), True, f"{error!r} fences")
    else:
        raise AssertionError("the older producer committed")
    await old.stop()
    found = await read(address, name, 1, isolation_level="read_committed")
    same([one.value for one in found], [b"new"], "what was committed")


def _run(scenario: Callable[[str], Coroutine[Any, Any, None]]) -> Callable[[str], None]:
    return lambda address: asyncio.run(asyncio.wait_for(scenario(address), 2 * SECONDS_MAX))


if __name__ == "__main__":
    run({
        "round trip": _run(round_trip), "idempotent producer": _run(idempotent_producer),
        "consumer group": _run(consumer_group), "two members": _run(two_members),
        "offsets by time": _run(offsets_by_time), "topics and configs": _run(topics_and_configs),
        "transactions": _run(transactions), "transactional copy": _run(transactional_copy),
        "zombie fenced": _run(zombie_fenced),
    })  # fmt: skip
