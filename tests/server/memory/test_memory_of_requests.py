"""The memory that requests hold is charged, bounded, shared and given back."""

from __future__ import annotations

import asyncio
import logging
import struct

import pytest
from tests.fakes.clock import FakeClock
from tests.harness.socket_queues import queues_at_far_end
from tests.server.raw_client import RawClient
from tests.server.scripted import (
    BROKEN,
    ECHO,
    PENDING,
    PIPELINED,
    REFUSED,
    SILENT,
    framed,
    run,
    serving,
    until,
)

from mainstem.server.bounds.request_budget import USUAL_BYTES_MAX
from mainstem.server.config import ServerConfig
from mainstem.server.connection import HALF_READ_SECONDS_MAX, SILENT_SECONDS_MAX
from mainstem.server.kafka_server import KafkaServer
from mainstem.server.receive_buffer import START_BYTES
from mainstem.socket_memory import UNREAD_BYTES_MAX

pytestmark = pytest.mark.usefixtures("event_loop_of_the_test")

KIB = 1024
USUAL = USUAL_BYTES_MAX // 2
"""A request that needs a buffer beyond the start, and no large one."""


@pytest.mark.parametrize("fault", [REFUSED, BROKEN])
def test_a_request_that_fails_gives_back_the_memory_it_was_charged(fault: bytes) -> None:
    async def scenario() -> None:
        async with serving() as (server, _):
            client = await RawClient.connect(server.addresses[0])
            await client.send_frame(fault + b"x" * 1000)
            assert await client.closed_by_server()
            assert server.budget.bytes_taken == 0
            await client.close()

    run(scenario())


def test_frames_that_wait_fill_the_buffer_and_no_more() -> None:
    async def scenario() -> None:
        async with serving() as (server, dispatcher):
            client = await RawClient.connect(server.addresses[0])
            await client.send_frame(b"n")
            await dispatcher.until_seen(1)
            filler = (struct.pack(">i", 1000) + ECHO * 1000) * 4000
            client.writer.write(filler)
            (connection,) = server.connections
            await until(lambda: not connection.is_reading)
            assert connection.buffer_bytes <= 256 * 1024
            dispatcher.resolve(0)
            assert await client.receive() == b"n"
            for _ in range(4000):
                assert len(await client.receive()) == 1000
            await client.close()

    run(scenario())


def test_the_kernel_takes_little_of_a_client_that_sends_while_it_is_not_read() -> None:
    """Nobody counts its memory, and all connections share. It takes most of clients that were read fast before."""

    async def scenario() -> None:
        async with serving() as (server, dispatcher):
            client = await RawClient.connect(server.addresses[0])
            client.writer.write(framed(SILENT + bytes(200_000)) * 200)
            await dispatcher.until_seen(200)
            await client.send_frame(PENDING)
            client.writer.write(framed(SILENT + bytes(1000)) * 20_000)
            connection = client.writer.get_extra_info("socket")
            held: list[int] = []
            while len(held) < 20 or len(set(held[-20:])) > 1:
                held.append(queues_at_far_end(connection).unread)
                await asyncio.sleep(0.005)
            assert 0 < held[-1] <= 2 * UNREAD_BYTES_MAX
            dispatcher.resolve(0)
            assert await client.receive() == PENDING
            await dispatcher.until_seen(20_201)
            await client.close()

    run(scenario())


def test_memory_is_given_back_when_much_less_is_held_than_before() -> None:
    given: list[int] = []

    async def scenario() -> None:
        server = KafkaServer(ServerConfig(listen=("127.0.0.1:0",)), FakeClock(), lambda: given.append(1))
        server.responses.change(300_000_000)
        server.sweep()
        assert given == []
        server.responses.change(-100_000_000)
        server.sweep()
        assert given == []
        server.responses.change(-200_000_000)
        server.sweep()
        server.sweep()
        assert given == [1]
        server.responses.change(20_000_000)
        server.responses.change(-20_000_000)
        server.sweep()
        assert given == [1]

    run(scenario())


async def send_some(client: RawClient, server: KafkaServer, size: int, part: int) -> None:
    """Of a request of `size` bytes that much, once the server has read it."""
    before = server.counters.bytes_in
    await client.send(struct.pack(">i", size) + ECHO * (part - 4))
    await until(lambda: server.counters.bytes_in == before + part)


def test_what_requests_hold_is_bounded_and_small_ones_are_always_served() -> None:
    async def scenario() -> None:
        async with serving(request_bytes_in_flight_max=8 * USUAL) as (server, dispatcher):
            clients = [await RawClient.connect(server.addresses[0]) for _ in range(12)]
            for client in clients:
                client.writer.write(struct.pack(">i", USUAL) + PIPELINED * (USUAL - 1))
            await until(lambda: server.budget.scarce)
            honest = await RawClient.connect(server.addresses[0])
            for number in range(20):
                await honest.send_frame(ECHO * (START_BYTES - 10) + str(number % 10).encode())
                assert len(await honest.receive()) == START_BYTES - 9
                assert server.budget.bytes_taken <= 5 * USUAL  # the share of an address, and one that may always go on
            for client in clients:
                await client.send(PIPELINED)
            await dispatcher.until_seen(20 + len(clients))
            for index in range(len(clients)):
                dispatcher.resolve(index)
            for client in clients:
                assert len(await client.receive()) == USUAL
                await client.close()
            await honest.close()
            await until(lambda: not server.connections)
            assert server.budget.bytes_taken == 0

    run(scenario())


def test_a_request_is_charged_while_its_handler_keeps_it_and_no_longer() -> None:
    async def scenario() -> None:
        async with serving() as (server, dispatcher):
            keeping, handing_on = [await RawClient.connect(server.addresses[0]) for _ in range(2)]
            await keeping.send_frame(b"n" * 100 * KIB)
            await handing_on.send_frame(PIPELINED * 200 * KIB)
            await dispatcher.until_seen(2)
            server.relieve()  # buffers with nothing in them are given up
            assert server.budget.bytes_taken == 100 * KIB
            for index in range(2):
                dispatcher.resolve(index)
            assert len(await keeping.receive()) == 100 * KIB
            assert server.budget.bytes_taken == 0
            for client in (keeping, handing_on):
                await client.close()

    run(scenario())


def test_announcing_much_and_sending_little_takes_nothing_from_others() -> None:
    async def scenario() -> None:
        async with serving(request_bytes_in_flight_max=64 * KIB) as (server, _):
            liars = [await RawClient.connect(server.addresses[0]) for _ in range(5)]
            for liar in liars:
                await send_some(liar, server, 90_000_000, 10)
            assert server.budget.bytes_taken == 0
            client = await RawClient.connect(server.addresses[0])
            await client.send_frame(b"e" * 40_000)
            assert len(await client.receive()) == 40_000
            for each in (*liars, client):
                await each.close()
            await until(lambda: server.budget.bytes_taken == 0)

    run(scenario())


def test_half_read_requests_do_not_wait_for_each_other() -> None:
    async def scenario() -> None:
        async with serving(request_bytes_in_flight_max=100 * KIB) as (server, _):
            clients = [await RawClient.connect(server.addresses[0]) for _ in range(3)]
            size = 90 * KIB
            for client in clients:
                await send_some(client, server, size, 20 * KIB)
            for client in reversed(clients):
                client.writer.write(ECHO * (size + 4 - 20 * KIB))
            for client in clients:
                assert len(await client.receive()) == size
                await client.close()
            await until(lambda: server.budget.bytes_taken == 0)

    run(scenario())


@pytest.mark.parametrize("dribbling", [False, True])
def test_a_request_that_does_not_arrive_gives_way_once_others_wait_for_its_memory(
    dribbling: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        clock = FakeClock()
        async with serving(clock, request_bytes_in_flight_max=100 * KIB) as (server, dispatcher):
            stalled, waiting = [await RawClient.connect(server.addresses[0]) for _ in range(2)]
            await send_some(stalled, server, 200 * KIB, 80 * KIB)
            clock.advance(HALF_READ_SECONDS_MAX + 1)
            server.sweep()
            assert len(server.connections) == 2  # it is let be: nobody is in want
            if dribbling:
                await stalled.send(b"x")
                await until(lambda: max(each.active_at for each in server.connections) == clock.monotonic())
            waiting.writer.write(framed(ECHO * 90 * KIB))
            await until(lambda: len(server.connections) == 1)
            assert await stalled.closed_by_server()
            assert len(await waiting.receive()) == 90 * KIB
            assert len(dispatcher.seen) == 1
            for client in (stalled, waiting):
                await client.close()

    with caplog.at_level(logging.WARNING, "mainstem"):
        run(scenario())
    assert any("others wait for the memory" in record.getMessage() for record in caplog.records)


def test_a_request_that_goes_on_arriving_is_let_be_for_a_while() -> None:
    async def scenario() -> None:
        clock = FakeClock()
        async with serving(clock, request_bytes_in_flight_max=100 * KIB) as (server, _):
            slow, waiting = [await RawClient.connect(server.addresses[0]) for _ in range(2)]
            await send_some(slow, server, 200 * KIB, 80 * KIB)
            waiting.writer.write(framed(ECHO * 90 * KIB))
            await until(lambda: server.budget.scarce)
            for _ in range(4):
                clock.advance(SILENT_SECONDS_MAX - 1)
                server.relieve()
                before = server.counters.bytes_in
                await slow.send(b"x")
                await until(lambda before=before: server.counters.bytes_in > before)
            assert len(server.connections) == 2
            clock.advance(SILENT_SECONDS_MAX + 1)
            server.relieve()
            assert await slow.closed_by_server()
            assert len(await waiting.receive()) == 90 * KIB
            for client in (slow, waiting):
                await client.close()

    run(scenario())


@pytest.mark.plain
def test_who_waits_for_memory_and_hangs_up_is_noticed_though_nothing_is_read() -> None:
    async def scenario() -> None:
        async with serving(request_bytes_in_flight_max=100 * KIB) as (server, _):
            first, second = [await RawClient.connect(server.addresses[0]) for _ in range(2)]
            await send_some(first, server, 200 * KIB, 80 * KIB)
            second.writer.write(framed(ECHO * 90 * KIB)[:-1])
            await until(lambda: server.budget.scarce)
            connections = list(server.connections)
            await second.close()
            await until(lambda: len(server.connections) == 1)
            assert not server.budget.scarce
            await first.close()
            await until(lambda: server.budget.bytes_taken == 0)
            assert [connection.buffer_bytes for connection in connections] == [0, 0]

    run(scenario())


def test_bytes_of_a_request_whose_client_left_are_given_back_when_it_ends() -> None:
    async def scenario() -> None:
        async with serving() as (server, dispatcher):
            client = await RawClient.connect(server.addresses[0])
            await client.send_frame(b"n" * 50 * KIB)
            await dispatcher.until_seen(1)
            await client.send(struct.pack(">i", 1000) + b"half")
            await client.reset()
            await until(lambda: dispatcher.gone)
            assert server.budget.bytes_taken == 50 * KIB
            dispatcher.resolve(0)
            await until(lambda: server.budget.bytes_taken == 0)

    run(scenario())


def test_idle_buffers_shrink() -> None:
    async def scenario() -> None:
        clock = FakeClock()
        async with serving(clock) as (server, _):
            client = await RawClient.connect(server.addresses[0])
            await client.send_frame(ECHO * 500_000)
            await client.receive()
            (connection,) = server.connections
            assert connection.buffer_bytes >= 500_000
            clock.advance(30)
            server.sweep()
            assert connection.buffer_bytes == START_BYTES
            await client.send_frame(ECHO * 100_000)
            assert len(await client.receive()) == 100_000
            await client.close()

    run(scenario())
