"""The load of one request on the event loop: the processor time of the longest callback, and of the whole attack.

    .venv/bin/python -m bench.access.front_door [attack ...]

All attacks meet one node, one after the other (`timed_node.py`).
"""

from __future__ import annotations

import struct
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from bench.nodes.timed_node import MIB, TimedNode, Wire, create
from mainstem.kernel.batch_header import (
    ATTRIBUTES_AT,
    CHECKSUM_AT,
    HEADER,
    HEADER_BYTES,
    MAGIC,
)
from mainstem.protocol.headers import RequestHeader, request_frame
from mainstem.protocol.records import NewRecord, build_batch
from mainstem.protocol.records.batch import crc32c
from mainstem.protocol.records.compression import Compression, compress
from mainstem.protocol.varint import unsigned_varint

ANSWER_SECONDS_MAX = 120.0
TARGET_MS = 20.0
PARTITIONS = 100_000
SETTLING_SECONDS = 2.0
AFTERWARDS_SECONDS = 0.2
"""Work that an answered request leaves belongs to it."""


def text(name: str) -> bytes:
    return struct.pack(">h", len(name)) + name.encode()


def crafted(record: bytes, count: int, max_timestamp: int) -> bytes:
    payload = compress(Compression.ZSTD, record * count)
    data = bytearray(HEADER_BYTES) + payload
    times = 1000, max_timestamp
    HEADER.pack_into(data, 0, 0, len(data) - 12, -1, MAGIC, 0, Compression.ZSTD, count - 1, *times, -1, -1, -1, count)
    data[CHECKSUM_AT : CHECKSUM_AT + 4] = crc32c(data, ATTRIBUTES_AT).to_bytes(4, "big")
    return bytes(data)


def produce(topic: str, batch: bytes) -> bytes:
    partition = struct.pack(">ii", 0, len(batch)) + batch
    topics = struct.pack(">i", 1) + text(topic) + struct.pack(">i", 1) + partition
    return struct.pack(">hhi", -1, -1, 30_000) + topics


def list_offsets(topic: str, timestamp: int) -> bytes:
    return struct.pack(">ii", -1, 1) + text(topic) + struct.pack(">iiq", 1, 0, timestamp)


KEYED = bytes([14, 0, 0, 0, 2, 107, 1, 0])
KEYLESS = bytes([12, 0, 0, 0, 1, 1, 0])


def names(count: int) -> bytes:
    return struct.pack(">i", count) + b"".join(text(f"topic-{number:06}") for number in range(count))


def bomb(wire: Wire) -> Any:
    wire.ask(0, 7, produce("times", crafted(KEYLESS, 9_000_000, 9_000)))
    return wire.ask(2, 1, list_offsets("times", 5_000))


def bomb_again(wire: Wire) -> Any:
    return wire.ask(2, 1, list_offsets("times", 5_001))


def keys(wire: Wire) -> Any:
    return wire.ask(0, 7, produce("compacted", crafted(KEYED, 2_000_000, 1_000)))


def keys_within_bounds(wire: Wire) -> Any:
    return wire.ask(0, 7, produce("compacted", crafted(KEYED, 400_000, 1_000)))


def empty_names_4mb(wire: Wire) -> Any:
    return wire.ask(3, 4, struct.pack(">i", 2_000_000) + bytes(4_000_000) + b"\0")


def empty_names_12mb(wire: Wire) -> Any:
    return wire.ask(3, 9, b"\x80\xb6\xdc\x05" + bytes([1, 0]) * 6_000_000 + b"\0\0\0\0")


def empty_names_legal(wire: Wire) -> Any:
    return wire.ask(3, 4, struct.pack(">i", 250_000) + bytes(500_000) + b"\0")


def names_100k(wire: Wire) -> Any:
    return wire.ask(3, 4, names(100_000) + b"\0")


def subscription(wire: Wire) -> Any:
    metadata = struct.pack(">hi", 0, 3_300_000) + (struct.pack(">h", 4) + b"name") * 3_300_000 + struct.pack(">i", -1)
    join = text("g") + struct.pack(">ii", 10_000, 1_000) + text("") + text("consumer")
    return wire.ask(11, 1, join + struct.pack(">i", 1) + text("range") + struct.pack(">i", len(metadata)) + metadata)


def offsets_100k(wire: Wire) -> Any:
    partitions = b"".join(struct.pack(">iq", number, -1) for number in range(100_000))
    return wire.ask(2, 1, struct.pack(">ii", -1, 1) + text("many") + struct.pack(">i", 100_000) + partitions)


def commits(count: int) -> bytes:
    partitions = b"".join(struct.pack(">iqh", number % PARTITIONS, 5, -1) for number in range(count))
    head = text("committed") + struct.pack(">i", -1) + text("") + struct.pack(">q", -1)
    return head + struct.pack(">i", 1) + text("many") + struct.pack(">i", count) + partitions


def commits_100k(wire: Wire) -> Any:
    return wire.ask(8, 2, commits(100_000))


def committed_100k(wire: Wire) -> Any:
    numbers = struct.pack(">100000i", *range(100_000))
    return wire.ask(
        9, 1, text("committed") + struct.pack(">i", 1) + text("many") + struct.pack(">i", 100_000) + numbers
    )


def committed_all(wire: Wire) -> Any:
    return wire.ask(9, 2, text("committed") + struct.pack(">i", -1))


def produce_100k(wire: Wire) -> Any:
    partitions = struct.pack(">i", 99_990) + b"".join(struct.pack(">ii", number, -1) for number in range(99_990))
    return wire.ask(0, 7, struct.pack(">hhi", -1, -1, 30_000) + struct.pack(">i", 1) + text("many") + partitions)


def produce_topics_100k(wire: Wire) -> Any:
    topics = b"".join(text(f"unknown-{number:06}") + struct.pack(">i", 0) for number in range(99_990))
    return wire.ask(0, 7, struct.pack(">hhi", -1, -1, 30_000) + struct.pack(">i", 99_990) + topics)


def fetch(count: int, version: int, *, session: bool = False, fetched_epoch: int = 0) -> bytes:
    """Of `count` partitions of one topic, from their beginnings."""
    head = struct.pack(">iiiib", -1, 0, 1, 1 * MIB, 0) + (
        struct.pack(">ii", 0, 0 if session else -1) if version >= 7 else b""
    )
    if version < 12:
        partition = ">iqi" if version < 7 else ">iqqi"
        zeros = (0,) if version < 7 else (0, 0)
        partitions = b"".join(struct.pack(partition, number % PARTITIONS, *zeros, 1000) for number in range(count))
        body = struct.pack(">i", 1) + text("many") + struct.pack(">i", count) + partitions
        return head + body + (struct.pack(">i", 0) if version >= 7 else b"")
    partitions = b"".join(
        struct.pack(">iiqiqib", number % PARTITIONS, -1, 0, fetched_epoch, 0, 1000, 0) for number in range(count)
    )
    return head + b"\x02\x05many" + unsigned_varint(count + 1) + partitions + b"\0\x01\x01\0"


def fetch_1m(wire: Wire) -> Any:
    return wire.ask(1, 4, fetch(1_000_000, 4))


def fetch_most(wire: Wire) -> Any:
    return wire.ask(1, 4, fetch(124_999, 4))


def fetch_session(wire: Wire) -> Any:
    """A session of as many partitions as one may follow, and a look at them all."""
    opened = wire.ask(1, 7, fetch(60_000, 7, session=True))
    assert opened is not None
    (session_id,) = struct.unpack_from(">i", opened, 10)
    head = struct.pack(">iiiib", -1, 0, 1, 1 * MIB, 0) + struct.pack(">ii", session_id, 1)
    return wire.ask(1, 7, head + bytes(8))


def fetch_epochs(wire: Wire) -> Any:
    return wire.ask(1, 12, fetch(PARTITIONS, 12, fetched_epoch=0))


def fetch_topics(wire: Wire) -> Any:
    topics = b"".join(text(f"unknown-{number:06}") + struct.pack(">iiqi", 1, 0, 0, 1000) for number in range(62_490))
    return wire.ask(1, 4, struct.pack(">iiiib", -1, 0, 1, 1 * MIB, 0) + struct.pack(">i", 62_490) + topics)


def fetches(wire: Wire) -> Any:
    """As many small requests as fit into a connection's buffer."""
    request = request_frame(RequestHeader(1, 4, 1, "x"), fetch(1, 4))
    wire.socket.sendall(request * 4_000)
    for _ in range(3_999):
        wire.receive()
    return wire.receive()


def produces(wire: Wire) -> Any:
    """The same of small batches."""
    batch = bytes(build_batch([NewRecord(timestamp=1_000, key=None, value=bytes(100))]).data)
    request = request_frame(RequestHeader(0, 7, 1, "x"), produce("times", batch))
    wire.socket.sendall(request * 4_000)
    for _ in range(3_999):
        wire.receive()
    return wire.receive()


def produce_10k_topics(wire: Wire) -> Any:
    topics = b"".join(text(f"unknown-{number:06}") + struct.pack(">i", 0) for number in range(9_999))
    return wire.ask(0, 7, struct.pack(">hhi", -1, -1, 30_000) + struct.pack(">i", 9_999) + topics)


def names_most(wire: Wire) -> Any:
    return wire.ask(3, 4, struct.pack(">i", 249_999) + text("many") * 249_999 + b"\0")


def commits_most(wire: Wire) -> Any:
    return wire.ask(8, 2, commits(249_990))


def frame_90mb(wire: Wire) -> Any:
    return wire.ask(11, 1, text("g") + bytes(90 * MIB))


def describe_groups(wire: Wire) -> Any:
    return wire.ask(15, 0, struct.pack(">i", 10_000) + b"".join(text(f"group-{n}") for n in range(10_000)))


def tags(wire: Wire) -> Any:
    return wire.ask(3, 9, b"\x01\0\0\0" + b"\xff\xff\xff\x02" + bytes([99, 0]) * 6_000_000)


ATTACKS: dict[str, Callable[[Wire], Any]] = {
    attack.__name__: attack
    for attack in (
        bomb, bomb_again, keys, keys_within_bounds, empty_names_4mb, empty_names_12mb, empty_names_legal, names_100k,
        names_most, subscription, offsets_100k, commits_100k, commits_most, committed_100k, committed_all, produce_100k,
        produce_topics_100k, produce_10k_topics, fetch_1m, fetch_most, fetch_session, fetch_epochs, fetch_topics,
        fetches, produces, frame_90mb, describe_groups, tags,
    )
}  # fmt: skip


def main() -> None:
    chosen = sys.argv[1:] or list(ATTACKS)
    with tempfile.TemporaryDirectory() as directory, TimedNode(directory) as node:
        wire = Wire(node.address, ANSWER_SECONDS_MAX)
        create(wire, "times")
        create(wire, "compacted", cleanup_policy="compact")
        create(wire, "many", PARTITIONS)
        wire.ask(10, 1, text("committed") + b"\0")
        time.sleep(SETTLING_SECONDS)
        print(f"{'attack':22} {'longest ms':>10} {'all ms':>9} {'s':>6}  answer")
        for name in chosen:
            wire = Wire(node.address, ANSWER_SECONDS_MAX)
            node.turns()
            began = time.monotonic()
            try:
                answer = ATTACKS[name](wire)
                outcome = "connection closed" if answer is None else f"{len(answer):,} bytes"
            except TimeoutError:
                outcome = "none in time"
            seconds = time.monotonic() - began
            time.sleep(AFTERWARDS_SECONDS)
            turns = node.turns()
            blame = turns.what if turns.longest > TARGET_MS else ""
            print(
                f"{name:22} {turns.longest:10.1f} {turns.all:9.0f} {seconds:6.1f}  {outcome}  {blame}",
                flush=True,
            )
            wire.close()


if __name__ == "__main__":
    main()
