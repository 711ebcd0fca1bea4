"""A client that knows frames and nothing else, for tests over real sockets."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from typing import Any

from tests.server.tls.over_tls import OVER_TLS

from mainstem.address import Address
from mainstem.protocol import codec
from mainstem.protocol.headers import RequestHeader, parse_response_header, request_frame
from mainstem.protocol.messages import API_MESSAGES
from mainstem.protocol.schema import declaration_of


class RawClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._correlation_id = 0

    @classmethod
    async def connect(cls, address: Address, tls: ssl.SSLContext | None = None) -> RawClient:
        """`tls`: how TLS is spoken, if it is; without it as the test's server speaks (`over_tls.OVER_TLS`)."""
        if tls is None and OVER_TLS:
            tls = OVER_TLS[0].client()
        return cls(*await asyncio.open_connection(address.host, address.port, limit=2**20, ssl=tls))

    async def send(self, content: bytes) -> None:
        """Bytes as they are."""
        self.writer.write(content)
        await self.writer.drain()

    async def send_frame(self, content: bytes) -> None:
        await self.send(struct.pack(">i", len(content)) + content)

    async def receive(self) -> bytes:
        """The next frame, without its length. Raises IncompleteReadError when the server closed."""
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(size)

    async def closed_by_server(self) -> bool:
        """Read until the server closes; whether nothing came before that."""
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:
            return True

    async def request(self, message: Any, version: int) -> int:
        """Send a request; its correlation id."""
        self._correlation_id += 1
        key = declaration_of(type(message)).api_key
        assert key is not None
        header = RequestHeader(key, version, self._correlation_id, "raw")
        await self.send(request_frame(header, codec.write(message, version)))
        return self._correlation_id

    async def response(self, api_key: int, version: int) -> Any:
        frame = await self.receive()
        _, position = parse_response_header(frame, api_key, version)
        return codec.read(API_MESSAGES[api_key].response, version, frame, position)

    async def call(self, message: Any, version: int) -> Any:
        await self.request(message, version)
        key = declaration_of(type(message)).api_key
        assert key is not None
        return await self.response(key, version)

    async def reset(self) -> None:
        """Drop the connection without a goodbye (RST)."""
        linger_never = struct.pack("ii", 1, 0)
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_never)
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass
