"""A connection to a node, light enough for thousands of them in one process."""

from __future__ import annotations

import asyncio
from typing import Any

from mainstem.protocol import codec
from mainstem.protocol.headers import RequestHeader, parse_response_header, request_frame
from mainstem.protocol.messages import API_MESSAGES
from mainstem.protocol.schema import declaration_of

CLIENT_ID = "bench"
LENGTH_BYTES = 4


class ClientConnection(asyncio.Protocol):
    """Sends requests, in order or several at once, and finds their answers by correlation id."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._asked: dict[int, tuple[int, int, asyncio.Future[Any]]] = {}
        self._number = 0

    @classmethod
    async def to(cls, address: str) -> ClientConnection:
        """Raises OSError."""
        host, _, port = address.rpartition(":")
        _, connection = await asyncio.get_running_loop().create_connection(cls, host, int(port))
        return connection

    async def ask(self, message: Any, version: int) -> Any:
        """The response. Raises ConnectionError when the node closes."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionError("the connection is closed")
        key = declaration_of(type(message)).api_key
        assert key is not None
        self._number += 1
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked[self._number] = key, version, answer
        header = RequestHeader(key, version, self._number, CLIENT_ID)
        self._transport.write(request_frame(header, codec.write(message, version)))
        return await answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio's protocol --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        position = 0
        while len(self._received) - position >= LENGTH_BYTES:
            size = int.from_bytes(self._received[position : position + LENGTH_BYTES], "big")
            end = position + LENGTH_BYTES + size
            if len(self._received) < end:
                break
            self._answered(bytes(self._received[position + LENGTH_BYTES : end]))
            position = end
        del self._received[:position]

    def connection_lost(self, exc: Exception | None) -> None:
        for _, _, answer in self._asked.values():
            if not answer.done():
                answer.set_exception(ConnectionError(f"the node closed the connection: {exc}"))
        self._asked.clear()

    def _answered(self, frame: bytes) -> None:
        key, version, answer = self._asked.pop(int.from_bytes(frame[:LENGTH_BYTES], "big"))
        if not answer.done():
            _, position = parse_response_header(frame, key, version)
            answer.set_result(codec.read(API_MESSAGES[key].response, version, frame, position))
