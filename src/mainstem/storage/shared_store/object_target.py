"""Writes a file of the queue store as an object.

An object appears when all of it is in the store, and not before: `ObjectStore` promises that. One that is smaller than
a part is written in one request, which is tried again as any other. A larger one is streamed: memory holds the part
that is being filled, one that waits, and those that the store is sending. Parts that are gone cannot be sent again, so
that an upload that fails as a whole is over; each part of it was tried several times by then. The node that asked for
the file has it written once more, under another name."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent import futures
from functools import partial

from mainstem.model import Buffer
from mainstem.ports import ObjectInfo
from mainstem.storage.object_stores.errors import ObjectStoreError
from mainstem.storage.shared_store.blocking_store import BlockingStore
from mainstem.storage.store_files.write_pace import WritePace


class UploadBroken(ObjectStoreError):
    """A large object was not written as a whole. There is nothing under its name."""


class ObjectTarget:
    """`RunTarget` that is an object of this name, which no other writer ever chooses. Raises `ObjectStoreError`."""

    def __init__(self, store: BlockingStore, name: str, pace: WritePace) -> None:
        self._store = store
        self._name = name
        self._pace = pace
        self._part = bytearray()
        self._sent = 0
        self._stream: _Stream | None = None

    def write(self, buffer: Buffer) -> None:
        view = memoryview(buffer).cast("B")
        while view:
            room = self._store.part_bytes - len(self._part)
            self._part += view[:room]
            view = view[room:]
            if len(self._part) == self._store.part_bytes:
                self._send()

    def finish(self) -> None:
        if self._stream is None:
            self._pace.take(len(self._part))
            self._sent = len(self._part)
            info = self._store.write(self._name, bytes(self._part))
        else:
            if self._part:
                self._send()
            info = self._stream.finish()
        self._stream, self._part = None, bytearray()
        if info.size_bytes != self._sent:
            raise UploadBroken(f"{self._name} has {info.size_bytes} bytes in the store, {self._sent} were sent")

    def abandon(self) -> None:
        self._part = bytearray()
        if self._stream is not None:
            self._stream.give_up()
            self._stream = None

    def _send(self) -> None:
        self._pace.take(len(self._part))
        if self._stream is None:
            self._stream = _Stream(self._store, self._name)
        self._stream.send(self._part)
        self._sent += len(self._part)
        self._part = bytearray()  # the store has the other one


class _Stream:
    """An upload under way."""

    def __init__(self, store: BlockingStore, name: str) -> None:
        self._store = store
        self._name = name
        self._waiting: asyncio.Queue[bytearray | None] = asyncio.Queue()
        """Parts that are to be sent; None: there are no more."""
        self._room = threading.Semaphore(1)
        """Parts that may be put there. One more when all is over, for a writer that waits."""
        self._began = False
        self._given_up = False
        self._ended = store.begin_stream(name, self._parts)
        self._ended.add_done_callback(lambda _: self._room.release())

    def send(self, part: bytearray) -> None:
        self._room.acquire()
        if self._ended.done():
            self._room.release()
            self._ended.result()
            raise UploadBroken(f"{self._name}: the store has ended the object before its last part")
        self._store.soon(partial(self._waiting.put_nowait, part))

    def finish(self) -> ObjectInfo:
        self._store.soon(partial(self._waiting.put_nowait, None))
        return self._ended.result()

    def give_up(self) -> None:
        """Returns when the store is told so, and nothing of the object is under way any more."""
        self._given_up = True
        self._store.soon(partial(self._waiting.put_nowait, None))
        futures.wait([self._ended])

    async def _parts(self) -> AsyncIterator[Buffer]:
        if self._began:
            raise UploadBroken(f"{self._name}: its first parts are gone, so that it cannot be sent again")
        self._began = True
        while (part := await self._waiting.get()) is not None:
            self._room.release()
            yield part
        if self._given_up:
            raise UploadBroken(f"{self._name}: the upload was given up")
