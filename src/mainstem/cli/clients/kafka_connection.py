"""Kafka's protocol as it is on the wire, for commands that need batches as they are stored.

Clients such as librdkafka hand out records. An export needs the batches around them, byte by byte. A connection does
one request after the other, in versions that Kafka has had since 3.0.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mainstem.address import Address, parsed
from mainstem.cli.clients.sasl import Login, login_of
from mainstem.cli.clients.tls import context_of
from mainstem.cli.errors import NodeUnreachable, NotAdmitted
from mainstem.protocol import codec
from mainstem.protocol.errors import ProtocolError
from mainstem.protocol.headers import RequestHeader, parse_response_header, request_frame
from mainstem.protocol.messages import API_MESSAGES
from mainstem.protocol.schema import declaration_of

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
"""A disk that is busy answers a large fetch within this."""

FRAME_BYTES_MAX = 256 << 20
"""A longer answer is not one to what was asked."""

_LENGTH = struct.Struct(">i")


class KafkaConnection:
    """A connection to one node."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None = None, login: Login | None = None) -> None:
        """`tls`: None is a connection that is not encrypted; `login`: how the client shows who it is, if the listener
        asks. Raises OSError, NotAdmitted."""
        self._address = address
        self._socket = socket.create_connection(address, CONNECT_SECONDS)
        self._socket.settimeout(ANSWER_SECONDS)
        if tls is not None:
            plain = self._socket
            try:
                self._socket = tls.wrap_socket(plain, server_hostname=address.host)
            except BaseException:
                plain.close()
                raise
        self._correlation_id = 0
        if login is not None:
            try:
                login.authenticate(self.call)
            except BaseException:
                self.close()
                raise

    def call(self, message: Any, version: int) -> Any:
        """The answer to a request. Raises OSError; also where the answer cannot be read."""
        key = declaration_of(type(message)).api_key
        assert key is not None
        self._correlation_id += 1
        header = RequestHeader(key, version, self._correlation_id, "mainstem-cli")
        self._socket.sendall(request_frame(header, codec.write(message, version)))
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if not 0 <= length <= FRAME_BYTES_MAX:
            raise ConnectionError(f"{self._address} does not speak Kafka's protocol")
        frame = self._exactly(length)
        try:
            _, position = parse_response_header(frame, key, version)
            return codec.read(API_MESSAGES[key].response, version, frame, position)
        except ProtocolError as error:
            raise ConnectionError(f"{self._address}: an answer that cannot be read: {error}") from error

    def _exactly(self, length: int) -> bytes:
        content = bytearray(length)
        view, done = memoryview(content), 0
        while done < length:
            count = self._socket.recv_into(view[done:])
            if not count:
                raise ConnectionError(f"{self._address} closed the connection")
            done += count
        return bytes(content)

    def close(self) -> None:
        self._socket.close()


class KafkaConnections:
    """A connection to each node that is asked; those that broke are made anew."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        """`settings`: what a client connects with, by librdkafka's names. Raises SettingsUnusable."""
        known = settings or {}
        self._tls, self._login = context_of(known), login_of(known)
        self._open: dict[Address, KafkaConnection] = {}

    def call(self, address: Address, message: Any, version: int) -> Any:
        """Ask a node. Raises OSError."""
        with self._usable(address) as connection:
            return connection.call(message, version)

    def call_any(self, bootstrap: str, message: Any, version: int) -> Any:
        """Ask the first of these nodes that answers. Raises NodeUnreachable, NotAdmitted."""
        failures: list[str] = []
        for text in bootstrap.split(","):
            try:
                return self.call(parsed(text), message, version)
            except ssl.SSLError as error:
                raise NotAdmitted(f"no TLS with the node at {text}: {error.reason or error}") from None
            except OSError as error:
                failures.append(f"{text}: {error.strerror or error}")
        raise NodeUnreachable(
            f"no node at {'; '.join(failures)}; is `mainstem serve` running? Give another address with --bootstrap"
        )

    @contextmanager
    def _usable(self, address: Address) -> Iterator[KafkaConnection]:
        connection = self._open.get(address)
        if connection is None:
            connection = self._open[address] = KafkaConnection(address, self._tls, self._login)
        try:
            yield connection
        except OSError:
            del self._open[address]
            connection.close()
            raise

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()
