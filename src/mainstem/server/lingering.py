"""The end of a connection whose peer may still be sending: it gets every answer first.

A kernel that is told to close a socket with unread bytes in it resets the connection, and the peer's kernel then drops
the answers that its program has not read. A producer that loses one so sends a batch again that is in the log.
"""

from __future__ import annotations

import asyncio

SECONDS_MAX = 1.0
"""For the peer to read its answers and to close; what it sends meanwhile is dropped."""

_DROPPED = memoryview(bytearray(64 * 1024))
"""Nobody reads it."""


class Lingering(asyncio.BufferedProtocol):
    """Takes the place of a connection's protocol behind its last response. `connection` hears that it is lost."""

    def __init__(self, transport: asyncio.Transport, connection: asyncio.BaseProtocol) -> None:
        self._connection = connection
        self._timer = asyncio.get_running_loop().call_later(SECONDS_MAX, transport.close)

    @classmethod
    def take_over(cls, transport: asyncio.Transport, connection: asyncio.BaseProtocol) -> None:
        """End the stream behind what was written, and drop what comes until the peer has ended its own."""
        if transport.is_closing() or not transport.can_write_eof():
            transport.close()
            return
        transport.set_protocol(cls(transport, connection))
        transport.write_eof()
        if not transport.is_reading():
            transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        return _DROPPED

    def buffer_updated(self, nbytes: int) -> None:
        pass

    def eof_received(self) -> bool:
        return False  # the transport closes itself

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._connection.connection_lost(exc)
