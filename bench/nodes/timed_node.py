"""A node in a process of its own that times the turns of its event loop, and what speaks to it byte by byte.

All callbacks of the loop are timed with the loop thread's own processor time, so that the load of the machine counts
little. Run as a module this is the node.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import ssl
import struct
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.nodes.turn_timer import LoopTurns, TurnTimer
from mainstem.node.config import NodeConfig
from mainstem.node.node import RunningNode
from mainstem.pipeline.embedded.config import PipelineConfig
from mainstem.protocol import codec
from mainstem.protocol.headers import RequestHeader, parse_response_header, request_frame
from mainstem.protocol.messages import API_MESSAGES
from mainstem.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from mainstem.protocol.schema import declaration_of
from mainstem.server.config import ServerConfig

MIB = 1 << 20
CREATE = 5
STOP_SECONDS_MAX = 15.0
_RECEIVED_AT_ONCE = 4 * MIB


async def serve(directory: Path) -> None:
    """Until the standard input ends; each line of it asks for a line about the turns so far."""
    config = NodeConfig(
        server=ServerConfig(listen=("127.0.0.1:0",)), http="127.0.0.1:0", rpc="127.0.0.1:0",
        write_dir=str(directory / "write"), store_dir=str(directory / "store"), pipeline=PipelineConfig(mode="off"),
    )  # fmt: skip
    node = RunningNode(config)
    addresses = await node.start()
    timer = TurnTimer()
    print(addresses.kafka, flush=True)
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(timer.take()), flush=True)
    await node.close()


class TimedNode:
    """Use as `with`."""

    def __init__(self, directory: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.nodes.timed_node", directory],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "MAINSTEM_LOOP": "asyncio"},
        )  # fmt: skip
        self.address = self._line()

    def __enter__(self) -> TimedNode:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise SystemExit("the node ended")
        return line

    def turns(self) -> LoopTurns:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return LoopTurns(*json.loads(self._line()))

    def memory(self, field: str) -> float:
        """MiB; VmRSS is now, VmHWM the most so far."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) / 1024
        raise AssertionError(field)


class Wire:
    """A connection on which requests are messages or whatever bytes a client may think of."""

    def __init__(
        self,
        address: str,
        seconds_max: float,
        receive_bytes: int | None = None,
        tls: ssl.SSLContext | None = None,
        session: ssl.SSLSession | None = None,
    ) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.socket()
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(seconds_max)
        self.socket.connect((host, int(port)))
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=host, session=session)
        self._number = 0

    def frame(self, message: Any, version: int) -> bytes:
        self._number += 1
        key = declaration_of(type(message)).api_key
        assert key is not None
        return request_frame(RequestHeader(key, version, self._number, "bench"), codec.write(message, version))

    def call(self, message: Any, version: int) -> Any:
        """The response. Raises ConnectionError when the node closes."""
        self.socket.sendall(self.frame(message, version))
        key = declaration_of(type(message)).api_key
        assert key is not None
        frame = self.receive()
        _, position = parse_response_header(frame, key, version)
        return codec.read(API_MESSAGES[key].response, version, frame, position)

    def ask(self, api_key: int, version: int, body: bytes) -> bytes | None:
        """The answer to a body of bytes; None when the node closes."""
        try:
            self.socket.sendall(request_frame(RequestHeader(api_key, version, 1, "x"), body))
            return self.receive()
        except ConnectionError:
            return None

    def receive(self) -> bytes:
        """The next frame without its length. Raises ConnectionError when the node closes."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def close(self) -> None:
        self.socket.close()

    def _exactly(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            part = self.socket.recv(min(size - len(received), _RECEIVED_AT_ONCE))
            if not part:
                raise ConnectionError("the node closed")
            received += part
        return bytes(received)


def create(wire: Wire, topic: str, partitions: int = 1, **configs: str) -> None:
    """Make a topic; underscores in the names of configs stand for dots."""
    dotted = tuple(CreatableTopicConfig(name=name.replace("_", "."), value=value) for name, value in configs.items())
    wanted = CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1, assignments=(), configs=dotted)
    (answer,) = wire.call(CreateTopicsRequest(topics=(wanted,), timeout_ms=60_000), CREATE).topics
    if answer.error_code:
        raise SystemExit(f"topic {topic} is not made: error {answer.error_code}")


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    asyncio.run(serve(Path(sys.argv[1])))
