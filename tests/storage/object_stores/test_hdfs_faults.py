"""A real HDFS whose name node is out of reach, or says nothing, for a while: what callers are told, and what lies there
afterwards. A guarded store does the same with all (`test_s3_faults.py`); here it is seen that the errors of
hdfs-native are taken for what they are, and that its client goes on when the name node is back."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.harness.patience import PATIENCE_SECONDS
from tests.storage.object_stores.servers import hdfs_server

from mainstem.ports import ObjectRange, ObjectStore
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.object_stores.errors import (
    ObjectAbsent,
    ObjectExists,
    ObjectStoreOutage,
    ObjectStoreTimedOut,
)
from mainstem.storage.object_stores.urls import open_object_store, parsed_url, plain_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

hdfs_native = pytest.importorskip("hdfs_native")

pytestmark = pytest.mark.long

CONTENT = bytes(range(256)) * 1000
WHOLE = [ObjectRange(0, len(CONTENT))]
SILENCE_SECONDS = 1.0


class NameNodeWire:
    """The way to the name node. Data nodes are reached past it."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self._upstream = upstream
        self._writers: set[asyncio.StreamWriter] = set()
        self.is_cut = False
        """Connections end at once."""
        self.is_silent = False
        """Nothing of what is sent arrives."""
        self.port = 0

    def cut(self) -> None:
        self.is_cut = True
        for writer in self._writers:
            writer.close()

    def mend(self) -> None:
        self.is_cut = self.is_silent = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_cut:
            writer.close()
            return
        there_reader, there = await asyncio.open_connection(*self._upstream)
        self._writers |= {writer, there}
        with suppress(ConnectionError):
            await asyncio.gather(self._pass_on(reader, there), self._pass_on(there_reader, writer))
        self._writers -= {writer, there}

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(1 << 16):
                if not self.is_silent:
                    writer.write(piece)
                    await writer.drain()
        finally:
            writer.close()


@asynccontextmanager
async def wire_to(url: str) -> AsyncIterator[NameNodeWire]:
    host, _, port = url.removeprefix("hdfs://").partition(":")
    wire = NameNodeWire((host, int(port)))
    server = await asyncio.start_server(wire.serve, "127.0.0.1", 0)
    wire.port = server.sockets[0].getsockname()[1]
    try:
        yield wire
    finally:
        wire.cut()
        server.close()


@pytest.fixture(scope="module")
def name_node() -> Iterator[str]:
    with hdfs_server() as url:
        yield url


@pytest.mark.parametrize("how", ["cut", "silent"])
def test_a_name_node_that_is_away_is_an_outage_and_work_goes_on_when_it_is_back(name_node: str, how: str) -> None:
    async def story() -> None:
        async with wire_to(name_node) as wire, asyncio.timeout(PATIENCE_SECONDS):
            url = f"hdfs://127.0.0.1:{wire.port}/{how}"
            config = ObjectStoreConfig(
                request_timeout_seconds=SILENCE_SECONDS, retry_seconds=SILENCE_SECONDS, probe_seconds=0.1,
                probe_seconds_max=0.2,
            )  # fmt: skip
            store = open_object_store(url, config)
            await store.write("a/b", CONTENT)
            if how == "cut":
                wire.cut()
            else:
                wire.is_silent = True
            for ask in (store.read("a/b", WHOLE), store.write("c", CONTENT), store.info("a/b")):
                with pytest.raises(ObjectStoreOutage):
                    await ask
            wire.mend()
            patient: ObjectStore = plain_store(parsed_url(url), msgspec.structs.replace(config, retry_seconds=60.0))
            with pytest.raises(ObjectAbsent):
                await patient.info("c")
            while True:
                try:
                    assert bytes((await store.read("a/b", WHOLE))[0]) == CONTENT
                    break
                except ObjectStoreOutage:
                    await asyncio.sleep(0.1)
            await store.write("c", CONTENT)
            with pytest.raises(ObjectExists):
                await store.write("c", CONTENT)
            assert [one.name for one in await store.page_for_upkeep("")] == ["a/b", "c"]

    asyncio.run(story())


def test_no_writer_waits_for_a_silent_name_node_when_it_is_collected(name_node: str) -> None:
    """A file of Python's closes itself when it is collected. It would do so in the event loop's thread, which serves
    clients, and for as long as the name node says nothing."""

    async def story() -> None:
        async with wire_to(name_node) as wire, asyncio.timeout(PATIENCE_SECONDS):
            config = ObjectStoreConfig(request_timeout_seconds=SILENCE_SECONDS)
            store = plain_store(parsed_url(f"hdfs://127.0.0.1:{wire.port}/collected"), config)

            async def parts() -> AsyncIterator[bytes]:
                yield CONTENT
                assert not [one for one in gc.get_objects() if isinstance(one, hdfs_native.FileWriter)]
                wire.is_silent = True

            with pytest.raises(ObjectStoreTimedOut):
                await store.write_parts("a/b", parts)
            gc.collect()
            wire.mend()

    asyncio.run(story())
