"""The HTTP port on a real socket: start, stop, and what it leaves alone."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import httpx
import pytest
import uvloop
from tests.console.views import FakeViews

from mainstem.console.application import Console
from mainstem.console.config import ConsoleConfig
from mainstem.console.errors import ListenFailed
from mainstem.console.server import ConsoleServer


def console() -> ConsoleServer:
    config = ConsoleConfig(shutdown_seconds=1)
    return ConsoleServer(Console(FakeViews(), [], config).application(), config)


def test_serves_until_stopped_and_leaves_signals_alone() -> None:
    async def scenario() -> None:
        server = console()
        host, port = server.bind("127.0.0.1", 0)
        before = signal.getsignal(signal.SIGTERM)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.serve())
            async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as client:
                assert (await client.get("/readyz")).text == "ready\n"
                assert signal.getsignal(signal.SIGTERM) is before
            server.stop()
        with pytest.raises(OSError):
            await asyncio.open_connection(host, port)

    asyncio.run(scenario())


def test_stop_before_the_first_turn_ends_at_once() -> None:
    async def scenario() -> None:
        server = console()
        server.bind("127.0.0.1", 0)
        server.stop()
        async with asyncio.timeout(10):
            await server.serve()

    asyncio.run(scenario())


@pytest.mark.parametrize("new_event_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_cancelling_closes_the_port(new_event_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def scenario() -> None:
        server = console()
        host, port = server.bind("127.0.0.1", 0)
        task = asyncio.ensure_future(server.serve())
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as client:
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
