"""See the package. Not in `__main__`, which a spawned process does not import."""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import NamedTuple

import trustme

from mainstem.model import Buffer
from mainstem.process.event_loop import new_event_loop
from mainstem.raft.entry import Entry
from mainstem.raft.messages import Append, AppendResponse, Heartbeat, Message
from mainstem.rpc.handlers import Handlers
from mainstem.rpc.node_end import NodeEnd
from mainstem.rpc.raft.raft_exchange import Address, Carried
from mainstem.rpc.wire.identity import Identity
from mainstem.rpc.wire.node_certificate import node_certificate
from mainstem.rpc.wire.tls import NO_TLS, RpcTlsConfig

BLOCK_BYTES = 1 << 20
OUTSTANDING_MAX = 8
"""Blocks sent and not acknowledged: the journal's syncs leave about that many open."""
HEARTBEATS_PER_SECOND = 1000
ROUNDS = 5


class Round(NamedTuple):
    """CPU seconds of both processes for one round, and how long it took."""

    sender: float
    receiver: float
    elapsed: float


class Group:
    """A member that acknowledges each block, or counts the acknowledgements."""

    def __init__(self, node_id: int, peer: int) -> None:
        self.acknowledged = 0
        self.taken = 0
        self.changed = asyncio.Event()
        self.end: NodeEnd
        self._node_id, self._peer = node_id, peer

    def received(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if isinstance(message, Append):
                last = message.entries[-1].index
                self.end.exchange.send(0, [AppendResponse(self._node_id, self._peer, 1, last)])
            elif isinstance(message, AppendResponse):
                self.acknowledged = max(self.acknowledged, message.match_index)
            else:
                self.taken += 1
        self.changed.set()

    def carried(self, entry: Entry) -> Carried:
        buffers: list[Buffer] = [entry.data]  # type: ignore[list-item]
        return Carried((entry.size,), buffers)

    async def load(self, entries: Sequence[Entry]) -> list[Carried]:
        raise AssertionError("all entries are in memory")

    def entry(self, term: int, index: int, kind: int, numbers: tuple[int, ...], attachment: memoryview) -> Entry:
        return Entry(term, index, kind, numbers[0], attachment)

    def unreachable(self, node_id: int) -> None:
        pass

    def gone(self, node_id: int) -> None:
        pass


def node(node_id: int, peer: int, tls: RpcTlsConfig) -> tuple[NodeEnd, Group]:
    group = Group(node_id, peer)
    identity = Identity("bench", node_id, bytes([node_id]) * 16)
    end = NodeEnd(identity, Handlers(), random=Random(node_id), certificate=node_certificate(tls))
    end.exchange.join(0, group)
    group.end = end
    return end, group


# --- the receiving process ------------------------------------------------------------------------------


def receiver(pipe: Connection, tls: RpcTlsConfig) -> None:
    """Serves a node and a plain stream; tells its CPU seconds whenever it is asked."""

    async def run() -> None:
        end, _group = node(2, 1, tls)
        address = await end.start("127.0.0.1", 0)
        plain = await asyncio.start_server(take, "127.0.0.1", 0, limit=BLOCK_BYTES)
        pipe.send((address, plain.sockets[0].getsockname()))
        stopped = asyncio.Event()

        def asked() -> None:
            question = pipe.recv()
            if isinstance(question, tuple):
                end.exchange.set_peers({1: Address(*question)})
                pipe.send(None)
            elif question == "cpu":
                pipe.send(time.process_time())
            else:
                stopped.set()

        asyncio.get_running_loop().add_reader(pipe.fileno(), asked)
        await stopped.wait()
        await end.close()
        plain.close()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(run())


async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The plain stream: each mebibyte is acknowledged by one byte."""
    taken = 0
    while data := await reader.read(BLOCK_BYTES):
        before, taken = taken, taken + len(data)
        writer.write(b"." * (taken // BLOCK_BYTES - before // BLOCK_BYTES))
    writer.close()


# --- the sending process --------------------------------------------------------------------------------


async def send_blocks(end: NodeEnd, group: Group, blocks: int, payload: bytes) -> None:
    first = group.acknowledged
    for index in range(first, first + blocks):
        while index - group.acknowledged >= OUTSTANDING_MAX:
            group.changed.clear()
            await group.changed.wait()
        entry = Entry(1, index + 1, 0, len(payload), payload)
        end.exchange.send(0, [Append(1, 2, 1, index, 1 if index else 0, 0, (entry,))])
        await asyncio.sleep(0)
    while group.acknowledged < first + blocks:
        group.changed.clear()
        await group.changed.wait()


async def send_plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, blocks: int, payload: bytes) -> None:
    acknowledged = 0
    for index in range(blocks):
        while index - acknowledged >= OUTSTANDING_MAX:
            acknowledged += len(await reader.read(OUTSTANDING_MAX))
        writer.write(payload)
        await writer.drain()
    while acknowledged < blocks:
        acknowledged += len(await reader.read(OUTSTANDING_MAX))


async def every_millisecond(count: int, send: Callable[[int], object]) -> None:
    loop = asyncio.get_running_loop()
    started = loop.time()
    for number in range(count):
        send(number)
        await asyncio.sleep(max(0.0, started + (number + 1) / HEARTBEATS_PER_SECOND - loop.time()))


async def measured(pipe: Connection, work: Awaitable[None]) -> Round:
    def receivers_cpu() -> float:
        pipe.send("cpu")
        return float(pipe.recv())

    theirs, ours, started = receivers_cpu(), time.process_time(), time.monotonic()
    await work
    elapsed, ours = time.monotonic() - started, time.process_time() - ours
    return Round(ours, receivers_cpu() - theirs, elapsed)


async def measure(pipe: Connection, tls: RpcTlsConfig, blocks: int, seconds: int) -> dict[str, list[Round]]:
    address, plain_address = pipe.recv()
    end, group = node(1, 2, tls)
    pipe.send(await end.start("127.0.0.1", 0))
    pipe.recv()
    end.exchange.set_peers({2: Address(*address)})
    reader, writer = await asyncio.open_connection(*plain_address)
    payload = os.urandom(BLOCK_BYTES)
    beats = HEARTBEATS_PER_SECOND * seconds
    found: dict[str, list[Round]] = {"exchange": [], "streams": [], "small": [], "timer": []}
    await send_blocks(end, group, 64, payload)  # both ends are connected and warm
    await send_plain(reader, writer, 64, payload)
    for _ in range(ROUNDS):
        found["exchange"].append(await measured(pipe, send_blocks(end, group, blocks, payload)))
        found["streams"].append(await measured(pipe, send_plain(reader, writer, blocks, payload)))
        beat = every_millisecond(beats, lambda n: end.exchange.send(0, [Heartbeat(1, 2, 1, n)]))
        found["small"].append(await measured(pipe, beat))
        found["timer"].append(await measured(pipe, every_millisecond(beats, lambda n: None)))
    writer.close()
    await end.close()
    pipe.send("stop")
    return found


def certificates(directory: Path) -> RpcTlsConfig:
    """One certificate for both."""
    authority = trustme.CA()
    issued = authority.issue_cert("bench")
    files = {name: str(directory / f"{name}.pem") for name in ("certificate", "key", "ca")}
    issued.cert_chain_pems[0].write_to_path(files["certificate"])
    issued.private_key_pem.write_to_path(files["key"])
    authority.cert_pem.write_to_path(files["ca"])
    return RpcTlsConfig(**files)


def run(tls: RpcTlsConfig, blocks: int, seconds: int) -> dict[str, list[Round]]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=receiver, args=(theirs, tls))
    process.start()
    theirs.close()  # so that its end is noticed here
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(measure(ours, tls, blocks, seconds))
    finally:
        process.join(10)
        process.kill()


def table(name: str, found: dict[str, list[Round]], blocks: int, seconds: int) -> dict[str, float]:
    """Medians: µs of CPU per MiB and per message, of both processes together."""
    cpu = {what: [(r.sender + r.receiver) * 1e6 for r in rounds] for what, rounds in found.items()}
    ratio = statistics.median(a / b for a, b in zip(cpu["exchange"], cpu["streams"], strict=True))
    small = statistics.median(a - b for a, b in zip(cpu["small"], cpu["timer"], strict=True))
    result = {
        "exchange_us_per_mib": statistics.median(cpu["exchange"]) / blocks,
        "streams_us_per_mib": statistics.median(cpu["streams"]) / blocks,
        "ratio": ratio,
        "exchange_mib_per_second": blocks / statistics.median(r.elapsed for r in found["exchange"]),
        "streams_mib_per_second": blocks / statistics.median(r.elapsed for r in found["streams"]),
        "us_per_small_message": small / (HEARTBEATS_PER_SECOND * seconds),
    }
    for key, value in result.items():
        print(f"{name:>5}  {key:<26}{value:>10.2f}")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.rpc", description="What carrying Raft messages costs.")
    parser.add_argument("--blocks", type=int, default=1000, help="blocks per round (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=3, help="of small messages per round (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the medians there as well")
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory(prefix="mainstem-bench-rpc-") as directory:
        for name, tls in (("plain", NO_TLS), ("tls", certificates(Path(directory)))):
            results[name] = table(name, run(tls, options.blocks, options.seconds), options.blocks, options.seconds)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=2))
