"""How connections end: by faults of their clients, by the client, by an answer, by the server."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import struct
import weakref

import pytest
from tests.fakes.clock import FakeClock
from tests.server.raw_client import RawClient
from tests.server.scripted import run, serving, until

from mainstem.server import kafka_server, lingering
from mainstem.server.kafka_server import KafkaServer

pytestmark = pytest.mark.usefixtures("event_loop_of_the_test")


@pytest.mark.parametrize(
    ("sent", "logged"),
    [
        (struct.pack(">i", 2**31 - 1), "2147483647 bytes"),
        (struct.pack(">i", -1), "-1 bytes"),
        (struct.pack(">i", 0), "0 bytes"),
        (b"GET / HTTP/1.1\r\n\r\n", "socket.request.max.bytes"),
        (struct.pack(">i", 5) + b"r1234", "does not like"),
        (struct.pack(">i", 5) + b"b1234", "failed unexpectedly"),
    ],
)
def test_what_cannot_be_a_request_closes_its_connection_with_one_line(
    sent: bytes, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with serving() as (server, _):
            bystander = await RawClient.connect(server.addresses[0])
            client = await RawClient.connect(server.addresses[0])
            await client.send(sent)
            assert await client.closed_by_server()
            await bystander.send_frame(b"e")
            assert await bystander.receive() == b"e"
            await bystander.close()
            await client.close()
            assert server.counters.failures == 1

    with caplog.at_level(logging.WARNING, "mainstem"):
        run(scenario())
    (record,) = [record for record in caplog.records if record.name.startswith("mainstem")]
    assert logged in record.getMessage()
    assert "127.0.0.1" in record.getMessage()


@pytest.mark.plain
def test_a_connection_that_has_ended_is_freed_without_the_collector() -> None:
    """Full collections are seldom, and a connection has buffers."""

    async def scenario() -> None:
        async with serving() as (server, _):
            gc.collect()
            client = await RawClient.connect(server.addresses[0])
            await client.send_frame(b"e")
            assert await client.receive() == b"e"
            (connection,) = map(weakref.ref, server.connections)  # those of tests before may still be there
            await client.close()
            await until(lambda: connection() is None)

    gc.disable()
    try:
        run(scenario())
    finally:
        gc.enable()


@pytest.mark.plain
def test_a_stream_that_ends_inside_a_frame_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving() as (server, _):
            client = await RawClient.connect(server.addresses[0])
            await client.send(struct.pack(">i", 100) + b"half")
            client.writer.write_eof()
            assert await client.closed_by_server()
            await client.close()

    with caplog.at_level(logging.WARNING, "mainstem"):
        run(scenario())
    assert [record.getMessage().count("unfinished request") for record in caplog.records] == [1]


@pytest.mark.plain
def test_a_peer_that_ends_its_stream_still_gets_its_answers() -> None:
    async def scenario() -> None:
        async with serving() as (server, dispatcher):
            client = await RawClient.connect(server.addresses[0])
            for name in (b"n1", b"e2"):
                await client.send_frame(name)
            client.writer.write_eof()
            await dispatcher.until_seen(1)
            dispatcher.resolve(0)
            assert [await client.receive(), await client.receive()] == [b"n1", b"e2"]
            assert await client.closed_by_server()
            await client.close()

    run(scenario())


@pytest.mark.plain
def test_connections_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving(connections_max=3, connections_per_host_max=2) as (server, _):
            welcome = [await RawClient.connect(server.addresses[0]) for _ in range(2)]
            for client in welcome:
                await client.send_frame(b"e")
                await client.receive()
            for _ in range(5):
                refused = await RawClient.connect(server.addresses[0])
                assert await refused.closed_by_server()
                await refused.close()
            assert server.counters.refused == 5
            await welcome[0].close()
            await until(lambda: len(server.connections) == 1)
            again = await RawClient.connect(server.addresses[0])
            await again.send_frame(b"e")
            assert await again.receive() == b"e"
            await again.close()
            await welcome[1].close()

    with caplog.at_level(logging.WARNING, "mainstem"):
        run(scenario())
    assert sum("max.connections.per.ip" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.plain
def test_the_most_connections_change_while_a_server_runs_and_single_addresses_may_have_their_own() -> None:
    async def scenario() -> None:
        async with serving(connections_max=3, connections_per_host_max=1, connections_of_hosts="127.0.0.1:2") as (
            server,
            _,
        ):
            kept = [await answered(server) for _ in range(2)]
            assert await is_refused(server), "two of this address"
            server.bounds.hold(2, 1, {"127.0.0.1": 5})
            assert await is_refused(server), "two in all"
            server.bounds.hold(5, 3, {"127.0.0.2": 0})
            kept.append(await answered(server))
            assert await is_refused(server), "three of an address"
            server.bounds.hold(1, 1, {})
            assert len(server.connections) == 3, "open connections stay"
            for client in kept:
                await client.close()

    async def answered(server: KafkaServer) -> RawClient:
        client = await RawClient.connect(server.addresses[0])
        await client.send_frame(b"e")
        assert await client.receive() == b"e"
        return client

    async def is_refused(server: KafkaServer) -> bool:
        client = await RawClient.connect(server.addresses[0])
        ended = await client.closed_by_server()
        await client.close()
        return ended

    run(scenario())


def test_idle_connections_are_closed_and_busy_ones_kept() -> None:
    async def scenario() -> None:
        clock = FakeClock()
        async with serving(clock, connection_idle_ms_max=60_000) as (server, dispatcher):
            idle, busy, active = [await RawClient.connect(server.addresses[0]) for _ in range(3)]
            await busy.send_frame(b"n1")
            await dispatcher.until_seen(1)
            await idle.send_frame(b"e")
            await idle.receive()
            clock.advance(59)
            server.sweep()
            await active.send_frame(b"e")
            await active.receive()
            clock.advance(1)
            server.sweep()
            assert await idle.closed_by_server()
            assert server.counters.idle_closed == 1
            dispatcher.resolve(0)
            assert await busy.receive() == b"n1"
            await active.send_frame(b"e2")
            assert await active.receive() == b"e2"
            for client in (idle, busy, active):
                await client.close()

    run(scenario())


def test_a_sweep_of_many_connections_takes_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_server, "SWEPT_AT_ONCE", 2)

    async def scenario() -> None:
        clock = FakeClock()
        async with serving(clock, connection_idle_ms_max=60_000) as (server, _):
            clients = [await RawClient.connect(server.addresses[0]) for _ in range(5)]
            for client in clients:
                await client.send_frame(b"e")
                await client.receive()
            clock.advance(60)
            swept: list[int] = []
            server.sweep_in_turns(lambda: swept.append(server.counters.idle_closed))
            assert (server.counters.idle_closed, swept) == (2, [])
            await until(lambda: bool(swept))
            assert swept == [5]
            for client in clients:
                assert await client.closed_by_server()
                await client.close()

    run(scenario())


def test_closing_finishes_what_is_in_flight_and_accepts_nothing_more() -> None:
    async def scenario() -> None:
        async with serving() as (server, dispatcher):
            client = await RawClient.connect(server.addresses[0])
            address = server.addresses[0]
            for name in (b"p1", b"n2", b"e3"):
                await client.send_frame(name)
            await dispatcher.until_seen(2)
            closing = asyncio.ensure_future(server.close())
            await asyncio.sleep(0)
            with pytest.raises(OSError):
                await RawClient.connect(address)
            dispatcher.resolve(1)
            dispatcher.resolve(0)
            assert [await client.receive(), await client.receive()] == [b"p1", b"n2"]
            assert await client.closed_by_server()  # e3 was not begun
            await closing
            await client.close()

    run(scenario())


def test_what_was_asked_before_a_read_that_is_given_up_is_still_answered() -> None:
    async def scenario() -> None:
        async with serving() as (server, dispatcher):
            client = await RawClient.connect(server.addresses[0])
            for name in (b"p1", b"n2"):
                await client.send_frame(name)
            await dispatcher.until_seen(2)
            dispatcher.pending[1][1].cancel()
            await asyncio.sleep(0)
            dispatcher.resolve(0)
            assert await client.receive() == b"p1"
            assert await client.closed_by_server()
            await client.close()

    run(scenario())


def test_the_last_answer_of_a_connection_ends_it_and_none_before_is_lost() -> None:
    async def scenario() -> None:
        async with serving() as (server, dispatcher):
            for last in (b"f2", b"g2"):
                client = await RawClient.connect(server.addresses[0])
                dispatcher.seen.clear()
                first = len(dispatcher.pending)
                for name in (b"p1", last, b"e3"):
                    await client.send_frame(name)
                await dispatcher.until_seen(2)
                for pending in range(len(dispatcher.pending) - 1, first - 1, -1):
                    dispatcher.resolve(pending)
                assert [await client.receive(), await client.receive()] == [b"p1", last]
                assert await client.closed_by_server()
                assert dispatcher.seen == [b"p1", last]
                await client.close()

    run(scenario())


@pytest.mark.plain
def test_a_peer_that_goes_on_sending_reads_its_last_answer() -> None:
    """The bytes that the server has not read would make its kernel reset the connection, answers and all."""

    def read_all(client: socket.socket) -> bytes:
        found = bytearray()
        while part := client.recv(65536):
            found += part
        return bytes(found)

    async def scenario() -> None:
        async with serving() as (server, dispatcher):
            address = server.addresses[0]
            with socket.create_connection((address.host, address.port)) as client:
                client.settimeout(10)
                frames = [struct.pack(">i", len(name)) + name for name in (b"p1", b"g2", *[b"e3"] * 10_000)]
                await asyncio.to_thread(client.sendall, b"".join(frames))
                await dispatcher.until_seen(2)
                dispatcher.resolve(1)
                dispatcher.resolve(0)
                await until(lambda: server.counters.bytes_out >= len(frames[0]) + len(frames[1]))
                await asyncio.sleep(0.05)  # for the end of the stream, or a reset, to arrive
                client.sendall(frames[2])
                await asyncio.sleep(0.05)
                assert await asyncio.to_thread(read_all, client) == frames[0] + frames[1]
                assert dispatcher.seen == [b"p1", b"g2"]
            await until(lambda: not server.connections)

    run(scenario())


def test_a_peer_that_never_closes_is_closed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lingering, "SECONDS_MAX", 0.05)

    async def scenario() -> None:
        async with serving() as (server, _):
            client = await RawClient.connect(server.addresses[0])
            await client.send_frame(b"f1")
            assert await client.receive() == b"f1"
            await until(lambda: not server.connections)
            await client.close()

    run(scenario())


def test_closing_does_not_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving(shutdown_ms_max=10) as (server, dispatcher):
            client = await RawClient.connect(server.addresses[0])
            await client.send_frame(b"n1")
            await dispatcher.until_seen(1)
            await server.close()
            assert await client.closed_by_server()
            await client.close()

    with caplog.at_level(logging.WARNING, "mainstem"):
        run(scenario())
    assert any("did not finish in time" in record.getMessage() for record in caplog.records)
