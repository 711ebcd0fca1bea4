"""Changes over HTTP: who may make them, and what becomes of requests that no honest client sends."""

from __future__ import annotations

import asyncio
import logging
import stat
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import httpx
import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message
from tests.console.views import FakeViews
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.console.application import Console
from mainstem.console.config import ConsoleConfig
from mainstem.console.console_server import ConsoleServer
from mainstem.console.errors import TokenUnusable
from mainstem.console.page_guard import BODY_BYTES_MAX, PageGuard
from mainstem.console.token_file import TOKEN_NAME, read_token, token_of
from mainstem.console.visitors import Visitors

TOKEN = "0123456789abcdef"
SOUND = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json", "host": "127.0.0.1:9080"}
CHANGE = b'{"level": 2}'


async def _whole(content: bytes) -> AsyncIterator[bytes]:
    yield content


def post(
    headers: Mapping[str, str | None],
    content: bytes = CHANGE,
    *,
    visitors: Visitors | None = None,
    stream: bool = False,
) -> tuple[httpx.Response, FakeViews]:
    views = FakeViews()
    visitors = visitors or Visitors(TOKEN)
    application = Console(views.all(), [], ConsoleConfig(), PageGuard(("node-1",)), visitors).application()

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(application)
        sent = {name: value for name, value in (SOUND | dict(headers)).items() if value is not None}
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:9080") as client:
            body = _whole(content) if stream else content
            return await client.post("/v1/cluster/feature-level", content=body, headers=sent)

    return asyncio.run(ask()), views


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "localhost:9080"}, 200),
        ({"host": "[::1]:9080"}, 200),
        ({"host": "NODE-1"}, 200),
        ({"content-type": "application/json; charset=utf-8"}, 200),
        ({"origin": "http://127.0.0.1:9080"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:8000"}, 403),
        ({"host": "rebound.example:9080"}, 403),
        ({"host": "[::1"}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-type": None}, 415),
        ({"authorization": None}, 401),
        ({"authorization": "Bearer "}, 401),
        ({"authorization": f"Bearer {TOKEN}0"}, 401),
        ({"authorization": f"Basic {TOKEN}"}, 401),
    ],
)
def test_only_who_has_the_token_changes_anything(headers: Mapping[str, str | None], status: int) -> None:
    answer, views = post(headers)
    assert answer.status_code == status
    assert (views.feature_level == 2) == (status == 200)
    assert status == 200 or answer.json()["error"]


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:9080", 200), ("localhost", 200), ("[::1]:9080", 200), ("NODE-1:80", 200), ("rebound.example", 403)],
)
def test_a_page_whose_name_was_pointed_here_reads_nothing_where_nobody_is_asked(host: str, status: int) -> None:
    guard = PageGuard(("node-1",))
    console = Console(FakeViews().all(), [], ConsoleConfig(), guard, Visitors(TOKEN)).application()

    async def ask() -> dict[str, httpx.Response]:
        transport = httpx.ASGITransport(console)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:9080") as client:
            paths = ("/v1/cluster", "/v1/topics", "/metrics", "/healthz")
            return {path: await client.get(path, headers={"host": host}) for path in paths}

    answers = asyncio.run(ask())
    assert answers.pop("/healthz").status_code == 200, "a probe has any name, and learns nothing"
    for answer in answers.values():
        assert answer.status_code == status
        assert status == 200 or "console.hosts" in answer.json()["error"]


def test_a_body_that_is_nested_too_deep_is_refused() -> None:
    answer, views = post({}, b'{"a": ' * 2000)
    assert answer.status_code == 400
    assert "it takes" in answer.json()["error"]
    assert views.feature_level == 1


def test_without_a_token_nothing_is_changed() -> None:
    answer, _ = post({"authorization": "Bearer "}, visitors=Visitors())
    assert answer.status_code == 401


@pytest.mark.parametrize("stream", [False, True], ids=["announced", "in chunks"])
def test_a_large_body_is_refused(stream: bool) -> None:
    largest = CHANGE.ljust(BODY_BYTES_MAX)
    assert post({}, largest, stream=stream)[0].status_code == 200
    answer, views = post({}, largest + b" ", stream=stream)
    assert answer.status_code == 413
    assert views.feature_level != 2


@pytest.mark.parametrize("announced", [str(BODY_BYTES_MAX + 1), "1" + "0" * 40, "-1", "a lot"])
def test_what_is_announced_to_be_large_is_refused_before_it_is_read(announced: str) -> None:
    async def never() -> Message:
        raise AssertionError("the body was asked for")

    async def story() -> HTTPException:
        sent = SOUND | {"content-length": announced}
        headers = [(name.encode(), value.encode()) for name, value in sent.items()]
        request = Request({"type": "http", "method": "POST", "path": "/", "headers": headers}, never)
        with pytest.raises(HTTPException) as refused:
            await PageGuard().body_of(request)
        return refused.value

    assert asyncio.run(story()).status_code == 413


def test_who_hangs_up_in_the_middle_leaves_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        console = Console(FakeViews().all(), [], ConsoleConfig(), visitors=Visitors(TOKEN))
        server = ConsoleServer(console.application, ConsoleConfig())
        host, port = server.bind("127.0.0.1", 0)
        serving = asyncio.ensure_future(server.serve())
        for _ in range(3):
            _, writer = await asyncio.open_connection(host, port)
            head = "POST /v1/cluster/feature-level HTTP/1.1\r\ncontent-length: 1000\r\n"
            head += "".join(f"{name}: {value}\r\n" for name, value in SOUND.items())
            writer.write(head.encode() + b"\r\n{")
            await writer.drain()
            async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=PATIENCE_SECONDS) as client:
                assert (await client.get("/healthz")).status_code == 200
            writer.transport.abort()
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=PATIENCE_SECONDS) as client:
            assert (await client.get("/healthz")).status_code == 200
        server.stop()
        await serving

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_token_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    assert read_token(tmp_path) is None
    token = token_of(tmp_path)
    assert stat.S_IMODE((tmp_path / TOKEN_NAME).stat().st_mode) == 0o600
    assert token_of(tmp_path) == token == read_token(tmp_path)


@pytest.mark.parametrize("spoil", ["shown", "cut", "emptied"])
def test_a_token_that_others_saw_or_that_is_damaged_is_replaced(tmp_path: Path, spoil: str) -> None:
    token = token_of(tmp_path)
    path = tmp_path / TOKEN_NAME
    if spoil == "shown":
        path.chmod(0o644)
    else:
        path.write_text(token[:10] if spoil == "cut" else "")
    assert read_token(tmp_path) is None
    assert token_of(tmp_path) not in ("", token, token[:10])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_token_that_cannot_be_made_stops_the_start_with_its_name(tmp_path: Path) -> None:
    (tmp_path / TOKEN_NAME).mkdir()
    with pytest.raises(TokenUnusable, match=TOKEN_NAME):
        token_of(tmp_path)
