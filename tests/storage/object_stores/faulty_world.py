"""A store behind a wire that fails, guarded as a node's is."""

from __future__ import annotations

import asyncio
import urllib.request
from functools import partial
from typing import Any

import msgspec
from tests.harness.patience import PATIENCE_SECONDS
from tests.storage.object_stores.faulty_wire import FaultyWire
from tests.storage.object_stores.servers import Server

from mainstem.ports import ObjectRange, ObjectStore
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.object_stores.urls import GuardedStore, parsed_url, plain_store

PART_BYTES = 5 << 20
CONTENT = bytes(range(256)) * 1000
WHOLE = [ObjectRange(0, len(CONTENT))]
SILENCE_SECONDS = 0.5
"""How long a request waits where a test has the server say nothing: one that is answered may take longer on a slow
machine, and is tried again."""
WAITS_SHORTER = 20.0
"""Between two attempts a store here waits this part of what it would: how long that is, is told by a simulated clock
(`test_guarded_store.py`)."""


class World:
    """A wire to the server, and a store at its other end."""

    def __init__(self, server: Server, wire: FaultyWire, name: str, scheme: str = "s3") -> None:
        self.server = server
        self.wire = wire
        self._url = f"{scheme}://{server.bucket}/{name}"
        self.config = ObjectStoreConfig(
            endpoint=wire.endpoint, options=server.options, part_bytes=PART_BYTES, probe_seconds=0.1
        )

    def store(self, **settings: Any) -> GuardedStore:
        """As `open_object_store` has it, but for its waits."""
        config = msgspec.structs.replace(self.config, **settings)
        return GuardedStore(
            self.plain(**settings), config, sleep=lambda seconds: asyncio.sleep(seconds / WAITS_SHORTER)
        )

    def plain(self, **settings: Any) -> ObjectStore:
        return plain_store(parsed_url(self._url), msgspec.structs.replace(self.config, **settings))

    async def uploads(self) -> int:
        """Uploads in parts that the server keeps and that are not finished."""
        url = f"{self.server.endpoint}/{self.server.bucket}?uploads"
        ask = partial(urllib.request.urlopen, url, timeout=PATIENCE_SECONDS)
        with await asyncio.to_thread(ask) as answer:
            return int(answer.read().count(b"<Upload>"))
