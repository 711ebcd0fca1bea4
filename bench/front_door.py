"""What one request can do to the event loop: the processor time of the longest callback, and of the whole attack.

    .venv/bin/python -m bench.front_door [attack ...]

A node runs in this process, on a directory of its own; each attack comes over a socket from another thread. All
callbacks of the loop are timed with the loop thread's own processor time, so that the load of the machine counts
little.
"""

from __future__ import annotations

import asyncio
import asyncio.events
import logging
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mainstem.config import NodeConfig
from mainstem.node import RunningNode
from mainstem.pipeline.config import PipelineConfig
from mainstem.protocol.records.checksum import crc32c
from mainstem.protocol.records.compression import Compression, compress
from mainstem.protocol.records.header import (
    ATTRIBUTES_POSITION,
    CHECKSUM_POSITION,
    FIXED,
    HEADER_BYTES,
    MAGIC,
)
from mainstem.server.config import ServerConfig

MIB = 1024 * 1024
ANSWER_SECONDS_MAX = 120.0
TARGET_SECONDS = 0.02


class Held:
    """The processor time of the callbacks of the loop's thread."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.all = 0.0
        self.what = ""
        run = asyncio.events.Handle._run
        held = self

        def timed(handle: Any) -> Any:
            started = time.thread_time()
            try:
                return run(handle)
            finally:
                took = time.thread_time() - started
                held.all += took
                if took > held.longest:
                    held.longest, held.what = took, repr(handle)[:150]

        asyncio.events.Handle._run = timed  # type: ignore[method-assign]

    def reset(self) -> None:
        self.longest = self.all = 0.0
        self.what = ""


class Wire:
    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.settimeout(ANSWER_SECONDS_MAX)

    def ask(self, api_key: int, version: int, body: bytes, *, flexible: bool = False) -> bytes | None:
        """The answer; None when the node ends the connection."""
        head = struct.pack(">hhih", api_key, version, 7, 1) + b"x" + (b"\0" if flexible else b"")
        try:
            self._socket.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
            length = self._read(4)
            return None if length is None else self._read(struct.unpack(">i", length)[0])
        except ConnectionError:
            return None

    def _read(self, size: int) -> bytes | None:
        out = bytearray()
        while len(out) < size:
            part = self._socket.recv(min(size - len(out), 4 * MIB))
            if not part:
                return None
            out += part
        return bytes(out)

    def close(self) -> None:
        self._socket.close()


def text(name: str) -> bytes:
    return struct.pack(">h", len(name)) + name.encode()


def crafted(record: bytes, count: int, max_timestamp: int) -> bytes:
    payload = compress(Compression.ZSTD, record * count)
    data = bytearray(HEADER_BYTES) + payload
    times = 1000, max_timestamp
    FIXED.pack_into(
        data, 0, 0, len(data) - 12, -1, MAGIC, 0, Compression.ZSTD, count - 1, *times, -1, -1, -1, count
    )
    data[CHECKSUM_POSITION : CHECKSUM_POSITION + 4] = crc32c(data, ATTRIBUTES_POSITION).to_bytes(4, "big")
    return bytes(data)


def produce(topic: str, batch: bytes) -> bytes:
    partition = struct.pack(">ii", 0, len(batch)) + batch
    topics = struct.pack(">i", 1) + text(topic) + struct.pack(">i", 1) + partition
    return struct.pack(">hhi", -1, -1, 30_000) + topics


def list_offsets(topic: str, timestamp: int) -> bytes:
    return struct.pack(">ii", -1, 1) + text(topic) + struct.pack(">iiq", 1, 0, timestamp)


def create(topic: str, **configs: str) -> bytes:
    pairs = b"".join(text(name.replace("_", ".")) + text(value) for name, value in configs.items())
    body = text(topic) + struct.pack(">ihi", 1, 1, 0) + struct.pack(">i", len(configs)) + pairs
    return struct.pack(">i", 1) + body + struct.pack(">i?", 30_000, False)


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
    return wire.ask(3, 9, b"\x80\xb6\xdc\x05" + bytes([1, 0]) * 6_000_000 + b"\0\0\0\0", flexible=True)


def empty_names_legal(wire: Wire) -> Any:
    return wire.ask(3, 4, struct.pack(">i", 250_000) + bytes(500_000) + b"\0")


def names_100k(wire: Wire) -> Any:
    return wire.ask(3, 4, names(100_000) + b"\0")


def subscription(wire: Wire) -> Any:
    metadata = (
        struct.pack(">hi", 0, 3_300_000)
        + (struct.pack(">h", 4) + b"name") * 3_300_000
        + struct.pack(">i", -1)
    )
    join = text("g") + struct.pack(">ii", 10_000, 1_000) + text("") + text("consumer")
    return wire.ask(
        11, 1, join + struct.pack(">i", 1) + text("range") + struct.pack(">i", len(metadata)) + metadata
    )


def offsets_100k(wire: Wire) -> Any:
    partitions = b"".join(struct.pack(">iq", number, -1) for number in range(100_000))
    return wire.ask(2, 1, struct.pack(">ii", -1, 1) + text("many") + struct.pack(">i", 100_000) + partitions)


def commits_100k(wire: Wire) -> Any:
    partitions = b"".join(struct.pack(">iqh", number, 5, -1) for number in range(100_000))
    head = text("committed") + struct.pack(">i", -1) + text("") + struct.pack(">q", -1)
    return wire.ask(
        8, 2, head + struct.pack(">i", 1) + text("many") + struct.pack(">i", 100_000) + partitions
    )


def committed_100k(wire: Wire) -> Any:
    numbers = struct.pack(">100000i", *range(100_000))
    return wire.ask(
        9, 1, text("committed") + struct.pack(">i", 1) + text("many") + struct.pack(">i", 100_000) + numbers
    )


def committed_all(wire: Wire) -> Any:
    return wire.ask(9, 2, text("committed") + struct.pack(">i", -1))


def produce_100k(wire: Wire) -> Any:
    partitions = struct.pack(">i", 99_990) + b"".join(
        struct.pack(">ii", number, -1) for number in range(99_990)
    )
    return wire.ask(
        0, 7, struct.pack(">hhi", -1, -1, 30_000) + struct.pack(">i", 1) + text("many") + partitions
    )


def produce_topics_100k(wire: Wire) -> Any:
    topics = b"".join(text(f"unknown-{number:06}") + struct.pack(">i", 0) for number in range(99_990))
    return wire.ask(0, 7, struct.pack(">hhi", -1, -1, 30_000) + struct.pack(">i", 99_990) + topics)


def fetch_1m(wire: Wire) -> Any:
    partitions = b"".join(struct.pack(">iqi", number % 100_000, 0, 1000) for number in range(1_000_000))
    head = struct.pack(">iiiib", -1, 0, 1, 1 * MIB, 0)
    return wire.ask(
        1, 4, head + struct.pack(">i", 1) + text("many") + struct.pack(">i", 1_000_000) + partitions
    )


def frame_90mb(wire: Wire) -> Any:
    return wire.ask(11, 1, text("g") + bytes(90 * MIB))


def describe_groups(wire: Wire) -> Any:
    return wire.ask(15, 0, struct.pack(">i", 10_000) + b"".join(text(f"group-{n}") for n in range(10_000)))


def tags(wire: Wire) -> Any:
    return wire.ask(3, 9, b"\x01\0\0\0" + b"\xff\xff\xff\x02" + bytes([99, 0]) * 6_000_000, flexible=True)


ATTACKS: dict[str, Callable[[Wire], Any]] = {
    attack.__name__: attack
    for attack in (
        bomb, bomb_again, keys, keys_within_bounds, empty_names_4mb, empty_names_12mb, empty_names_legal, names_100k,
        subscription, offsets_100k, commits_100k, committed_100k, committed_all, produce_100k, produce_topics_100k,
        fetch_1m, frame_90mb, describe_groups, tags,
    )
}  # fmt: skip


@contextmanager
def running_node() -> Iterator[tuple[int, asyncio.AbstractEventLoop]]:
    """A node on the loop of a thread of its own."""
    started: list[Any] = []
    ready, stop = threading.Event(), asyncio.Event()

    async def run(directory: Path) -> None:
        config = NodeConfig(
            write_dir=str(directory / "disk1"),
            store_dir=str(directory / "disk2"),
            http="127.0.0.1:0",
            rpc="127.0.0.1:0",
            server=ServerConfig(listen=("127.0.0.1:0",)),
            pipeline=PipelineConfig(mode="off"),
        )
        node = RunningNode(config)
        addresses = await node.start()
        started.extend([int(addresses.kafka.rsplit(":", 1)[1]), asyncio.get_running_loop()])
        ready.set()
        await stop.wait()
        await node.close()

    with tempfile.TemporaryDirectory() as directory:
        thread = threading.Thread(target=lambda: asyncio.run(run(Path(directory))))
        thread.start()
        if not ready.wait(60):
            raise SystemExit("the node did not start")
        try:
            yield started[0], started[1]
        finally:
            started[1].call_soon_threadsafe(stop.set)
            thread.join()


def main() -> None:
    logging.basicConfig(level=logging.ERROR)
    chosen = [name for name in sys.argv[1:] if name != "profile"] or list(ATTACKS)
    held = Held()
    with running_node() as (port, _):
        wire = Wire(port)
        many = (
            struct.pack(">i", 1)
            + text("many")
            + struct.pack(">ihii", 100_000, 1, 0, 0)
            + struct.pack(">i?", 60_000, False)
        )
        for request in (create("times"), create("compacted", cleanup_policy="compact"), many):
            assert wire.ask(19, 2, request) is not None
        wire.ask(10, 1, text("committed") + b"\0")
        time.sleep(2)
        print(f"{'attack':22} {'longest ms':>10} {'all ms':>9} {'s':>6}  answer")
        for name in chosen:
            wire = Wire(port)
            held.reset()
            began = time.monotonic()
            try:
                answer = ATTACKS[name](wire)
                outcome = "connection closed" if answer is None else f"{len(answer):,} bytes"
            except TimeoutError:
                outcome = "none in time"
            seconds = time.monotonic() - began
            time.sleep(0.2)
            blame = held.what if held.longest > TARGET_SECONDS else ""
            longest, everything = held.longest * 1000, held.all * 1000
            print(f"{name:22} {longest:10.1f} {everything:9.0f} {seconds:6.1f}  {outcome}  {blame}", flush=True)
            wire.close()


if __name__ == "__main__":
    main()
