"""Calls over real sockets: asyncio and blocking callers against a server, and peers that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.socket_queues import queues_at_far_end
from tests.rpc.conftest import Run

from mainstem.rpc import rpc_server as server_module
from mainstem.rpc.blocking import BlockingClient, parse_address
from mainstem.rpc.client import Client
from mainstem.rpc.errors import (
    CallFailed,
    ConnectionLost,
    DeadlineExceeded,
    Refused,
    RpcError,
)
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.rpc_server import CALLS_MAX, RpcServer
from mainstem.rpc.wire.call_state import STREAM_WINDOW_ITEMS
from mainstem.rpc.wire.frames import FrameKind, encode
from mainstem.rpc.wire.hello import Hello
from mainstem.rpc.wire.method import Method, Nothing, Reply


class Number(msgspec.Struct, frozen=True):
    value: int


class TooLarge(Refused):
    kind = "too large"


DOUBLE = Method(1, "test.double", Number, Number, (TooLarge,))
COUNT = Method(2, "test.count", Number, Number, streams=True)
HANG = Method(3, "test.hang", Nothing, Nothing)
BREAK = Method(4, "test.break", Nothing, Nothing)
PROMPT = Method(5, "test.prompt", Number, Number, (TooLarge,))
UNKNOWN = Method(99, "test.unknown", Nothing, Nothing)


class Service:
    """Handlers, and what the tests want to know of them."""

    def __init__(self) -> None:
        self.counted = 0
        self.hanging = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.stream_closed = asyncio.Event()
        self.handlers = Handlers()
        self.handlers.unary(DOUBLE, self.double)
        self.handlers.stream(COUNT, self.count)
        self.handlers.unary(HANG, self.hang)
        self.handlers.unary(BREAK, self.fail)
        self.handlers.prompt(PROMPT, self.prompt)
        self.prompted: list[int] = []

    async def double(self, call: RpcCall[Number]) -> Reply[Number]:
        if call.request.value > 1000:
            raise TooLarge(f"{call.request.value} is more than 1000")
        return Reply(Number(2 * call.request.value), [call.attachment, b"!"])

    def prompt(self, call: RpcCall[Number]) -> Reply[Number]:
        self.prompted.append(call.request.value)
        if call.request.value > 1000:
            raise TooLarge("more than 1000")
        return Reply(Number(100 // call.request.value), [call.attachment])

    async def count(self, call: RpcCall[Number]) -> AsyncIterator[Reply[Number]]:
        try:
            for number in range(call.request.value):
                self.counted += 1
                yield Reply(Number(number), bytes(1000))
        finally:
            self.stream_closed.set()

    async def hang(self, call: RpcCall[Nothing]) -> Reply[Nothing]:
        self.hanging.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        return Reply(Nothing())

    async def fail(self, call: RpcCall[Nothing]) -> Reply[Nothing]:
        raise RuntimeError("a bug")


def with_server(test: Callable[[Service, str, int], Awaitable[None]]) -> None:
    """Run the test against a server of its own; everything must have ended when it is closed."""

    async def run() -> None:
        service = Service()
        server = RpcServer(service.handlers, name="server")
        host, port = await server.start("127.0.0.1", 0)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await test(service, host, port)
        finally:
            await server.close()
            assert len(asyncio.all_tasks()) == 1, "tasks outlive the server"

    asyncio.run(run())


def test_call_answers_with_message_and_attachment() -> None:
    async def test(service: Service, host: str, port: int) -> None:
        async with Client(host, port) as client:
            reply = await client.call(DOUBLE, Number(21), [b"as", b" is"], timeout_seconds=20)
            assert (reply.message.value, reply.attachment) == (42, b"as is!")

    with_server(test)


def test_many_calls_share_a_connection() -> None:
    async def test(service: Service, host: str, port: int) -> None:
        async with Client(host, port) as client:
            replies = await asyncio.gather(*(client.call(DOUBLE, Number(n), timeout_seconds=20) for n in range(500)))
            assert [reply.message.value for reply in replies] == [2 * n for n in range(500)]

    with_server(test)


def test_large_attachment_there_and_back() -> None:
    async def test(service: Service, host: str, port: int) -> None:
        payload = bytes(range(256)) * 4096 * 8
        async with Client(host, port) as client:
            reply = await client.call(DOUBLE, Number(1), [payload], timeout_seconds=20)
            assert reply.attachment == payload + b"!"

    with_server(test)


def test_declared_refusal_keeps_its_class_and_the_connection() -> None:
    async def test(service: Service, host: str, port: int) -> None:
        async with Client(host, port) as client:
            with pytest.raises(TooLarge, match="1001 is more than 1000"):
                await client.call(DOUBLE, Number(1001), timeout_seconds=20)
            assert (await client.call(DOUBLE, Number(1), timeout_seconds=20)).message.value == 2

    with_server(test)


def test_bug_and_unknown_method_fail_the_call_alone() -> None:
    async def test(service: Service, host: str, port: int) -> None:
        async with Client(host, port) as client:
            with pytest.raises(CallFailed, match="RuntimeError: a bug"):
                await client.call(BREAK, Nothing(), timeout_seconds=20)
            with pytest.raises(CallFailed, match="method 99 is not served here"):
                await client.call(UNKNOWN, Nothing(), timeout_seconds=20)
            assert (await client.call(DOUBLE, Number(1), timeout_seconds=20)).message.value == 2

    with_server(test)


def test_deadline_cancels_the_handler() -> None:
    async def test(service: Service, host: str, port: int) -> None:
        async with Client(host, port) as client:
            with pytest.raises(DeadlineExceeded):
                await client.call(HANG, Nothing(), timeout_seconds=0.05)
            await service.cancelled.wait()

    with_server(test)


def test_cancelling_the_caller_cancels_the_handler() -> None:
    async def test(service: Service, host: str, port: int) -> None:
        async with Client(host, port) as client:
            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(client.call(HANG, Nothing(), timeout_seconds=25))
                await service.hanging.wait()
                task.cancel()
            await service.cancelled.wait()
            assert (await client.call(DOUBLE, Number(1), timeout_seconds=20)).message.value == 2

    with_server(test)


def test_slow_consumer_holds_back_its_stream_and_nothing_else() -> None:
    async def test(service: Service, host: str, port: int) -> None:
        async with Client(host, port) as client:
            async with aclosing(client.stream(COUNT, Number(1000), timeout_seconds=25)) as numbers:
                assert (await anext(numbers)).message.value == 0
                for n in range(50):
                    assert (await client.call(DOUBLE, Number(n), timeout_seconds=20)).message.value == 2 * n
                # One was taken, a window is on its way, one waits for credit.
                assert service.counted <= STREAM_WINDOW_ITEMS + 2
                assert (await anext(numbers)).message.value == 1
            await service.stream_closed.wait()
            assert service.counted < 1000

    with_server(test)


def test_the_kernel_takes_little_for_a_peer_that_does_not_read_its_answers(run: Run) -> None:
    """Its memory is counted nowhere, and all connections of the machine share it."""
    connections: list[socket.socket] = []
    transports: list[asyncio.Transport] = []

    async def connect(factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> tuple[Any, Any]:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)  # before it connects: it stays so
        connection.connect((host, port))
        connections.append(connection)
        made = await asyncio.get_running_loop().create_connection(factory, sock=connection)
        transports.append(made[0])
        return made

    async def scenario() -> None:
        service = Service()
        server = RpcServer(service.handlers)
        host, port = await server.start("127.0.0.1", 0)
        try:
            async with Client(host, port, connect=connect) as client:
                await client.call(DOUBLE, Number(1), timeout_seconds=PATIENCE_SECONDS)
                transports[0].pause_reading()
                payload = bytes(1_000_000)
                calls = [
                    asyncio.ensure_future(client.call(DOUBLE, Number(1), [payload], timeout_seconds=PATIENCE_SECONDS))
                    for _ in range(8)
                ]
                held: list[int] = []
                while len(held) < 20 or len(set(held[-20:])) > 1:
                    held.append(queues_at_far_end(connections[0]).unsent)
                    await asyncio.sleep(0.005)
                assert 0 < held[-1] < 600_000
                transports[0].resume_reading()
                for reply in await asyncio.gather(*calls):
                    assert len(reply.attachment) == len(payload) + 1
        finally:
            await server.close()

    run(scenario)


def test_stream_arrives_whole_and_in_order() -> None:
    async def test(service: Service, host: str, port: int) -> None:
        async with Client(host, port) as client:
            found = [reply.message.value async for reply in client.stream(COUNT, Number(300), timeout_seconds=25)]
            assert found == list(range(300))

    with_server(test)


def test_lost_connection_fails_open_calls_and_the_next_call_reconnects() -> None:
    async def test(service: Service, host: str, port: int) -> None:
        async with Client(host, port) as client:
            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(_outcome(client.call(HANG, Nothing(), timeout_seconds=25)))
                await service.hanging.wait()
                client.close()
            assert isinstance(task.result(), ConnectionLost)
            assert (await client.call(DOUBLE, Number(1), timeout_seconds=20)).message.value == 2

    with_server(test)


async def _outcome(call: Awaitable[object]) -> object:
    try:
        return await call
    except RpcError as error:
        return error


def test_prompt_calls_are_answered_in_the_order_they_came() -> None:
    async def test(service: Service, host: str, port: int) -> None:
        async with Client(host, port) as client:
            calls = [client.call(PROMPT, Number(n), [bytes([n])], timeout_seconds=20) for n in range(1, 60)]
            replies = await asyncio.gather(*calls)
            assert [(r.message.value, r.attachment) for r in replies] == [(100 // n, bytes([n])) for n in range(1, 60)]
            assert service.prompted == list(range(1, 60))

    with_server(test)


def test_a_prompt_handler_refuses_and_fails_as_any_other() -> None:
    async def test(service: Service, host: str, port: int) -> None:
        async with Client(host, port) as client:
            with pytest.raises(TooLarge):
                await client.call(PROMPT, Number(2000), timeout_seconds=20)
            with pytest.raises(CallFailed, match="ZeroDivisionError"):
                await client.call(PROMPT, Number(0), timeout_seconds=20)
            assert (await client.call(PROMPT, Number(50), timeout_seconds=20)).message.value == 2

    with_server(test)


def test_more_calls_than_a_connection_may_hold_are_refused_at_once() -> None:
    async def test(service: Service, host: str, port: int) -> None:
        reader, writer = await _greeted(host, port)
        body = msgspec.msgpack.encode(Nothing())
        for request_id in range(1, CALLS_MAX + 2):
            writer.write(b"".join(encode(FrameKind.REQUEST, request_id, code=HANG.number, body=body)))
        assert b"128 calls" in await reader.read(4096)
        writer.close()
        await service.cancelled.wait()

    with_server(test)


def test_idle_clients_make_room_for_other_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many connections as there may be keep no node out: those that are idle go, the longest silent first."""
    monkeypatch.setattr(server_module, "CONNECTIONS_MAX", 4)

    async def test(service: Service, host: str, port: int) -> None:
        silent, _ = await asyncio.open_connection(host, port)  # introduces itself never
        busy, busy_writer = await _greeted(host, port)
        body = msgspec.msgpack.encode(Nothing())
        busy_writer.write(b"".join(encode(FrameKind.REQUEST, 1, code=HANG.number, body=body)))
        await service.hanging.wait()
        idle = [await _greeted(host, port) for _ in range(2)]
        newcomers: list[Client] = []
        for gone in (silent, idle[0][0]):  # each makes way for a newcomer
            newcomer = Client(host, port)
            assert (await newcomer.call(DOUBLE, Number(4), timeout_seconds=20)).message.value == 8
            newcomers.append(newcomer)
            with contextlib.suppress(ConnectionResetError):
                await gone.read()
            assert gone.at_eof() or gone.exception() is not None
        assert not busy.at_eof()
        for newcomer in newcomers:
            newcomer.close()
        busy_writer.close()
        await service.cancelled.wait()

    with_server(test)


def test_connections_that_are_all_busy_stay(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(server_module, "CONNECTIONS_MAX", 1)

    async def test(service: Service, host: str, port: int) -> None:
        _, writer = await _greeted(host, port)
        body = msgspec.msgpack.encode(Nothing())
        writer.write(b"".join(encode(FrameKind.REQUEST, 1, code=HANG.number, body=body)))
        await service.hanging.wait()
        reader, _ = await asyncio.open_connection(host, port)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        assert not service.cancelled.is_set()
        writer.close()
        await service.cancelled.wait()

    with_server(test)
    assert "refused: 1 are open" in caplog.text


async def _greeted(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A raw connection that has exchanged hellos."""
    reader, writer = await asyncio.open_connection(host, port)
    hello = msgspec.msgpack.encode(Hello(frame_bytes_max=1 << 20))
    writer.write(b"".join(encode(FrameKind.HELLO, 0, body=hello)))
    (length,) = struct.unpack("<I", await reader.readexactly(4))
    await reader.readexactly(length)
    return reader, writer


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 64,
        bytes(64),
        struct.pack("<I", 2**31),
    ],
)
def test_server_closes_on_hostile_bytes_and_serves_others(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def test(service: Service, host: str, port: int) -> None:
        for greeted in (True, False):
            opened = await (_greeted(host, port) if greeted else asyncio.open_connection(host, port))
            reader, writer = opened
            writer.write(data)
            while await reader.read(4096):
                pass
            writer.close()
        async with Client(host, port) as client:
            assert (await client.call(DOUBLE, Number(1), timeout_seconds=20)).message.value == 2

    with_server(test)
    strangers = "Kafka clients and HTTP have ports of their own" in caplog.text
    assert strangers, "who has not even said what it is has most likely come to the wrong port"


def test_request_id_in_use_closes_the_connection() -> None:
    async def test(service: Service, host: str, port: int) -> None:
        reader, writer = await _greeted(host, port)
        body = msgspec.msgpack.encode(Nothing())
        for _ in range(2):
            writer.write(b"".join(encode(FrameKind.REQUEST, 7, code=HANG.number, body=body)))
        assert await reader.read() == b""
        writer.close()
        await service.cancelled.wait()

    with_server(test)


NESTED = b"\x81\xa1a" + b"\x91" * 2000 + b"\xc0"
"""A field that nobody knows, with arrays deeper within each other than the interpreter counts."""


@pytest.mark.parametrize("body", [b"\xc1", b"\x81\xa5value\xa1\xff", b"\x81\xa1\xff\x01", NESTED])
def test_malformed_request_is_answered_as_such(body: bytes) -> None:
    """Nonsense, text that is no UTF-8 as a value and as a key, and what is nested too deep."""

    async def test(service: Service, host: str, port: int) -> None:
        reader, writer = await _greeted(host, port)
        writer.write(b"".join(encode(FrameKind.REQUEST, 1, code=DOUBLE.number, body=body)))
        assert b"malformed" in await reader.read(4096)
        writer.close()

    with_server(test)


def test_client_refuses_a_server_of_another_kind() -> None:
    async def run() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"SSH-2.0-OpenSSH_9.2\r\n" * 4)
            await reader.read()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        async with asyncio.timeout(PATIENCE_SECONDS), Client(host, port) as client:
            with pytest.raises(RpcError):
                await client.call(DOUBLE, Number(1), timeout_seconds=20)
        server.close()

    asyncio.run(run())


def test_nobody_listening_is_a_lost_connection() -> None:
    async def run() -> None:
        async with Client("127.0.0.1", 1) as client:
            with pytest.raises(ConnectionLost, match=r"cannot reach 127\.0\.0\.1:1"):
                await client.call(DOUBLE, Number(1), timeout_seconds=20)

    asyncio.run(run())


class TestBlockingClient:
    def test_calls_streams_and_refusals(self) -> None:
        async def test(service: Service, host: str, port: int) -> None:
            def use() -> None:
                with BlockingClient(host, port) as client:
                    reply = client.call(DOUBLE, Number(4), [b"x"], timeout_seconds=20)
                    assert (reply.message.value, reply.attachment) == (8, b"x!")
                    with pytest.raises(TooLarge):
                        client.call(DOUBLE, Number(2000), timeout_seconds=20)
                    numbers = [reply.message.value for reply in client.stream(COUNT, Number(100), timeout_seconds=20)]
                    assert numbers == list(range(100))
                    assert client.call(DOUBLE, Number(5), timeout_seconds=20).message.value == 10

            await asyncio.to_thread(use)

        with_server(test)

    def test_deadline_and_early_end_of_a_stream_leave_a_usable_client(self) -> None:
        async def test(service: Service, host: str, port: int) -> None:
            def use() -> None:
                with BlockingClient(host, port) as client:
                    with pytest.raises(DeadlineExceeded):
                        client.call(HANG, Nothing(), timeout_seconds=0.05)
                    for reply in client.stream(COUNT, Number(1000), timeout_seconds=20):
                        if reply.message.value == 3:
                            break
                    assert client.call(DOUBLE, Number(5), timeout_seconds=20).message.value == 10

            await asyncio.to_thread(use)

        with_server(test)

    def test_nobody_listening_is_a_lost_connection(self) -> None:
        with pytest.raises(ConnectionLost, match="cannot reach"):
            BlockingClient("127.0.0.1", 1).call(DOUBLE, Number(1), timeout_seconds=20)


@pytest.mark.parametrize("address", ["host", "host:", "host:0", "host:99999", ":x"])
def test_addresses_are_checked(address: str) -> None:
    with pytest.raises(RpcError, match="expected HOST:PORT"):
        parse_address(address)


def test_addresses_of_both_families() -> None:
    assert parse_address("10.0.0.1:9093") == ("10.0.0.1", 9093)
    assert parse_address("[::1]:9093") == ("::1", 9093)
