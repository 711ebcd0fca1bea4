"""DescribeLogDirs: how much of each partition lies on disk 1 (not split yet) and in the queue store.

A partition is listed under the store only when some of it is there; under a shared store only by the node that leads
it, so that sums over all nodes count what is there once. A tool may ask for every partition: all
are looked up at once, and the answer is encoded piece by piece between turns of the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy

from mainstem.broker.broker import Broker, LogDir
from mainstem.broker.partitions import ExistingPartitions, existing_partitions
from mainstem.broker.request_context import RequestContext
from mainstem.model import Buffer, QueueUsage
from mainstem.protocol import codec
from mainstem.protocol.encoded_array import EncodedArray
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

UNKNOWN_BYTES = -1

PARTITIONS_PER_TURN = 500
"""Partitions described within one turn of the event loop: about a millisecond. A topic counts as one more."""

QUEUES_PER_TURN = 5_000
"""Partitions listed within one turn of the event loop: about a millisecond, but for a topic of more
partitions."""

PIECE_BYTES = 64 * 1024
"""Small topics are joined up to this size in bytes; large ones are pieces of their own."""

Usages = Sequence[QueueUsage | None]
"""The usage of all requested partitions, in their order."""


async def handle(broker: Broker, request: DescribeLogDirsRequest, call: RequestContext) -> DescribeLogDirsResponse:
    named = None if request.topics is None else [(topic.topic, topic.partitions) for topic in request.topics]
    asked = await existing_partitions(broker, named, QUEUES_PER_TURN)
    queue_ids: list[int] = []
    since_turn = 0
    for topic, partitions in asked:
        queue_ids += map(topic.queue_id, partitions)
        since_turn += len(partitions)
        if since_turn >= QUEUES_PER_TURN:
            since_turn = 0
            await asyncio.sleep(0)
    usages = await broker.queue_admin.usage(queue_ids)
    results = []
    for place, stored in ((broker.facts.write_dir, False), (broker.facts.store_dir, True)):
        if place is not None:
            here = await _led(broker, queue_ids, usages) if place.is_shared else usages
            results.append(await _result(place, await _topics(asked, here, call.version, stored=stored)))
    return DescribeLogDirsResponse(error_code=ErrorCode.NONE, results=tuple(results))


async def _led(broker: Broker, queue_ids: Sequence[int], usages: Usages) -> Usages:
    """The usages of partitions that this node leads; None for the others."""
    led: list[QueueUsage | None] = []
    for start in range(0, len(queue_ids), QUEUES_PER_TURN):
        part = numpy.array(queue_ids[start : start + QUEUES_PER_TURN], numpy.uint64)
        groups = broker.leadership.groups_of(part)
        ours = [group for group in numpy.unique(groups).tolist() if broker.leadership.leads(group)]
        mine = numpy.isin(groups, ours).tolist()
        led += [usage if here else None for usage, here in zip(usages[start : start + len(part)], mine, strict=True)]
        await asyncio.sleep(0)
    return led


async def _topics(asked: ExistingPartitions, usages: Usages, version: int, *, stored: bool) -> EncodedArray:
    """The topics of one directory; topics without a partition in it are left out."""
    buffers: list[bytes] = []
    encoded = bytearray()
    first = count = since_turn = 0
    for topic, partitions in asked:
        found: list[Buffer] = []
        size = 0
        for start in range(0, len(partitions), PARTITIONS_PER_TURN):
            part = partitions[start : start + PARTITIONS_PER_TURN]
            described = _partitions(part, usages[first + start : first + start + len(part)], stored=stored)
            found += codec.encode_elements(DescribeLogDirsResponse, version, DescribeLogDirsPartition, described)
            size += len(described)
            since_turn += len(part)
            if since_turn >= PARTITIONS_PER_TURN:
                since_turn = 0
                await asyncio.sleep(0)
        first += len(partitions)
        since_turn += 1
        if size:
            count += 1
            answer = DescribeLogDirsTopic(name=topic.name, partitions=EncodedArray(size, found))
            for piece in codec.encode_elements(DescribeLogDirsResponse, version, DescribeLogDirsTopic, [answer]):
                encoded += piece
            if len(encoded) >= PIECE_BYTES:
                buffers.append(bytes(encoded))
                encoded.clear()
    return EncodedArray(count, [*buffers, bytes(encoded)])


def _partitions(partitions: Sequence[int], usages: Usages, *, stored: bool) -> list[DescribeLogDirsPartition]:
    return [
        DescribeLogDirsPartition(
            partition_index=partition,
            partition_size=usage.stored_bytes if stored else usage.unsplit_bytes,
            offset_lag=0,
            is_future_key=False,
        )
        for partition, usage in zip(partitions, usages, strict=True)
        if usage is not None and (not stored or usage.stored_bytes > 0)
    ]


async def _result(place: LogDir, topics: EncodedArray) -> DescribeLogDirsResult:
    error, total_bytes, usable_bytes = ErrorCode.NONE, UNKNOWN_BYTES, UNKNOWN_BYTES
    if place.files is not None:
        try:
            total_bytes, usable_bytes = await place.files.usage()
        except OSError:
            error = ErrorCode.KAFKA_STORAGE_ERROR
    return DescribeLogDirsResult(
        error_code=error,
        log_dir=place.location,
        topics=topics,
        total_bytes=total_bytes,
        usable_bytes=usable_bytes,
    )
