"""Records with keys for compacted topics, which the load generator does not make."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from bench.errors import BenchError
from bench.nodes.timed_node import Wire
from bench.topics import Queues
from mainstem.protocol.encoded_array import elements
from mainstem.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from mainstem.protocol.records.builder import NewRecord, build_batch

KEYED_RECORDS = 16
"""Per batch, each with a key of its own."""
SECONDS_MAX = 300.0


def write_keyed(address: str, queues: Queues, size: int) -> None:
    """Batches of records with keys, each half of the batches about the same keys as the other, in part: of every batch
    of the first half, half of the records go. Raises BenchError when one is refused."""
    (topic,) = queues.names
    wire = Wire(address, SECONDS_MAX)
    try:
        for batch in _keyed_batches(size // queues.count):
            partitions = tuple(PartitionProduceData(index=index, records=batch) for index in range(queues.count))
            request = ProduceRequest(
                acks=-1, timeout_ms=60_000, topic_data=(TopicProduceData(name=topic, partition_data=partitions),)
            )
            answer = wire.call(request, 9)
            (found,) = elements(answer.responses)
            if any(one.error_code for one in elements(found.partition_responses)):
                raise BenchError("records with keys were refused")
    finally:
        wire.close()


def _keyed_batches(size: int) -> Iterator[bytes]:
    """Those of one queue."""
    chance = random.Random(1)
    values = [chance.randbytes(1008) for _ in range(256)]
    now_ms = int(time.time() * 1000)
    half = max(1, size // (KEYED_RECORDS * 1024) // 2)
    for later in (False, True):
        for number in range(half):
            records = []
            for at in range(KEYED_RECORDS):
                fresh = later and at % 2 == 1
                key = (number * KEYED_RECORDS + at) * 2 + fresh
                records.append(NewRecord(now_ms, key.to_bytes(16, "big"), values[key % len(values)]))
            yield bytes(build_batch(records).data)
