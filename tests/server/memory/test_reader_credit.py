"""The bytes that a connection may be answered with grow as its peer takes what it was given."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
from tests.server.raw_client import RawClient
from tests.server.scripted import ECHO, LARGE, LARGE_REPLY_BYTES, ScriptedDispatcher, framed, run, serving, until

from mainstem.ports import ANY_BYTES, Session, any_bytes
from mainstem.server.bounds.reader_credit import FIRST_BYTES, GROWTH, SPARE_FIRST_BYTES, SPARE_SHARE, TRUSTED_BYTES
from mainstem.server.kafka_server import KafkaServer

pytestmark = pytest.mark.usefixtures("event_loop_of_the_test")

SMALL_BYTES = 10_000
PREFIX_BYTES = 4
BOUND_BYTES = 4 << 20
"""Of what responses may hold; a large one is a quarter of it."""


async def only_session(dispatcher: ScriptedDispatcher) -> Session:
    await dispatcher.until_seen(1)
    (session,) = dispatcher.sessions
    return session


def deafen(client: RawClient) -> None:
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]


def listen_again(client: RawClient) -> None:
    client.writer.transport.resume_reading()  # type: ignore[attr-defined]


def answered_more(server: KafkaServer, requests: int) -> bool:
    """Whether more requests than these have come, and all are answered."""
    return server.counters.requests > requests and not any(one.in_flight for one in server.connections)


@asynccontextmanager
async def held_memory(server: KafkaServer) -> AsyncIterator[None]:
    """Somebody does not read, so that responses hold more than what is to spare, and less than half of the bound."""
    client = await RawClient.connect(server.addresses[0])
    deafen(client)
    while not any(one.held_bytes > BOUND_BYTES // SPARE_SHARE for one in server.connections):
        is_answered = partial(answered_more, server, server.counters.requests)
        await client.send_frame(LARGE)  # the kernel takes a part of each response, now and then nearly all of it
        await until(is_answered)
    yield
    await client.reset()


def unread_bytes(peer: socket.socket) -> int:
    """The bytes that the peer's host has, and acknowledges soon, and the peer has not read."""
    (size,) = struct.unpack("i", fcntl.ioctl(peer, termios.FIONREAD, bytes(4)))
    return int(size)


def test_a_reader_gets_the_more_the_more_it_has_read() -> None:
    async def scenario() -> None:
        async with serving() as (server, dispatcher):
            client = await RawClient.connect(server.addresses[0])
            await client.send_frame(ECHO * SMALL_BYTES)
            session = await only_session(dispatcher)
            assert await client.receive() == ECHO * SMALL_BYTES
            taken = SMALL_BYTES + PREFIX_BYTES
            await until(lambda: session.response_bytes_max() == SPARE_FIRST_BYTES + GROWTH * taken)
            for _ in range(-(-TRUSTED_BYTES // LARGE_REPLY_BYTES)):
                await client.send_frame(LARGE)
                assert len(await client.receive()) == LARGE_REPLY_BYTES
            await until(lambda: session.response_bytes_max() == ANY_BYTES)
            await client.close()

    run(scenario())


def test_a_new_reader_gets_less_while_memory_is_held() -> None:
    async def scenario() -> None:
        async with serving(response_bytes_max=BOUND_BYTES) as (server, dispatcher):
            client = await RawClient.connect(server.addresses[0])
            await client.send_frame(ECHO)
            session = await only_session(dispatcher)
            await client.receive()
            taken = len(ECHO) + PREFIX_BYTES
            await until(lambda: session.response_bytes_max() == SPARE_FIRST_BYTES + GROWTH * taken)
            async with held_memory(server):
                assert session.response_bytes_max() == FIRST_BYTES + GROWTH * taken
            await until(lambda: session.response_bytes_max() == SPARE_FIRST_BYTES + GROWTH * taken)
            await client.close()

    run(scenario())


@pytest.mark.plain
def test_what_the_kernel_holds_for_a_peer_that_does_not_read_is_not_taken() -> None:
    """Of the responses nothing is left in the node; the credit is used up all the same, until the peer reads."""
    size_bytes = FIRST_BYTES * 3 // 4  # two of them the kernel takes at once, and are more than the credit

    async def scenario() -> None:
        async with serving(response_bytes_max=BOUND_BYTES) as (server, dispatcher), held_memory(server):
            others, known = set(server.connections), set(dispatcher.sessions)
            with socket.socket() as peer:
                peer.setblocking(False)
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)  # the rest stays with the node's kernel
                address = server.addresses[0]
                await asyncio.get_running_loop().sock_connect(peer, (address.host, address.port))
                content = ECHO * (size_bytes // len(ECHO))
                await asyncio.get_running_loop().sock_sendall(peer, framed(content, content))
                await dispatcher.until_seen(3)
                (session,) = dispatcher.sessions - known
                (connection,) = set(server.connections) - others
                await until(lambda: not connection.in_flight and not connection.bytes_unsent)
                taken = 2 * (len(content) + PREFIX_BYTES)

                def of_what_is_acknowledged() -> int:
                    acknowledged = unread_bytes(peer)
                    return FIRST_BYTES + GROWTH * acknowledged - (taken - acknowledged)

                await until(lambda: session.response_bytes_max() == of_what_is_acknowledged())
                assert taken - unread_bytes(peer) > FIRST_BYTES
                left = taken
                while left:
                    left -= len(await asyncio.get_running_loop().sock_recv(peer, left))
                await until(lambda: session.response_bytes_max() == FIRST_BYTES + GROWTH * taken)

    run(scenario())


def test_what_waits_in_the_node_is_not_taken() -> None:
    """As much as the kernel does not take any more."""

    async def scenario() -> None:
        async with serving(response_bytes_unsent_max=16_000_000) as (server, dispatcher):
            client = await RawClient.connect(server.addresses[0])
            deafen(client)
            for _ in range(10):
                await client.send_frame(LARGE)
            session = await only_session(dispatcher)
            (connection,) = server.connections
            await until(lambda: connection.bytes_unsent > SPARE_FIRST_BYTES + LARGE_REPLY_BYTES)
            assert session.response_bytes_max() == 1
            listen_again(client)
            for _ in range(10):
                assert len(await client.receive()) == LARGE_REPLY_BYTES
            await until(lambda: session.response_bytes_max() == ANY_BYTES)
            await client.reset()
            await until(lambda: not server.connections)
            await asyncio.sleep(0)
            assert session.response_bytes_max() > 0  # a task may still ask

    run(scenario())


def test_a_client_of_which_nothing_is_known_has_no_bound() -> None:
    assert Session("h", 1, 1).response_bytes_max() == any_bytes() == ANY_BYTES
