"""A listener that lets connections in over TLS, and says why it does not.

The event loop's own way (`ssl=` of `create_server`) would tell nobody why a handshake failed.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

from mainstem.rpc.tls import HANDSHAKE_SECONDS_MAX, handshake_failure

log = logging.getLogger(__name__)

HANDSHAKES_MAX = 512
"""Under way at a time: as many as there may be connections."""

ACCEPT_RETRY_SECONDS = 0.5
"""When the system has no descriptor left for a new connection."""


class Door:
    """`open`, then `close`; both once."""

    def __init__(self, context: ssl.SSLContext, connection: Callable[[], asyncio.BaseProtocol]) -> None:
        self._context = context
        self._connection = connection
        self._listeners: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._handshakes = 0

    async def open(self, host: str, port: int) -> tuple[str, int]:
        """Listen; port 0 picks a free one. Returns the address. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((info[0], info[4]) for info in found):
            listener = socket.create_server(address[:2], family=family, backlog=100)
            listener.setblocking(False)
            self._listeners.append(listener)
            self._start(self._accept(listener))
        name = self._listeners[0].getsockname()
        return name[0], name[1]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listener in self._listeners:
            listener.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listener)
            except OSError as error:
                log.error("no node connection can be accepted: %s", error)
                await asyncio.sleep(ACCEPT_RETRY_SECONDS)
                continue
            if self._handshakes >= HANDSHAKES_MAX:
                log.warning("node connection from %s refused: %d handshakes", address[0], HANDSHAKES_MAX)
                accepted.close()
                continue
            self._handshakes += 1
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._start(self._shake_hands(accepted, f"{address[0]}:{address[1]}"))

    async def _shake_hands(self, accepted: socket.socket, peer: str) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._connection, accepted, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_SECONDS_MAX
            )
        except OSError as error:  # TimeoutError is one
            log.warning("node connection from %s closed: %s", peer, handshake_failure(error, peer))
            accepted.close()
        finally:
            self._handshakes -= 1
