"""The row of a real client library: ten consumers of librdkafka join at once, and one leaves."""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import Consumer

from bench.errors import BenchError
from bench.groups.administration import new_topic
from bench.groups.rebalances import PARTITIONS_PER_MEMBER, QUIET_SECONDS, SETTLE_SECONDS_MAX, Rebalance

LOOK_SECONDS = 0.005


async def librdkafka_rebalances(address: str, protocol: str, members: int, cpu: Callable[[], float]) -> list[Rebalance]:
    """Two of the causes, by the same name as in `rebalances`. Raises BenchError."""
    partitions = PARTITIONS_PER_MEMBER * members
    name = f"librdkafka-{protocol}-{time.time_ns()}"
    await new_topic(address, name, partitions)
    settings = {"bootstrap.servers": address, "group.id": f"group-{name}", "group.protocol": protocol, "log_level": 0}
    consumers = [Consumer(settings) for _ in range(members)]
    found: list[Rebalance] = []
    try:
        begun, before = time.monotonic(), cpu()
        for consumer in consumers:
            consumer.subscribe([name])
        _settled(consumers, partitions)
        found.append(Rebalance("all join", time.monotonic() - begun, cpu() - before))
        _polled(consumers, QUIET_SECONDS)
        begun, before = time.monotonic(), cpu()
        consumers.pop().close()
        _settled(consumers, partitions)
        found.append(Rebalance("one leaves", time.monotonic() - begun, cpu() - before))
    finally:
        for consumer in consumers:
            consumer.close()
    return found


def _settled(consumers: list[Consumer], partitions: int) -> None:
    """Returns once each partition has one reader, and no consumer has two more than another. Raises BenchError."""
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    while True:
        assigned = [{one.partition for one in consumer.assignment()} for consumer in consumers]
        sizes = [len(one) for one in assigned]
        if sum(sizes) == len(set().union(*assigned)) == partitions and max(sizes) - min(sizes) <= 1:
            return
        if time.monotonic() > deadline:
            raise BenchError(f"librdkafka: not settled after {SETTLE_SECONDS_MAX:.0f} s, partitions by member: {sizes}")
        _polled(consumers, LOOK_SECONDS)


def _polled(consumers: list[Consumer], seconds: float) -> None:
    until = time.monotonic() + seconds
    while True:
        for consumer in consumers:
            consumer.poll(0)
        if time.monotonic() >= until:
            return
        time.sleep(LOOK_SECONDS)
