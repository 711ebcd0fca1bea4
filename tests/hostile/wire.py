"""One connection to a node, blocking, that can say anything: whole requests, parts of them, and nothing at all."""

from __future__ import annotations

import itertools
import socket
import struct
from types import TracebackType
from typing import Any

from tests.harness.patience import PATIENCE_SECONDS

from mainstem.protocol import codec
from mainstem.protocol.headers import RequestHeader, parse_response_header, request_frame
from mainstem.protocol.messages import API_MESSAGES
from mainstem.protocol.schema import declaration_of

ANSWER_SECONDS_MAX = PATIENCE_SECONDS
"""A client that waits longer is not served."""


class Wire:
    """Use as `with`. `source`: the address of this machine to come from; all of 127.0.0.0/8 are."""

    def __init__(
        self, address: str, *, source: str = "127.0.0.1", receive_bytes: int | None = None, name: str = "wire"
    ) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_bytes is not None:  # before connecting: the window is announced then
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(ANSWER_SECONDS_MAX)
        self.socket.bind((source, 0))
        self.socket.connect((host, int(port)))
        self._name = name
        self._numbers = itertools.count(1)

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def frame(self, message: Any, version: int) -> bytes:
        """A request as it goes over the wire."""
        key = declaration_of(type(message)).api_key
        assert key is not None
        header = RequestHeader(key, version, next(self._numbers), self._name)
        return request_frame(header, codec.write(message, version))

    def send(self, message: Any, version: int) -> None:
        self.socket.sendall(self.frame(message, version))

    def answer(self, api_key: int, version: int) -> Any:
        """The next response. Raises TimeoutError, and ConnectionError when the node has closed."""
        frame = self.receive()
        _, position = parse_response_header(frame, api_key, version)
        return codec.read(API_MESSAGES[api_key].response, version, frame, position)

    def call(self, message: Any, version: int) -> Any:
        self.send(message, version)
        key = declaration_of(type(message)).api_key
        assert key is not None
        return self.answer(key, version)

    def receive(self) -> bytes:
        """The next frame, without its length."""
        (size,) = struct.unpack(">i", self.exactly(4))
        return self.exactly(size)

    def closed_by_node(self) -> bool:
        """Whether the node closes without another word."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def exactly(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            data = self.socket.recv(size - len(received))
            if not data:
                raise ConnectionError(f"the node closed after {len(received)} of {size} bytes")
            received += data
        return bytes(received)
