"""A listener that takes connections over TLS, and logs why a handshake failed.

The event loop's own listener (`ssl=` of `create_server`) would not report the reason.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

from mainstem.bounded_log import BoundedLog
from mainstem.rpc.wire.tls import HANDSHAKE_SECONDS_MAX, handshake_failure
from mainstem.socket_memory import bound_unsent
from mainstem.supervised import Errands, Supervision

log = logging.getLogger(__name__)

HANDSHAKES_MAX = 512
"""Handshakes at a time: as many as there may be connections."""

HANDSHAKES_PER_HOST_MAX = 32
"""Of one address, so that one that begins handshakes and finishes none keeps nobody else out. A host of many nodes and
executors has as many only for the milliseconds that a handshake takes."""

ACCEPT_RETRY_SECONDS = 0.5
"""Wait before the next accept when the system has no descriptor left for a new connection."""


class Door:
    """The listener, with its handshakes under way. `open`, then `close`; each once."""

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        connection: Callable[[], asyncio.BaseProtocol],
        supervision: Supervision,
    ) -> None:
        """`context` is asked for each handshake."""
        self._context = context
        self._connection = connection
        self._listeners: list[socket.socket] = []
        self._supervision = supervision
        self._accepting: list[asyncio.Task[None]] = []
        self._lines = BoundedLog(log, time)
        self._handshakes = Errands(supervision, "TLS handshake with another node")
        self._per_host: Counter[str] = Counter()

    async def open(self, host: str, port: int) -> tuple[str, int]:
        """Listen; port 0 picks a free one. Returns the address. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((info[0], info[4]) for info in found):
            listener = socket.create_server(address[:2], family=family, backlog=100)
            listener.setblocking(False)
            bound_unsent(listener)
            self._listeners.append(listener)
            accept = partial(self._accept, listener)
            self._accepting.append(self._supervision.start(accept, "node connections are accepted"))
        name = self._listeners[0].getsockname()
        return name[0], name[1]

    async def close(self) -> None:
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        self._handshakes.cancel()
        await self._handshakes.ended()
        for listener in self._listeners:
            listener.close()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listener)
            except OSError as error:
                log.error("no node connection can be accepted: %s", error)
                await asyncio.sleep(ACCEPT_RETRY_SECONDS)
                continue
            if (full := self._full_for(address[0])) is not None:
                self._lines.report(logging.WARNING, f"node connection from {address[0]} refused: {full}")
                accepted.close()
                continue
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._per_host[address[0]] += 1
            self._handshakes.start(self._shake_hands(accepted, address[0], f"{address[0]}:{address[1]}"))

    def _full_for(self, host: str) -> str | None:
        """The reason why no further handshake begins with this address; None: one may."""
        if len(self._handshakes) >= HANDSHAKES_MAX:
            return f"{HANDSHAKES_MAX} handshakes are under way"
        if self._per_host[host] >= HANDSHAKES_PER_HOST_MAX:
            return f"{HANDSHAKES_PER_HOST_MAX} handshakes with this address are under way"
        return None

    async def _shake_hands(self, accepted: socket.socket, host: str, peer: str) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._connection, accepted, ssl=self._context(), ssl_handshake_timeout=HANDSHAKE_SECONDS_MAX
            )
        except OSError as error:  # TimeoutError is one
            self._lines.report(logging.WARNING, f"node connection from {peer} closed: {handshake_failure(error, peer)}")
            accepted.close()
        except BaseException:
            accepted.close()
            raise
        finally:
            self._per_host[host] -= 1
            if not self._per_host[host]:
                del self._per_host[host]
