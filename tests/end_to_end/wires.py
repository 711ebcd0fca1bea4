"""The wires between the nodes of a test's cluster: TCP through this process, which can be cut and mended at will.

Each node is known to the others by an address that is listened on here; what comes in is passed on to where the node
really listens. The caller is read from the first frame of a connection, the caller's hello. A cut wire is silent, as a
broken network is: nothing that is sent arrives, connections are neither refused nor closed. Messages under way when the
wire was cut arrive after it is mended, if the connection still lives then."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, TypeVar

import msgspec
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.rpc.wire.frames import HEADER, LENGTH
from mainstem.rpc.wire.hello import Hello

PIECE_BYTES = 1 << 16

T = TypeVar("T")
Address = tuple[str, int]


class Wires:
    """`outer`: node id → address the others know; `inner`: node id → address it listens on."""

    def __init__(self, outer: Mapping[int, Address], inner: Mapping[int, Address]) -> None:
        self._outer = outer
        self._inner = inner
        self._open: dict[tuple[int, int], asyncio.Event] = {}
        """(from, to) → whether bytes pass."""
        self._loop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._passing: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wires", daemon=True)

    @property
    def started(self) -> bool:
        return self._thread.ident is not None

    def start(self) -> None:
        self._thread.start()
        self._run(self._listen())

    def close(self) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def isolate(self, node_id: int) -> None:
        """Cut a node off from all others."""
        for other in self._inner:
            if other != node_id:
                self.cut(node_id, other)

    def cut(self, one: int, other: int) -> None:
        """Between two nodes, both ways."""
        self.cut_one_way(one, other)
        self.cut_one_way(other, one)

    def cut_one_way(self, sender: int, receiver: int) -> None:
        """Messages from `sender` do not arrive; messages to it do."""
        self._run(self._set([(sender, receiver)], whole=False))

    def mend(self) -> None:
        """All of them."""
        self._run(self._set(list(self._open), whole=True))

    # on the loop

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE_SECONDS)

    async def _listen(self) -> None:
        for node_id, (host, port) in self._outer.items():
            accepted = functools.partial(self._accepted, node_id)
            self._servers.append(await asyncio.start_server(accepted, host, port))

    async def _set(self, ways: Iterable[tuple[int, int]], *, whole: bool) -> None:
        for way in ways:
            event = self._way(way)
            if whole:
                event.set()
            else:
                event.clear()

    def _way(self, way: tuple[int, int]) -> asyncio.Event:
        if way not in self._open:
            self._open[way] = asyncio.Event()
            self._open[way].set()
        return self._open[way]

    async def _accepted(self, to: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._passing.add(task)
        try:
            await self._pass_on(reader, writer, to)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # an end went away, or the test is over
        finally:
            self._passing.discard(task)
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to: int) -> None:
        first = await reader.readexactly(LENGTH.size)
        first += await reader.readexactly(*LENGTH.unpack(first))
        hello = msgspec.msgpack.decode(first[HEADER.size :], type=Hello)
        caller = hello.node.node_id if hello.node is not None else 0
        there, back = self._way((caller, to)), self._way((to, caller))
        await there.wait()
        inner_reader, inner_writer = await asyncio.open_connection(*self._inner[to])
        inner_writer.write(first)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_pump(reader, inner_writer, there))
                tasks.create_task(_pump(inner_reader, writer, back))
        except* OSError:
            pass
        finally:
            inner_writer.transport.abort()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        tasks = tuple(self._passing)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: asyncio.Event) -> None:
    """Bytes one way, until an end closes: which the other end hears of as soon as the wire is whole."""
    while piece := await reader.read(PIECE_BYTES):
        await way.wait()
        writer.write(piece)
        await writer.drain()
    await way.wait()
    with contextlib.suppress(OSError):
        writer.write_eof()
    raise ConnectionResetError("closed by an end")
