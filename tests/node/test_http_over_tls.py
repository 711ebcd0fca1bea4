"""The HTTP port over TLS on real sockets: what it answers, and what it holds for those who never finish."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import copyfile
from typing import Any, NamedTuple

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tests.fakes.clock import FakeClock
from tests.harness.patience import PATIENCE_SECONDS
from tests.server.tls.certificates import Authority

from mainstem.console.config import ConsoleConfig
from mainstem.console.console_server import ConsoleServer
from mainstem.errors import ConfigError
from mainstem.node.access import http_tls
from mainstem.node.access.http_tls import HANDSHAKES_PER_HOST_MAX, HttpTls
from mainstem.pipeline.errors import SplitServiceUnreachable
from mainstem.pipeline.link.node_link import ENDPOINT_PATH, find_endpoint

LARGE = os.urandom(3_000_000)
"""More than sockets and transports hold."""


class Secure(NamedTuple):
    host: str
    port: int
    tls: HttpTls
    clock: FakeClock
    client: httpx.AsyncClient


def application() -> Starlette:
    async def echo(request: Request) -> Response:
        return Response(await request.body())

    async def large(request: Request) -> Response:
        return Response(LARGE)

    async def endpoint(request: Request) -> Response:
        return Response('{"host": "0.0.0.0", "port": 9093, "store_dir": "/store"}')

    return Starlette(
        routes=[Route("/echo", echo, methods=["POST"]), Route("/large", large), Route(ENDPOINT_PATH, endpoint)]
    )


@asynccontextmanager
async def secure(authority: Authority) -> AsyncIterator[Secure]:
    certificate, key = authority.issue()
    config = ConsoleConfig(certificate=certificate, key=key, shutdown_seconds=1)
    clock = FakeClock()
    tls = HttpTls(config, "127.0.0.1:0", clock)
    server = ConsoleServer(application, config, tls=tls.over)
    host, port = server.bind("127.0.0.1", 0)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.serve())
        base = f"https://{host}:{port}"
        async with httpx.AsyncClient(base_url=base, timeout=PATIENCE_SECONDS, verify=authority.client()) as client:
            yield Secure(host, port, tls, clock, client)
        tls.close()
        server.stop()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def play(authority: Authority, story: Callable[[Secure], Coroutine[Any, Any, None]]) -> None:
    async def played() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS), secure(authority) as node:
            await story(node)

    asyncio.run(played())


def samples(tls: HttpTls) -> dict[str, float]:
    return {sample.name: sample.value for sample in tls.samples()}


def test_requests_and_responses_of_any_size_come_whole(authority: Authority) -> None:
    async def story(node: Secure) -> None:
        for size in (0, 1, 4096, 200_000):
            assert (await node.client.post("/echo", content=LARGE[:size])).content == LARGE[:size]
        assert (await node.client.get("/large")).content == LARGE
        assert samples(node.tls)["mainstem_http_handshakes_total"] == 1

    play(authority, story)


def test_what_is_no_tls_is_cut_off_and_the_rest_is_served(authority: Authority) -> None:
    async def story(node: Secure) -> None:
        reader, writer = await asyncio.open_connection(node.host, node.port)
        writer.write(b"GET /large HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b"HTTP" not in await reader.read()
        writer.close()
        assert samples(node.tls)["mainstem_http_tls_failures_total"] == 1
        assert (await node.client.post("/echo", content=b"x")).content == b"x"

    play(authority, story)


def test_half_handshakes_are_bounded_for_each_address(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_tls, "HANDSHAKES_PER_HOST_MAX", 3)
    assert HANDSHAKES_PER_HOST_MAX > 3

    async def story(node: Secure) -> None:
        half = [await asyncio.open_connection(node.host, node.port) for _ in range(3)]
        for _, writer in half:
            writer.write(b"\x16\x03\x01\x02\x00")
            await writer.drain()
        reader, writer = await asyncio.open_connection(node.host, node.port)
        assert await reader.read() == b"", "one more of the address is closed"
        writer.close()
        half.pop()[1].close()
        while samples(node.tls)["mainstem_http_handshakes_total"] == 0:
            try:
                assert (await node.client.post("/echo", content=b"x")).content == b"x"
            except httpx.ConnectError:
                continue  # the node has not noticed yet that one has left
        for _, writer in half:
            writer.close()

    play(authority, story)


def test_a_new_certificate_is_shown_to_new_connections(authority: Authority) -> None:
    async def story(node: Secure) -> None:
        before = samples(node.tls)["mainstem_http_certificate_expires_seconds"]
        until = datetime.now(UTC) + timedelta(days=3)
        newer = authority.issue("newer", until=until)
        for file, place in zip(newer, authority_files(authority), strict=True):
            copyfile(file, place)
        node.clock.advance(http_tls.LOOKS_SECONDS)
        assert (await node.client.post("/echo", content=b"x")).content == b"x"
        assert samples(node.tls)["mainstem_http_certificate_expires_seconds"] < before

    play(authority, story)


def authority_files(authority: Authority) -> tuple[str, str]:
    directory = Path(authority.ca).parent
    return str(directory / "node.pem"), str(directory / "node.key")


def test_a_certificate_that_cannot_be_used_is_named(authority: Authority) -> None:
    config = ConsoleConfig(certificate=authority.ca, key=authority.issue()[1])
    with pytest.raises(ConfigError, match=r"console\.certificate = "):
        HttpTls(config, "127.0.0.1:0", FakeClock())


def test_a_splitter_finds_its_node_over_tls(authority: Authority) -> None:
    """It trusts no authority there: the port between nodes shows its own certificate."""

    async def story(node: Secure) -> None:
        found = await asyncio.to_thread(find_endpoint, f"https://{node.host}:{node.port}")
        assert (found.host, found.port) == (node.host, 9093)
        with pytest.raises(SplitServiceUnreachable):
            await asyncio.to_thread(find_endpoint, f"http://{node.host}:{node.port}")
        with pytest.raises(httpx.ConnectError, match="certificate"):
            async with httpx.AsyncClient(verify=ssl.create_default_context()) as stranger:
                await stranger.get(f"https://{node.host}:{node.port}{ENDPOINT_PATH}")

    play(authority, story)
