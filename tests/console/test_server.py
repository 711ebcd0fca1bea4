"""The HTTP port on a real socket: start, stop, and what it leaves alone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import httpx
import pytest
import uvloop
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from tests.console.views import FakeViews
from tests.fakes.clock import FakeClock
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.socket_queues import is_open_at_far_end, queues_at_far_end

from mainstem.bounded_log import LINES_AT_ONCE, BoundedLog
from mainstem.console.application import Console
from mainstem.console.config import ConsoleConfig
from mainstem.console.console_server import ConsoleServer
from mainstem.console.errors import ListenFailed
from mainstem.supervised import Supervision


def console() -> ConsoleServer:
    config = ConsoleConfig(shutdown_seconds=1)
    return ConsoleServer(Console(FakeViews().all(), [], config).application, config)


def test_serves_until_stopped_and_leaves_signals_alone() -> None:
    async def scenario() -> None:
        server = console()
        host, port = server.bind("127.0.0.1", 0)
        before = signal.getsignal(signal.SIGTERM)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.serve())
            async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=PATIENCE_SECONDS) as client:
                assert (await client.get("/readyz")).text == "ready\n"
                assert signal.getsignal(signal.SIGTERM) is before
            server.stop()
        with pytest.raises(OSError):
            await asyncio.open_connection(host, port)

    asyncio.run(scenario())


@contextmanager
def deaf_client(host: str, port: int) -> Iterator[socket.socket]:
    """Asks for what is large, and reads nothing of it."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)  # before it connects: it stays so
        client.connect((host, port))
        client.sendall(b"GET /large HTTP/1.1\r\nHost: here\r\n\r\n")
        yield client


@asynccontextmanager
async def serving_large(config: ConsoleConfig) -> AsyncIterator[tuple[str, int]]:
    large = bytes(8_000_000)

    def application() -> Starlette:
        return Starlette(routes=[Route("/large", lambda _request: Response(large))])

    server = ConsoleServer(application, config)
    address = server.bind("127.0.0.1", 0)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.serve())
        yield address
        server.stop()


def test_the_kernel_takes_little_for_a_client_that_does_not_read() -> None:
    """Its memory is counted nowhere, and all connections of the machine share it."""

    async def scenario() -> None:
        async with serving_large(ConsoleConfig(shutdown_seconds=1)) as address:
            with deaf_client(*address) as deaf:
                held: list[int] = []
                while len(held) < 20 or not held[-1] or len(set(held[-20:])) > 1:
                    held.append(queues_at_far_end(deaf).unsent)
                    await asyncio.sleep(0.005)
                assert held[-1] < 600_000

    asyncio.run(scenario())


def test_the_connection_of_a_client_that_does_not_read_is_closed() -> None:
    """The node holds its response until then, and however many come."""

    async def scenario() -> None:
        async with serving_large(ConsoleConfig(shutdown_seconds=1, keep_alive_seconds=1)) as address:
            with deaf_client(*address) as deaf:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while is_open_at_far_end(deaf):  # noqa: ASYNC110 - the kernel tells nobody
                        await asyncio.sleep(0.05)

    asyncio.run(scenario())


async def _asked(host: str, port: int, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that has sent these bytes."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(request)
    return reader, writer


def test_connections_that_wait_for_their_client_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        from mainstem.console import http_connection

        monkeypatch.setattr(http_connection, "CONNECTIONS_MAX", 2)
        server = console()
        host, port = server.bind("127.0.0.1", 0)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.serve())
            clients = [await _asked(host, port, b"GET /readyz HT") for _ in range(5)]
            async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=PATIENCE_SECONDS) as client:
                assert (await client.get("/readyz")).status_code == 200
            for reader, _ in clients[:4]:
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
            for _, writer in clients:
                writer.close()
            server.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "part",
    [
        b"",
        b"GET /readyz HTTP/1.1\r\nHost: he",
        b"POST /v1/cluster/replace HTTP/1.1\r\nHost: here\r\nContent-Length: 10\r\n\r\n{",
    ],
    ids=["nothing", "headers", "body"],
)
def test_a_request_that_does_not_arrive_whole_ends_its_connection(part: bytes) -> None:
    async def scenario() -> None:
        config = ConsoleConfig(shutdown_seconds=1, keep_alive_seconds=1)
        server = ConsoleServer(Console(FakeViews().all(), [], config).application, config)
        host, port = server.bind("127.0.0.1", 0)
        async with asyncio.TaskGroup() as tasks, asyncio.timeout(PATIENCE_SECONDS):
            tasks.create_task(server.serve())
            reader, writer = await _asked(host, port, part)
            with contextlib.suppress(ConnectionResetError):
                await reader.read()
            writer.close()
            server.stop()

    asyncio.run(scenario())


def test_malformed_requests_are_logged_as_often_as_a_person_can_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from mainstem.console import http_connection

    lines = BoundedLog(logging.getLogger(http_connection.__name__), FakeClock())
    monkeypatch.setattr(http_connection, "_lines", lines)

    async def scenario() -> None:
        server = console()
        host, port = server.bind("127.0.0.1", 0)
        serving = asyncio.ensure_future(server.serve())
        for _ in range(LINES_AT_ONCE + 5):
            reader, writer = await _asked(host, port, b"no request\r\n\r\n")
            assert b"400 Bad Request" in await reader.read()
            writer.close()
        server.stop()
        await serving

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    told = [record.message for record in caplog.records if "Invalid HTTP request" in record.message]
    assert len(told) == LINES_AT_ONCE
    assert all("127.0.0.1" in text for text in told)
    assert lines.left_out == 5


def test_a_slow_response_is_waited_for() -> None:
    """The client has sent everything: the check is for those that have not."""

    async def scenario() -> None:
        async def slow(_request: object) -> Response:
            await asyncio.sleep(2.5)
            return Response(b"at last")

        config = ConsoleConfig(shutdown_seconds=1, keep_alive_seconds=1)
        server = ConsoleServer(lambda: Starlette(routes=[Route("/slow", slow)]), config)
        host, port = server.bind("127.0.0.1", 0)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.serve())
            async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=PATIENCE_SECONDS) as client:
                assert (await client.get("/slow")).text == "at last"
            server.stop()

    asyncio.run(scenario())


def test_who_comes_before_the_node_accepts_clients_waits_for_an_answer() -> None:
    async def scenario() -> None:
        made: list[bool] = []

        def application() -> Starlette:
            made.append(True)
            return Console(FakeViews().all(), [], ConsoleConfig()).application()

        server = ConsoleServer(application, ConsoleConfig(shutdown_seconds=1), waits=True)
        host, port = server.bind("127.0.0.1", 0)
        serving = asyncio.ensure_future(server.serve())
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=PATIENCE_SECONDS) as client:
            asked = asyncio.ensure_future(client.get("/readyz"))
            await asyncio.sleep(0.05)
            assert made == []
            server.begin()
            assert (await asked).text == "ready\n"
        server.stop()
        await serving

    asyncio.run(scenario())


def test_a_start_that_fails_before_it_began_can_stop_it() -> None:
    async def scenario() -> None:
        server = ConsoleServer(Console(FakeViews().all(), [], ConsoleConfig()).application, ConsoleConfig(), waits=True)
        server.bind("127.0.0.1", 0)
        serving = asyncio.ensure_future(server.serve())
        await asyncio.sleep(0)
        server.stop()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await serving

    asyncio.run(scenario())


def test_a_death_costs_the_port_only_until_the_next_beginning() -> None:
    async def scenario() -> None:
        begun: list[bool] = []

        def application() -> Starlette:
            begun.append(True)
            if len(begun) == 1:
                raise SystemError("AST constructor recursion depth mismatch")
            return Console(FakeViews().all(), [], ConsoleConfig()).application()

        ended: list[bool] = []
        supervision = Supervision()
        supervision.ended.add_done_callback(lambda _: ended.append(True))
        server = ConsoleServer(application, ConsoleConfig(shutdown_seconds=1))
        host, port = server.bind("127.0.0.1", 0)
        task = supervision.start(server.serve, "console")
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=PATIENCE_SECONDS) as client:
            assert (await client.get("/readyz")).text == "ready\n"
        await server.finish(task)
        assert (len(begun), ended) == (2, [])
        with pytest.raises(OSError):
            await asyncio.open_connection(host, port)

    asyncio.run(scenario())


def test_a_node_that_stops_does_not_wait_for_the_next_beginning() -> None:
    async def scenario() -> None:
        died = asyncio.Event()

        def application() -> Starlette:
            died.set()
            raise SystemError("always")

        server = ConsoleServer(application, ConsoleConfig())
        host, port = server.bind("127.0.0.1", 0)
        supervision = Supervision()
        task = supervision.start(server.serve, "console")
        await died.wait()
        await asyncio.sleep(0)
        assert supervision.why_not() is not None
        await server.finish(task)
        assert task.cancelled()
        with pytest.raises(OSError):
            await asyncio.open_connection(host, port)

    asyncio.run(scenario())


def test_stop_before_the_first_turn_ends_at_once() -> None:
    async def scenario() -> None:
        server = console()
        server.bind("127.0.0.1", 0)
        server.stop()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await server.serve()

    asyncio.run(scenario())


@pytest.mark.parametrize("new_event_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_cancelling_closes_the_port(new_event_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def scenario() -> None:
        server = console()
        host, port = server.bind("127.0.0.1", 0)
        task = asyncio.ensure_future(server.serve())
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=PATIENCE_SECONDS) as client:
            assert (await client.get("/healthz")).status_code == 200
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(OSError):
            await asyncio.open_connection(host, port)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(scenario())


def test_a_taken_port_is_named() -> None:
    first, second = console(), console()
    host, port = first.bind("127.0.0.1", 0)
    with pytest.raises(ListenFailed, match=rf"{port}: Address already in use"):
        second.bind(host, port)
    assert first.bind("127.0.0.1", 0)[1] != port
