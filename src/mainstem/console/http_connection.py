"""One HTTP connection: uvicorn's, with three bounds that it lacks.

There are at most `CONNECTIONS_MAX` connections: one more takes the place of the one that has waited longest without a
request under way, and is refused where all have one. A client that begins a request must finish it: uvicorn closes idle
connections after a response, and waits for ever for a first request, or for the rest of one. The log has no more lines
about connections than a person can read.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from mainstem.bounded_log import BoundedLog

CONNECTIONS_MAX = 512
"""A scraper, a console, and one watcher for each node and splitter of a large cluster need some tens."""

DECRYPTED_BYTES = 4 * 1024
"""Taken at once of a connection with TLS: most requests are a tenth of it."""

_lines = BoundedLog(logging.getLogger(__name__), time)


class FewLines(logging.LoggerAdapter[logging.Logger]):
    """Takes what uvicorn logs about a connection, adds the client's address, and logs it within the bounds of
    `bounded_log`: a client decides how often a request is malformed."""

    level = logging.WARNING
    """uvicorn reads it to see whether it is to trace."""

    def __init__(self, connection: HttpConnection) -> None:
        super().__init__(connection.logger)
        self._connection = connection

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        text = str(msg) % args if args else str(msg)
        _lines.report(level, f"HTTP connection from {self._connection.client}: {text}", kwargs.get("exc_info"))


class HttpConnection(H11Protocol):
    """uvicorn makes one for each accepted connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logger = cast(logging.Logger, FewLines(self))
        self.waits_since = self.loop.time()
        """When the last response ended, or the connection began, by the loop's clock."""
        self._check: asyncio.TimerHandle | None = None
        self._sending: object = None
        """The bytes that the client was found sending at the last check; None: nothing."""

    @property
    def waits_for_client(self) -> bool:
        """Whether the client has to send something before anything else can happen."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base has it
        super().connection_made(transport)
        self._check = self.loop.call_later(self.timeout_keep_alive, self._look)
        if len(self.connections) > CONNECTIONS_MAX:
            waiting = [one for one in self.connections if isinstance(one, HttpConnection) and one.waits_for_client]
            min(waiting, key=lambda one: one.waits_since).end(f"{CONNECTIONS_MAX} are open")

    def connection_lost(self, exc: Exception | None) -> None:
        if self._check is not None:
            self._check.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self.waits_since = self.loop.time()
        super().on_response_complete()

    def end(self, why: str) -> None:
        """Close the connection now, whatever its client is about to send."""
        _lines.report(logging.WARNING, f"HTTP connection from {self.client} closed: {why}")
        self.transport.abort()

    def _look(self) -> None:
        """Close the connection of a client that has sent the same request since the last look."""
        sending = (self.cycle, self.conn.their_state) if self.waits_for_client else None
        if sending is not None and sending == self._sending:
            self.end(f"its request did not arrive within {self.timeout_keep_alive} s")
            return
        self._sending = sending
        self._check = self.loop.call_later(self.timeout_keep_alive, self._look)


class HttpOverTls(asyncio.BufferedProtocol):
    """An HTTP connection as TLS wants one: with a buffer of its own for what was decrypted."""

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection
        self._buffer = memoryview(bytearray(DECRYPTED_BYTES))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connection.connection_made(cast(asyncio.Transport, transport))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._connection.data_received(bytes(self._buffer[:nbytes]))

    def eof_received(self) -> None:
        self._connection.eof_received()

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)
