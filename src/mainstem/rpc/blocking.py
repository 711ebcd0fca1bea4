"""The calling end on a plain blocking socket, for code without an event loop: Spark's driver and workers.

One call at a time; threads that share a client take turns. An error that leaves the connection in doubt
closes it, and the next call connects again.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mainstem.address import Address, AddressError, parsed
from mainstem.model import Buffer
from mainstem.rpc.client import DEADLINE_GRACE_SECONDS
from mainstem.rpc.errors import ConnectionLost, DeadlineExceeded, RpcError
from mainstem.rpc.wire.call_state import CallAnswer, CallerConnection
from mainstem.rpc.wire.client_connection import CONNECT_SECONDS_MAX
from mainstem.rpc.wire.frames import FRAME_BYTES_MAX
from mainstem.rpc.wire.hello import Hello
from mainstem.rpc.wire.method import Method, Reply, ReplyT, RequestT
from mainstem.rpc.wire.tls import closed_unheard, handshake_refusal, names_in


class BlockingClient:
    """Calls to one peer. Use as a context manager or `close` it."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        name: str = "",
        frame_bytes_max: int = FRAME_BYTES_MAX,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """`tls` is asked for the context of each connection."""
        self.address = str(Address(host, port))
        self._host, self._port = host, port
        self._hello = Hello(name=name, frame_bytes_max=frame_bytes_max)
        self._tls = tls
        self._turn = threading.Lock()
        self._socket: socket.socket | None = None
        self._core: CallerConnection

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def call(
        self,
        method: Method[RequestT, ReplyT],
        request: RequestT,
        attachment: Sequence[Buffer] = (),
        *,
        timeout_seconds: float,
    ) -> Reply[ReplyT]:
        """One request, one answer. Raises the method's refusals and `RpcError`."""
        assert not method.streams, f"{method.name} streams"
        (reply,) = self._replies(method, request, attachment, timeout_seconds)
        return reply

    def stream(
        self,
        method: Method[RequestT, ReplyT],
        request: RequestT,
        attachment: Sequence[Buffer] = (),
        *,
        timeout_seconds: float,
    ) -> Iterator[Reply[ReplyT]]:
        """One request, any number of answers. Raises the method's refusals and `RpcError`. No other call can
        be made before the iterator is exhausted or closed; closing it early closes the connection."""
        assert method.streams, f"{method.name} does not stream"
        return self._replies(method, request, attachment, timeout_seconds)

    def _replies(
        self,
        method: Method[RequestT, ReplyT],
        request: RequestT,
        attachment: Sequence[Buffer],
        timeout_seconds: float,
    ) -> Iterator[Reply[ReplyT]]:
        give_up = time.monotonic() + timeout_seconds + DEADLINE_GRACE_SECONDS
        with self._turn:
            answered = False
            try:
                self._connect(give_up - DEADLINE_GRACE_SECONDS)
                request_id, buffers = self._core.call(
                    method, request, attachment, time_left_ms=max(1, round(timeout_seconds * 1000))
                )
                self._send(buffers, give_up)
                while not answered:
                    for answer in self._receive(give_up, method.name):
                        answered = answer.ends
                        if answer.error is not None:
                            raise answer.error
                        if answer.reply is not None:
                            self._send(self._core.take(request_id), give_up)
                            yield answer.reply
            finally:
                if not answered:
                    self.close()

    def _connect(self, deadline: float) -> None:
        if self._socket is not None:
            return
        now = time.monotonic()
        give_up = min(now + CONNECT_SECONDS_MAX, deadline)
        try:
            self._socket = socket.create_connection((self._host, self._port), max(0.001, give_up - now))
        except OSError as error:
            raise ConnectionLost(f"cannot reach {self.address}: {error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._core = CallerConnection(self._hello)
        if self._tls is not None:
            context = self._tls()  # the handshake must end before `give_up`, as every operation
            secured = self._io(context.wrap_socket, give_up, "TLS handshake")
            self._core.certificate_names = names_in(secured.getpeercert())
            self._socket = secured
        self._core.where = self.address
        self._send(self._core.hello(), give_up)
        while self._core.peer is None:
            self._receive(give_up, "hello")

    def _send(self, buffers: Sequence[Buffer], give_up: float) -> None:
        for buffer in buffers:
            self._io(lambda connection, data=buffer: connection.sendall(data), give_up, "request")

    def _receive(self, give_up: float, what: str) -> list[CallAnswer]:
        count = self._io(lambda connection: connection.recv_into(self._core.writable()), give_up, what)
        if not count:
            if self._tls is not None and self._core.peer is None:
                raise closed_unheard(self.address)
            raise ConnectionLost(f"connection to {self.address} closed by the peer")
        return self._core.received(count)

    def _io(self, operation: Any, give_up: float, what: str) -> Any:
        """One socket operation before `give_up`. Raises `DeadlineExceeded` or `ConnectionLost`."""
        left = give_up - time.monotonic()
        if self._socket is None:
            raise ConnectionLost(f"connection to {self.address} was closed")
        try:
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            return operation(self._socket)
        except TimeoutError:
            raise DeadlineExceeded(f"{what}: no answer from {self.address} in time") from None
        except OSError as error:
            lost = ConnectionLost(f"connection to {self.address} lost: {error}")
            refused = handshake_refusal(error, self.address)
            if refused is None and self._tls is not None and self._core.peer is None:
                refused = closed_unheard(self.address)
            raise refused or lost from error


def parse_address(address: str) -> Address:
    """Raises `RpcError`."""
    try:
        return parsed(address)
    except AddressError as error:
        raise RpcError(str(error)) from None
