"""A node as a splitter sees it, in a thread: HTTP endpoint, rpc server and split service over a
`SplitJournal`."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from tests.fakes.splitting.split_log import SplitJournal
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.messages.tier import INTEND_FILES, STORE_ACCESS, IntendFiles, IntendReply, StoreAccess
from mainstem.rpc.rpc_server import RpcServer
from mainstem.rpc.wire.method import Nothing, Reply
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.reading.pacing import Pacing
from mainstem.storage.split.split_lease import LEASE_SECONDS, SplitLease
from mainstem.storage.split.split_service import SplitService


class SkippingClock:
    """The real clock, which a test can make jump ahead."""

    def __init__(self) -> None:
        self.skipped_seconds = 0.0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + round(self.skipped_seconds * 1000)

    def monotonic(self) -> float:
        return time.monotonic() + self.skipped_seconds


class SplitNode:
    """Use as a context manager. `http` is the address for splitters."""

    def __init__(self, journal: SplitJournal, store_dir: Path) -> None:
        self.journal = journal
        self.store_dir = store_dir
        self.announced: list[tuple[int, tuple[str, ...]]] = []
        """Write group, and names of files that a task was about to write to a shared store."""
        self.store_config = ObjectStoreConfig(retry_seconds=0.2)
        """How a shared store is reached."""
        self.refusal = ""
        """Of the next announcement."""
        self.http = ""
        self.port = 0
        self.lease: SplitLease
        self.service: SplitService
        self._loop = asyncio.new_event_loop()
        self._clock = SkippingClock()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    def __enter__(self) -> SplitNode:
        self._thread.start()
        assert self._ready.wait(PATIENCE_SECONDS)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    def on_loop(self, function: Callable[[], Any]) -> Any:
        """Run a function on the node's loop and return its result."""

        async def call() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(PATIENCE_SECONDS)

    def end_leases(self) -> None:
        """Let enough time pass for any lease to run out."""
        self._clock.skipped_seconds += LEASE_SECONDS + 1

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        self.lease = SplitLease(self._clock, 1, lambda: secrets.token_hex(8))
        unpaced = Pacing(self._clock, slowdown_max=0, bytes_per_second_min=1 << 20)
        self.service = SplitService(self.journal, self._clock, self.lease, unpaced)
        handlers = Handlers()
        self.service.register(handlers)
        handlers.unary(INTEND_FILES, self._intend)
        handlers.unary(STORE_ACCESS, self._access)
        server = RpcServer(handlers, name="fake node")
        _, self.port = await server.start("127.0.0.1", 0)
        web = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.http = f"http://127.0.0.1:{web.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._stop.wait()
        web.close()
        await server.close()
        await self.service.close()

    async def _intend(self, call: RpcCall[IntendFiles]) -> Reply[IntendReply]:
        if not self.refusal:
            self.announced.append((call.request.group, call.request.names))
        return Reply(IntendReply(self.refusal))

    async def _access(self, call: RpcCall[Nothing]) -> Reply[StoreAccess]:
        return Reply(StoreAccess(msgspec.json.encode(self.store_config)))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps({"host": "127.0.0.1", "port": self.port, "store_dir": str(self.store_dir)}).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()
