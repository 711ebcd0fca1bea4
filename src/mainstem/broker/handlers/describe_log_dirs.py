"""DescribeLogDirs: how much of each partition lies on disk 1 (not split yet) and in the queue store.

A partition is listed under the store only when some of it is there.
"""

from __future__ import annotations

from collections.abc import Iterable

from mainstem.broker.broker import Broker, Call
from mainstem.broker.node_facts import LogDir
from mainstem.model import QueueUsage, Topic
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

UNKNOWN_BYTES = -1

_Usages = list[tuple[Topic, list[tuple[int, QueueUsage]]]]


async def handle(broker: Broker, request: DescribeLogDirsRequest, call: Call) -> DescribeLogDirsResponse:
    usages: _Usages = []
    for topic, partitions in _asked(broker, request):
        found = await broker.queue_admin.usage([topic.queue_id(partition) for partition in partitions])
        known = [(index, usage) for index, usage in zip(partitions, found, strict=True) if usage is not None]
        usages.append((topic, known))
    results = []
    if broker.facts.write_dir is not None:
        topics = _topics(usages, stored=False)
        results.append(await _result(broker.facts.write_dir, topics))
    if broker.facts.store_dir is not None:
        topics = _topics(usages, stored=True)
        results.append(await _result(broker.facts.store_dir, topics))
    return DescribeLogDirsResponse(error_code=ErrorCode.NONE, results=tuple(results))


def _asked(broker: Broker, request: DescribeLogDirsRequest) -> Iterable[tuple[Topic, list[int]]]:
    """Existing topics and partitions out of those asked for; null asks for all."""
    if request.topics is None:
        return [(topic, list(range(topic.partitions))) for topic in broker.metadata.topics()]
    asked: dict[str, dict[int, None]] = {}
    for item in request.topics:
        asked.setdefault(item.topic, {}).update(dict.fromkeys(item.partitions))
    found = []
    for name, partitions in asked.items():
        topic = broker.metadata.topic(name)
        if topic is not None:
            found.append((topic, [index for index in partitions if 0 <= index < topic.partitions]))
    return found


def _topics(usages: _Usages, *, stored: bool) -> tuple[DescribeLogDirsTopic, ...]:
    topics = []
    for topic, partitions in usages:
        described = tuple(
            DescribeLogDirsPartition(
                partition_index=partition,
                partition_size=usage.stored_bytes if stored else usage.unsplit_bytes,
                offset_lag=0,
                is_future_key=False,
            )
            for partition, usage in partitions
            if not stored or usage.stored_bytes > 0
        )
        if described:
            topics.append(DescribeLogDirsTopic(name=topic.name, partitions=described))
    return tuple(topics)


async def _result(place: LogDir, topics: tuple[DescribeLogDirsTopic, ...]) -> DescribeLogDirsResult:
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
