"""An object store for callers that block, as tasks of the pipeline do: its event loop runs in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import msgspec

from mainstem.model import Buffer
from mainstem.ports import ObjectInfo, ObjectRange, ObjectStore
from mainstem.storage.object_stores.store_folder import StoreFolder
from mainstem.storage.object_stores.urls import open_object_store
from mainstem.storage.shared_store.shared_store import SharedStore

T = TypeVar("T")

RETRY_SECONDS_MAX = 10.0
"""A task asks a store that does not answer again for so long, whatever the node does: a split may wait for the task."""

PARTS_IN_FLIGHT_MAX = 2
"""Parts of an object that are sent at once. A third one is being filled, and a fourth waits: 64 MiB of parts. Four at
once bring them there no sooner, and take more of the processor, which a node may want beside it."""


class ObjectReads(NamedTuple):
    """The range to read of one object."""

    name: str
    ranges: list[ObjectRange]


class BlockingStore:
    """A store for one thread. Use as a context manager."""

    def __init__(self, store: ObjectStore, streams: ObjectStore | None = None, *, part_bytes: int) -> None:
        """`streams`: the store for objects written part by part, which are not begun anew, as their parts are not kept;
        `store` if None. `part_bytes`: of such objects. Smaller ones are written in one request."""
        self.part_bytes = part_bytes
        self._store = store
        self._streams = streams or store
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="object store", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, shared: SharedStore) -> BlockingStore:
        """The cluster's folder of a shared store. Raises ConfigError."""
        config = msgspec.structs.replace(
            shared.config,
            retry_seconds=min(shared.config.retry_seconds, RETRY_SECONDS_MAX),
            parts_in_flight=min(shared.config.parts_in_flight, PARTS_IN_FLIGHT_MAX),
        )
        guarded = open_object_store(shared.url, config)
        once = guarded.in_flight  # within what tries again
        return cls(StoreFolder(guarded, shared.folder), StoreFolder(once, shared.folder), part_bytes=config.part_bytes)

    def __enter__(self) -> BlockingStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the thread. No request may be under way."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def read_all(self, reads: Sequence[ObjectReads]) -> list[list[Buffer] | BaseException]:
        """The ranges of each of these objects, all at once, or what `ObjectStore.read` raised. None is under way any
        more when this returns."""

        async def read() -> list[list[Buffer] | BaseException]:
            asked = (self._store.read(name, ranges) for name, ranges in reads)
            return await asyncio.gather(*asked, return_exceptions=True)

        return self.begin(read()).result()

    def begin_reading(self, name: str, tail_bytes: int) -> Future[tuple[int, Buffer]]:
        """Begin to read the last `tail_bytes` of an object, or all of a shorter one: its size, and these bytes."""

        async def read() -> tuple[int, Buffer]:
            size = (await self._store.info(name)).size_bytes
            if not size:
                return 0, b""
            begins = max(0, size - tail_bytes)
            (content,) = await self._store.read(name, [ObjectRange(begins, size - begins)])
            return size, content

        return self.begin(read())

    def write(self, name: str, content: Buffer) -> ObjectInfo:
        """Create an object in one request; raises as `ObjectStore.write`."""
        return self.begin(self._store.write(name, content)).result()

    def begin_stream(self, name: str, parts: Callable[[], Any]) -> Future[ObjectInfo]:
        """Begin `ObjectStore.write_parts`; its parts are asked for in the loop of this store."""
        return self.begin(self._streams.write_parts(name, parts))

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def soon(self, function: Callable[[], object]) -> None:
        """Have the loop call a function."""
        self._loop.call_soon_threadsafe(function)
