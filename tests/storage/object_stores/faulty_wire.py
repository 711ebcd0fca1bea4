"""A proxy in front of an HTTP server, which does to requests what networks and stores do to them."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple


class Wire(enum.Enum):
    """The fate of a request, other than an answer."""

    SILENT = enum.auto()
    """It never arrives, and nothing comes back: the connection stays open."""
    ANSWER_LOST = enum.auto()
    """It is done, and the connection ends before the answer."""
    ANSWER_CUT = enum.auto()
    """It is done, and the connection ends in the middle of the answer."""
    REQUEST_CUT = enum.auto()
    """The connection ends in the middle of the request, of which the server hears nothing."""


class Answer(NamedTuple):
    """An error as S3 gives it."""

    status: int
    code: str = ""


Fault = Wire | Answer


class Seen(NamedTuple):
    method: str
    target: str
    headers: Mapping[str, str]
    """By their names in small letters."""


class FaultyWire:
    """`fault` is asked for each request; None: it passes."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self._upstream = upstream
        self.fault: Callable[[Seen], Fault | None] = lambda seen: None
        self.seen: list[Seen] = []
        self.endpoint = ""

    def fails(self, *faults: Fault, method: str = "", target: str = "") -> None:
        """The next requests of this method whose target has this in it meet these faults, one each."""
        left = list(faults)

        def fault(seen: Seen) -> Fault | None:
            return left.pop(0) if left and method in seen.method and target in seen.target else None

        self.fault = fault

    def always(self, fault: Fault, *, method: str = "", target: str = "") -> None:
        self.fault = lambda seen: fault if method in seen.method and target in seen.target else None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            try:
                await self._pass_on(reader, writer)
            finally:
                writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request of the connection, which ends with it."""
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        method, target, _version = lines[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:-2])}
        seen = Seen(method, target, headers)
        self.seen.append(seen)
        fault = self.fault(seen)
        size = int(headers.get("content-length", 0))
        if fault is Wire.REQUEST_CUT:
            await reader.readexactly(size // 2)
            return
        body = await reader.readexactly(size)
        if fault is Wire.SILENT:
            await reader.read()  # until the client gives up
            return
        if isinstance(fault, Answer):
            said = f"<Error><Code>{fault.code}</Code><Message>as asked for</Message></Error>".encode()
            said = b"" if method == "HEAD" else said
            writer.write(
                b"HTTP/1.1 %d Fault\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (fault.status, len(said))
                + said
            )
            await writer.drain()
            return
        answer = await self._answer(lines[0], headers, body)
        if fault is Wire.ANSWER_LOST:
            return
        writer.write(answer[: len(answer) - 10] if fault is Wire.ANSWER_CUT else answer)
        await writer.drain()

    async def _answer(self, request: str, headers: Mapping[str, str], body: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(*self._upstream)
        try:
            lines = [f"{name}: {value}" for name, value in headers.items() if name != "connection"]
            writer.write("\r\n".join([request, *lines, "connection: close", "", ""]).encode("latin-1") + body)
            await writer.drain()
            return _last(await reader.read())
        finally:
            writer.close()


def _last(answer: bytes) -> bytes:
    """The answer, which says that the connection ends with it. A server that was asked to close need not say that it
    does, and a client that does not know may ask again on a connection that is about to end."""
    head, end, body = answer.partition(b"\r\n\r\n")
    if b"\r\nconnection: close" in head.lower():
        return answer
    return head + b"\r\nConnection: close" + end + body


@asynccontextmanager
async def faulty_wire(upstream: tuple[str, int]) -> AsyncIterator[FaultyWire]:
    wire = FaultyWire(upstream)
    server = await asyncio.start_server(wire.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    wire.endpoint = f"http://{host}:{port}"
    try:
        yield wire
    finally:
        server.close()
