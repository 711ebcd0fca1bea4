"""The memory that unsent responses hold is bounded, and who reads is served beside who does not."""

from __future__ import annotations

import asyncio
import socket

import pytest
from tests.fakes.clock import FakeClock, HastyClock
from tests.server.raw_client import RawClient
from tests.server.scripted import ECHO, LARGE, LARGE_REPLY_BYTES, PROMPT, framed, run, serving, until

from mainstem.errors import ConfigError
from mainstem.server.config import ServerConfig
from mainstem.server.connection import TRANSPORT_BYTES_HIGH, UNREAD_SECONDS_MAX

pytestmark = pytest.mark.usefixtures("event_loop_of_the_test")


@pytest.mark.plain
def test_a_reader_that_does_not_read_holds_a_bounded_number_of_bytes() -> None:
    """Counters, not time: of 200 requests for 1 MB only as many are made as fit the bound and the sockets."""
    bound = 2_000_000

    async def scenario() -> None:
        async with serving(response_bytes_unsent_max=bound) as (server, dispatcher):
            client = await RawClient.connect(server.addresses[0])
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            for _ in range(200):
                await client.send_frame(LARGE)
            (connection,) = server.connections
            await until(lambda: connection.bytes_unsent > bound)
            settled = (0, -1)
            while settled[1] != len(dispatcher.seen) or settled[0] < 20:
                settled = (settled[0] + 1 if settled[1] == len(dispatcher.seen) else 0, len(dispatcher.seen))
                await asyncio.sleep(0.005)
            assert connection.bytes_unsent <= bound + LARGE_REPLY_BYTES + 4
            assert len(dispatcher.seen) < 100
            assert server.counters.requests == len(dispatcher.seen)
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            for _ in range(200):
                assert len(await client.receive()) == LARGE_REPLY_BYTES
            await client.close()

    run(scenario())


@pytest.mark.plain
def test_the_kernel_takes_little_for_a_reader_that_does_not_read() -> None:
    """Nobody counts its memory, and all connections share: four megabytes, left alone."""

    async def scenario() -> None:
        async with serving(response_bytes_unsent_max=16_000_000) as (server, dispatcher):
            address = server.addresses[0]
            with socket.socket() as deaf:
                deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)  # before it connects: it stays so
                deaf.connect((address.host, address.port))
                deaf.sendall(framed(LARGE) * 8)
                await until(lambda: len(dispatcher.seen) == 8)
                (connection,) = server.connections
                settled: list[int] = []
                while len(settled) < 20 or len(set(settled[-20:])) > 1:
                    settled.append(connection.bytes_unsent)
                    await asyncio.sleep(0.005)
                assert 8 * (LARGE_REPLY_BYTES + 4) - settled[-1] < 1_000_000

    run(scenario())


@pytest.mark.plain
def test_those_who_do_not_read_are_closed_when_memory_is_short_and_those_who_read_are_served() -> None:
    """Beyond the bound a connection that holds nothing still gets its responses."""

    async def scenario() -> None:
        clock = FakeClock()
        async with serving(clock, response_bytes_max=8_000_000) as (server, _):
            deaf = [await RawClient.connect(server.addresses[0]) for _ in range(30)]
            for client in deaf:
                client.writer.transport.pause_reading()  # type: ignore[attr-defined]
                client.writer.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                for _ in range(20):
                    client.writer.write(framed(LARGE))
            await until(lambda: server.responses.exhausted)
            reader = await RawClient.connect(server.addresses[0])
            for _ in range(10):
                await reader.send_frame(ECHO + b"still here")
                assert await reader.receive() == ECHO + b"still here"
            for connection in server.connections:
                connection.recount()
            held = server.responses.bytes_held
            assert held <= 2 * 8_000_000 + LARGE_REPLY_BYTES * 2
            assert sum(connection.bytes_unsent for connection in server.connections) == held
            server.close_unread()
            assert len(server.connections) == 31  # they have had no time to take anything
            clock.advance(UNREAD_SECONDS_MAX + 1)
            await reader.send_frame(LARGE)
            assert len(await reader.receive()) == LARGE_REPLY_BYTES
            server.close_unread()
            assert 0 < server.counters.unread_closed < 30
            while 2 * server.responses.bytes_held >= 8_000_000:  # those that are left get theirs, and do not read
                await reader.send_frame(ECHO + b"to the end")
                assert await reader.receive() == ECHO + b"to the end"
                clock.advance(UNREAD_SECONDS_MAX + 1)
                server.close_unread()
            assert len(server.connections) > 1
            for client in (*deaf, reader):
                await client.reset()
            await until(lambda: not server.connections)
            assert server.responses.bytes_held == 0

    run(scenario())


def test_many_that_have_something_to_write_do_not_take_one_turn_of_the_loop() -> None:
    async def scenario() -> None:
        async with serving(HastyClock()) as (server, dispatcher):
            clients = [await RawClient.connect(server.addresses[0]) for _ in range(20)]
            for client in clients:
                for number in range(3):
                    await client.send_frame(PROMPT + str(number).encode())
            await dispatcher.until_seen(60)
            for number in range(60):
                if dispatcher.pending[number][0] != PROMPT + b"2":
                    dispatcher.resolve(number)
            turns = 0
            while any(connection.bytes_unsent for connection in server.connections):
                turns += 1
                await asyncio.sleep(0)
            assert turns >= 5
            for number in range(60):
                if dispatcher.pending[number][0] == PROMPT + b"2":
                    dispatcher.resolve(number)
            for client in clients:
                assert [await client.receive() for _ in range(3)] == [PROMPT + b"%d" % n for n in range(3)]
                await client.close()

    run(scenario())


def test_a_bound_below_what_a_transport_may_hold_is_refused() -> None:
    """The transport tells when it falls below its own mark, not below ours: the connection would never go on."""
    ServerConfig(response_bytes_unsent_max=TRANSPORT_BYTES_HIGH).validate()
    with pytest.raises(ConfigError, match="response_bytes_unsent_max"):
        ServerConfig(response_bytes_unsent_max=TRANSPORT_BYTES_HIGH - 1).validate()
