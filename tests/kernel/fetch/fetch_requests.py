"""Fetch requests for the tests of both kernels: how they are made, and how what a scan saw is looked at."""

from __future__ import annotations

from types import ModuleType
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

import mainstem.kernel.compiled as compiled
import mainstem.kernel.pure as pure
from mainstem.kernel import MalformedFetch
from mainstem.protocol import codec
from mainstem.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)

KERNELS: list[ModuleType] = [pure, compiled]
VERSIONS = range(4, 19)
PREFIX = b"header"

Seen = dict[str, Any]

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
SMALL = st.integers(-1, 5)


def key_of(version: int, number: int) -> dict[str, Any]:
    """The field that says which topic is meant."""
    if version >= 13:
        return {"topic_id": UUID(int=number << 64 | number)}
    return {"topic": f"töpic-{number}"}


@st.composite
def partitions(draw: st.DrawFn, version: int) -> FetchPartition:
    tagged: dict[str, Any] = {}
    if version >= 17:
        tagged["replica_directory_id"] = UUID(int=draw(st.integers(0, 3)))
    if version >= 18:
        tagged["high_watermark"] = draw(st.sampled_from([2**63 - 1, 5]))
    return FetchPartition(
        partition=draw(st.one_of(SMALL, INT32)),
        current_leader_epoch=draw(st.one_of(SMALL, INT32)) if version >= 9 else -1,
        fetch_offset=draw(st.one_of(SMALL, INT64)),
        last_fetched_epoch=draw(st.one_of(SMALL, INT32)) if version >= 12 else -1,
        log_start_offset=draw(INT64),
        partition_max_bytes=draw(INT32),
        **tagged,
    )


@st.composite
def requests(draw: st.DrawFn, version: int) -> FetchRequest:
    numbers = st.integers(0, 4)
    topics = tuple(
        FetchTopic(**key_of(version, draw(numbers)), partitions=tuple(draw(st.lists(partitions(version), max_size=4))))
        for _ in range(draw(st.integers(0, 4)))
    )
    forgotten = tuple(
        ForgottenTopic(**key_of(version, draw(numbers)), partitions=tuple(draw(st.lists(INT32, max_size=4))))
        for _ in range(draw(st.integers(0, 3)) if version >= 7 else 0)
    )
    tagged: dict[str, Any] = {}
    if version >= 12:
        tagged["cluster_id"] = draw(st.sampled_from([None, "", "cluster"]))
    if version >= 15:
        tagged["replica_state"] = ReplicaState(replica_id=draw(SMALL), replica_epoch=draw(SMALL))
    return FetchRequest(
        replica_id=draw(INT32) if version < 15 else -1,
        max_wait_ms=draw(INT32),
        min_bytes=draw(INT32),
        max_bytes=draw(INT32),
        isolation_level=draw(st.integers(-128, 127)),
        session_id=draw(INT32) if version >= 7 else 0,
        session_epoch=draw(INT32) if version >= 7 else -1,
        topics=topics,
        forgotten_topics_data=forgotten,
        rack_id=draw(st.sampled_from(["", "räck", "r" * 300])) if version >= 11 else "",
        **tagged,
    )


versioned_requests = st.sampled_from(list(VERSIONS)).flatmap(
    lambda version: st.tuples(st.just(version), requests(version))
)


def seen_by_scan(kernel: ModuleType, body: bytes, version: int) -> Seen:
    """The result that a kernel's scan makes of a body, or why it refuses it."""
    frame = memoryview(bytearray(PREFIX + body))
    try:
        scan = kernel.scan_fetch(frame, len(PREFIX), version)
    except MalformedFetch as error:
        return {"error": str(error)}
    rows = scan.plan.partitions()
    return {
        "header": (scan.max_wait_ms, scan.min_bytes, scan.max_bytes, scan.isolation_level),
        "session": (scan.session_id, scan.session_epoch),
        "forgotten": [(key, list(found)) for key, found in scan.forgotten],
        "rows": [tuple(row[:6]) for row in rows],
        "wanted": scan.plan.wanted_bytes,
        "asks_epochs": bool(scan.plan.asks_epochs),
        "rack": scan.rack,
    }


def seen_by_codec(body: bytes, version: int) -> Seen:
    """The same from the codec. Raises MalformedMessage."""
    request, _ = codec.read_prefix(FetchRequest, version, body)

    def key(topic: FetchTopic | ForgottenTopic) -> str | bytes:
        return topic.topic_id.bytes if version >= 13 else topic.topic

    rows = [(key(topic), row) for topic in request.topics for row in topic.partitions]
    return {
        "header": (request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level),
        "session": (request.session_id, request.session_epoch),
        "forgotten": [(key(topic), list(topic.partitions)) for topic in request.forgotten_topics_data],
        "rows": [
            (
                name, row.partition, row.fetch_offset, max(0, row.partition_max_bytes), row.current_leader_epoch,
                row.last_fetched_epoch,
            )
            for name, row in rows
        ],
        "wanted": sum(max(0, row.partition_max_bytes) for _, row in rows),
        "asks_epochs": any(row.last_fetched_epoch >= 0 for _, row in rows),
        "rack": request.rack_id,
    }  # fmt: skip
