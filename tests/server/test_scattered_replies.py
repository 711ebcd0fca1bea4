"""Replies that lie scattered leave past the transport, on both kinds of event loop: whole, in their order, and with all
bounds of those that do not."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.server.raw_client import RawClient
from tests.server.scripted import (
    ECHO,
    LARGE_REPLY_BYTES,
    PIECE_BYTES,
    PROMPT,
    SCATTERED,
    ScriptedDispatcher,
    framed,
    run,
    scattered_content,
    serving,
    until,
)

from mainstem.server.connection import AWAITED_BYTES, TRANSPORT_BYTES_HIGH, TURN_BYTES_MAX, Connection
from mainstem.server.shared import Shared

pytestmark = pytest.mark.usefixtures("event_loop_of_the_test")


@pytest.mark.plain
def test_they_leave_from_where_they_lie_and_the_transport_only_waits() -> None:
    """If the socket is full, it gets a few bytes to wait with."""

    async def scenario() -> None:
        async with serving() as (server, dispatcher):
            client = await RawClient.connect(server.addresses[0])
            for _ in range(5):
                await client.send_frame(SCATTERED)
                assert await client.receive() == scattered_content()
            assert len(dispatcher.scattered) == 5
            for reply in dispatcher.scattered:
                assert reply.taken + sum(reply.sent) == LARGE_REPLY_BYTES + 4
                assert all(size <= TURN_BYTES_MAX for size in reply.sent)
                short = [size for size in reply.sent if size < TURN_BYTES_MAX]
                assert reply.taken <= AWAITED_BYTES * len(short)
            (connection,) = server.connections
            await until(lambda: connection.bytes_unsent == 0)
            assert server.counters.bytes_out == 5 * (LARGE_REPLY_BYTES + 4)
            await client.close()

    run(scenario())


def test_they_keep_their_place_among_others() -> None:
    async def scenario() -> None:
        async with serving() as (server, dispatcher):
            client = await RawClient.connect(server.addresses[0])
            await client.send(framed(PROMPT, ECHO + b"1", SCATTERED, ECHO + b"2", SCATTERED, SCATTERED, ECHO + b"3"))
            await dispatcher.until_seen(7)
            assert not any(reply.sent for reply in dispatcher.scattered)  # they wait for the first
            dispatcher.resolve(0)
            content = scattered_content()
            expected = [PROMPT, ECHO + b"1", content, ECHO + b"2", content, content, ECHO + b"3"]
            assert [await client.receive() for _ in range(7)] == expected
            await client.close()

    run(scenario())


@pytest.mark.plain
def test_a_reader_that_does_not_read_holds_as_much_as_with_any_reply() -> None:
    bound = 2_000_000

    async def scenario() -> None:
        async with serving(response_bytes_unsent_max=bound) as (server, dispatcher):
            address = server.addresses[0]
            with socket.socket() as deaf:
                deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)  # before it connects: it stays so
                deaf.connect((address.host, address.port))
                deaf.sendall(framed(SCATTERED) * 50)
                await until(lambda: server.connections)
                (connection,) = server.connections
                await until(lambda: connection.bytes_unsent > bound)
                assert connection.bytes_unsent <= bound + LARGE_REPLY_BYTES + 4
                assert len(dispatcher.seen) < 50
                connection.recount()
                assert connection.held_bytes == connection.bytes_unsent
                reading = await RawClient.connect(address)
                await reading.send_frame(SCATTERED)
                assert await reading.receive() == scattered_content()
                await reading.close()
            await until(lambda: not server.connections)
            assert server.responses.bytes_held == 0

    run(scenario())


def test_a_reader_that_goes_away_takes_the_rest_with_it() -> None:
    async def scenario() -> None:
        async with serving() as (server, dispatcher):
            for _ in range(5):
                client = await RawClient.connect(server.addresses[0])
                await client.send(framed(SCATTERED) * 20)
                await client.receive()
                await client.reset()
            await until(lambda: not server.connections)
            assert server.responses.bytes_held == 0
            assert any(len(reply) for reply in dispatcher.scattered)

    run(scenario())


class HeldTransport(asyncio.Transport):
    """Keeps what it is given, over one end of a pair of sockets."""

    def __init__(self, near: socket.socket) -> None:
        super().__init__({"socket": near})
        self.held = bytearray()
        self.limits: list[int | None] = []
        self.closing = False

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return len(self.held)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.limits.append(high)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.held += data

    def resume_reading(self) -> None:
        pass


@asynccontextmanager
async def connection_over_a_transport() -> AsyncIterator[tuple[Connection, HeldTransport, ScriptedDispatcher]]:
    near, far = socket.socketpair()
    near.setblocking(False)
    with near, far:
        async with serving() as (server, dispatcher):
            connection = Connection(server, Shared(server.config, server.clock, lambda: None), dispatcher)
            transport = HeldTransport(near)
            connection.connection_made(transport)
            yield connection, transport, dispatcher
            connection.connection_lost(None)


def receive(connection: Connection, content: bytes) -> None:
    connection.get_buffer(-1)[: len(content)] = content
    connection.buffer_updated(len(content))


def test_what_the_transport_holds_leaves_first() -> None:
    async def scenario() -> None:
        async with connection_over_a_transport() as (connection, transport, dispatcher):
            receive(connection, framed(ECHO + b"first"))
            assert bytes(transport.held) == framed(ECHO + b"first")
            receive(connection, framed(SCATTERED))
            connection.flush()
            assert dispatcher.scattered[0].sent == []
            assert transport.held.startswith(framed(ECHO + b"first") + framed(scattered_content())[:PIECE_BYTES])

    run(scenario())


def test_a_full_socket_leaves_the_transport_waiting_and_its_limits_as_they_were() -> None:
    async def scenario() -> None:
        async with connection_over_a_transport() as (connection, transport, dispatcher):
            receive(connection, framed(SCATTERED))
            connection.flush()
            (reply,) = dispatcher.scattered
            assert 0 < reply.sent[0] < TURN_BYTES_MAX
            assert len(transport.held) >= AWAITED_BYTES
            assert transport.limits == [TRANSPORT_BYTES_HIGH, 0, TRANSPORT_BYTES_HIGH]
            whole = framed(scattered_content())
            assert bytes(transport.held) == whole[reply.sent[0] : reply.sent[0] + len(transport.held)]

    run(scenario())


def test_a_connection_that_ends_writes_to_no_descriptor_any_more() -> None:
    """It may be another connection's by then."""

    async def scenario() -> None:
        async with connection_over_a_transport() as (connection, transport, dispatcher):
            transport.closing = True
            receive(connection, framed(SCATTERED))
            connection.flush()
            assert dispatcher.scattered[0].sent == []

    run(scenario())
