"""Produce bodies, good and bad, for the tests of the scan: batches, the codec's bodies, and bodies made by hand."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple
from uuid import UUID

import google_crc32c
from hypothesis import strategies as st

from mainstem.kernel import ProduceScan, ProduceTopic, Verdict
from mainstem.protocol import codec
from mainstem.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from mainstem.protocol.records import Compression, NewRecord, build_batch

VERSIONS = range(3, 14)
PREFIX = b"header"
"""The bytes in front of the body in the frames of these tests."""

TOPIC_ID = UUID(int=7)
EVERYTHING = {"number": 9, "partitions": 2**31 - 1, "message_bytes_max": 2**31 - 1}
"""A topic that takes what the bytes alone allow."""


def good_batch(**fields: object) -> bytes:
    records = [NewRecord(timestamp=1000 + n, key=None, value=b"value") for n in range(3)]
    return bytes(build_batch(records, **fields).data)  # type: ignore[arg-type]


def changed(batch: bytes, position: int, format: str, value: int) -> bytes:
    """The batch with one header field overwritten and its checksum made right again."""
    data = bytearray(batch)
    struct.pack_into(format, data, position, value)
    struct.pack_into(">I", data, 17, google_crc32c.value(bytes(data[21:])))
    return bytes(data)


def body_of(
    version: int,
    *parts: bytes | None,
    name: str = "topic",
    transactional_id: str | None = None,
    acks: int = -1,
) -> bytes:
    """A request for one topic, whose partitions count up from 0."""
    request = ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=1500,
        topic_data=(
            TopicProduceData(
                name=name if version < 13 else "",
                topic_id=TOPIC_ID if version >= 13 else UUID(int=0),
                partition_data=tuple(
                    PartitionProduceData(index=index, records=part) for index, part in enumerate(parts)
                ),
            ),
        ),
    )
    return codec.write(request, version)


def scan(kernel: ModuleType, body: bytes, version: int, **topic: Any) -> ProduceScan:
    """Scan a body behind `PREFIX`, all of whose topics are like this."""
    described: ProduceTopic = kernel.ProduceTopic(**{**EVERYTHING, **topic})
    found: ProduceScan = kernel.scan_produce(
        memoryview(bytearray(PREFIX + body)), len(PREFIX), version, lambda key: described
    )
    return found


# --- bodies made by hand, as a client might write them -----------------------------------------------------------


class WireTopic(NamedTuple):
    name: bytes
    partitions: Sequence[tuple[int, bytes | None]]


class WireRequest(NamedTuple):
    """Cases that the codec cannot write, too: tagged fields, names that are not UTF-8."""

    transactional_id: bytes | None
    acks: int
    timeout_ms: int
    topics: Sequence[WireTopic]
    tags: Sequence[tuple[int, bytes]]
    """After every structure of a flexible version."""

    def body(self, version: int) -> bytes:
        flexible = version >= 9
        tags = _tags(self.tags) if flexible else b""
        out = _text(self.transactional_id, flexible)
        out += struct.pack(">hi", self.acks, self.timeout_ms) + _count(len(self.topics), flexible)
        for topic in self.topics:
            out += (topic.name * 16)[:16].ljust(16) if version >= 13 else _text(topic.name, flexible)
            out += _count(len(topic.partitions), flexible)
            for partition, records in topic.partitions:
                out += struct.pack(">i", partition)
                out += _count(-1 if records is None else len(records), flexible) + (records or b"") + tags
            out += tags
        return out + tags


def varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def _count(count: int, flexible: bool) -> bytes:
    return varint(count + 1) if flexible else struct.pack(">i", count)


def _text(text: bytes | None, flexible: bool) -> bytes:
    size = -1 if text is None else len(text)
    return (varint(size + 1) if flexible else struct.pack(">h", size)) + (text or b"")


def _tags(tags: Sequence[tuple[int, bytes]]) -> bytes:
    return varint(len(tags)) + b"".join(varint(tag) + varint(len(data)) + data for tag, data in tags)


# --- strategies ---------------------------------------------------------------------------------------------------

_FIELDS = [
    (0, ">q"), (8, ">i"), (12, ">i"), (16, ">b"), (17, ">i"), (21, ">h"), (23, ">i"), (27, ">q"), (35, ">q"),
    (43, ">q"), (51, ">h"), (53, ">i"), (57, ">i"),
]  # fmt: skip


@st.composite
def records(draw: st.DrawFn) -> bytes | None:
    """Mostly one batch with at most one thing wrong with it."""
    kind = draw(st.sampled_from([*["good"] * 8, *["sealed field"] * 4, "field", "cut", "longer", "noise", "null"]))
    if kind == "null":
        return None
    if kind == "noise":
        return draw(st.binary(max_size=80))
    numbered = {"producer_id": 5, "producer_epoch": 2, "base_sequence": 9}
    batch = good_batch(
        compression=draw(st.sampled_from([Compression.NONE, Compression.ZSTD])),
        **draw(st.sampled_from([{}, numbered])),
    )
    if kind in ("field", "sealed field"):
        position, format = draw(st.sampled_from(_FIELDS))
        bits = 8 * struct.calcsize(format) - 1
        value = draw(st.integers(-9, 9) | st.integers(-(2**bits), 2**bits - 1))
        value = min(max(value, -(2**bits)), 2**bits - 1)
        if kind == "sealed field":
            return changed(batch, position, format, value)
        data = bytearray(batch)
        struct.pack_into(format, data, position, value)
        return bytes(data)
    if kind == "cut":
        return batch[: draw(st.integers(0, len(batch) - 1))]
    return batch + draw(st.binary(max_size=20)) if kind == "longer" else batch


TOPICS: dict[bytes, dict[str, Any]] = {
    b"plain": {"number": 1, "partitions": 3, "message_bytes_max": 1 << 20},
    b"stamped": {"number": 2**32 - 1, "partitions": 2**31 - 1, "message_bytes_max": 1 << 20, "log_append_time": True},
    b"compacted": {"number": 3, "partitions": 3, "message_bytes_max": 1 << 20, "compacted": True},
    b"small": {"number": 4, "partitions": 3, "message_bytes_max": 80},
    b"inside": {"number": 5, "partitions": 3, "message_bytes_max": 1 << 20, "refusal": Verdict.INTERNAL_TOPIC},
    b"lonely": {
        "number": 6,
        "partitions": 3,
        "message_bytes_max": 1 << 20,
        "refusal_acks_all": Verdict.NOT_ENOUGH_REPLICAS,
    },
    b"": {"refusal": Verdict.UNKNOWN_TOPIC},
}

requests = st.builds(
    WireRequest,
    transactional_id=st.sampled_from([None] * 20 + [b"", b"tx"]),
    acks=st.sampled_from([-1, 0, 1] * 5 + [2, -2]),
    timeout_ms=st.integers(-(2**31), 2**31 - 1),
    topics=st.lists(
        st.builds(
            WireTopic,
            name=st.sampled_from([*[b"plain", b"stamped", b"compacted"] * 5, *TOPICS, b"\xff", b"n" * 300]),
            partitions=st.lists(
                st.tuples(st.sampled_from([0, 1, 2] * 5 + [3, -1, 2**31 - 1]), records()), min_size=1, max_size=4
            )
            | st.just([]),
        ),
        min_size=1,
        max_size=4,
    )
    | st.just([]),
    tags=st.sampled_from([[]] * 3 + [[(0, b"")], [(5, b"tagged"), (2**32 - 1, b"t" * 200)]]),
)


def resolver(kernel: ModuleType) -> Any:
    """A `resolve` over `TOPICS`; the ids are the names, repeated."""
    made = {name: kernel.ProduceTopic(**fields) for name, fields in TOPICS.items()}
    by_id = {(name * 16)[:16].ljust(16): topic for name, topic in made.items()}
    return lambda key: made.get(key) or by_id.get(key) or made[b""]
