"""One connection of a calling end on asyncio, from its hello to its end."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

from mainstem.address import Address
from mainstem.model import Buffer
from mainstem.rpc.errors import ConnectionLost, RpcError
from mainstem.rpc.wire.call_state import CallAnswer, CallerConnection
from mainstem.rpc.wire.hello import Hello
from mainstem.rpc.wire.identity import Identity
from mainstem.rpc.wire.keep_alive import find_dead_peers, give_up_on_dead_peers
from mainstem.rpc.wire.method import Method
from mainstem.rpc.wire.tls import HANDSHAKE_SECONDS_MAX, closed_unheard, handshake_refusal, names_in

CONNECT_SECONDS_MAX = 5.0
"""Nodes are near each other; a node that does not greet by then is down."""

Connect = Callable[[Callable[[], "ClientConnection"], str, int], Coroutine[Any, Any, tuple[Any, Any]]]
"""Makes a connection: takes (protocol factory, host, port) as `loop.create_connection` does."""


async def connect_tcp(factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> tuple[Any, Any]:
    return await asyncio.get_running_loop().create_connection(factory, host, port)


def connect_tls(context: ssl.SSLContext) -> Connect:
    """Connects as `connect_tcp`, with TLS."""

    async def connect(factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> tuple[Any, Any]:
        return await asyncio.get_running_loop().create_connection(
            factory, host, port, ssl=context, server_hostname="", ssl_handshake_timeout=HANDSHAKE_SECONDS_MAX
        )

    return connect


async def open_connection(hello: Hello, host: str, port: int, connect: Connect) -> ClientConnection:
    """A connection that has exchanged hellos. Raises `ConnectionLost`, `IdentityRefused`, `VersionMismatch`."""
    address = str(Address(host, port))
    connection = ClientConnection(CallerConnection(hello), address)
    try:
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            await connect(lambda: connection, host, port)
            await connection.greeted
    except (OSError, TimeoutError) as error:
        connection.drop(ConnectionLost(str(error)))
        if (over_tls := handshake_refusal(error, address)) is not None:
            raise over_tls from error
        raise ConnectionLost(f"cannot reach {address}: {str(error) or 'no answer'}") from error
    except asyncio.CancelledError:
        connection.drop(ConnectionLost("nobody waits for this connection any more"))
        raise
    return connection


class ClientConnection(asyncio.BufferedProtocol):
    """Ends once: `lost` then says why, every open call has failed with it, and `ended` is done."""

    def __init__(self, core: CallerConnection, address: str) -> None:
        loop = asyncio.get_running_loop()
        self.lost: RpcError | None = None
        self.greeted: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self._core = core
        self._core.where = address
        self._address = address
        self._sinks: dict[int, Callable[[CallAnswer], object]] = {}
        self._transport: asyncio.Transport | None = None
        self._over_tls = False

    @property
    def node(self) -> Identity | None:
        """The node that answers here; None: it does not identify itself, or has not yet."""
        return self._core.peer.node if self._core.peer is not None else None

    @property
    def frame_bytes_max(self) -> int:
        """The largest frame the peer accepts; known once it has greeted."""
        assert self._core.peer is not None
        return self._core.peer.frame_bytes_max

    def open(
        self,
        method: Method[Any, Any],
        request: Any,
        attachment: Sequence[Buffer],
        time_left_ms: int,
        sink: Callable[[CallAnswer], object],
    ) -> int:
        """Send a request and return its id; `sink` gets its answers as they arrive, the connection's end
        included. The attachment's buffers must not change before the request is answered.

        Raises ValueError when the message is larger than the peer accepts, and the error that ended the
        connection."""
        if self.lost is not None:
            raise self.lost
        request_id, buffers = self._core.call(method, request, attachment, time_left_ms=time_left_ms)
        self._sinks[request_id] = sink
        self._write(buffers)
        return request_id

    @property
    def tells(self) -> bool:
        """Whether the peer takes requests that are not answered; known once it has greeted."""
        return self._core.tells

    def tell(self, method: Method[Any, Any], request: Any, attachment: Sequence[Buffer]) -> None:
        """Send a request that is not answered; only where `tells`. The attachment's buffers must not change before a
        later request on this connection is answered.

        Raises ValueError when the message is larger than the peer accepts, and the error that ended the
        connection."""
        if self.lost is not None:
            raise self.lost
        self._write(self._core.tell(method, request, attachment))

    def took(self, request_id: int) -> None:
        self._write(self._core.take(request_id))

    def abandon(self, request_id: int) -> None:
        """The caller waits no longer; cancels the call unless it has been answered."""
        if self._sinks.pop(request_id, None) is not None and self.lost is None:
            self._write(self._core.cancel(request_id))

    def drop(self, reason: RpcError) -> None:
        if self.lost is not None:
            return
        self.lost = reason
        if not self.greeted.done():
            self.greeted.set_exception(reason)
            self.greeted.exception()  # marks it as seen: no caller awaits it when connecting itself failed
        sinks, self._sinks = self._sinks, {}
        for request_id, sink in sinks.items():
            sink(CallAnswer(request_id, error=reason))
        if self._transport is not None:
            if farewell := self._core.farewell(reason):
                self._write(farewell)
                self._transport.close()
            else:
                self._transport.abort()
        if not self.ended.done():
            self.ended.set_result(None)

    def _write(self, buffers: list[Buffer]) -> None:
        assert self._transport is not None
        if buffers and not self._transport.is_closing():
            self._transport.writelines(buffers)

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._over_tls = transport.get_extra_info("ssl_object") is not None
        self._core.certificate_names = names_in(transport.get_extra_info("peercert"))
        find_dead_peers(transport)
        if self._core.as_node:
            give_up_on_dead_peers(transport)
        self._write(self._core.hello())

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._core.writable()

    def buffer_updated(self, nbytes: int) -> None:
        if self.lost is not None:
            return
        try:
            answers = self._core.received(nbytes)
        except RpcError as error:
            self.drop(error)
            return
        if self._core.peer is not None and not self.greeted.done():
            self.greeted.set_result(None)
        for answer in answers:
            sink = self._sinks.pop(answer.request_id, None) if answer.ends else self._sinks.get(answer.request_id)
            if sink is not None:
                sink(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        reason = handshake_refusal(exc, self._address)
        if reason is None and self._over_tls and self._core.peer is None:
            reason = closed_unheard(self._address)
        self.drop(reason or ConnectionLost(f"connection to {self._address} lost: {exc or 'closed by the peer'}"))
