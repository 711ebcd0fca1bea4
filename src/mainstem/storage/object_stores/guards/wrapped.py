"""An object store around another one: every request goes through one method, which the wrappers replace."""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from mainstem.model import Buffer
from mainstem.ports import ListedObject, ObjectInfo, ObjectRange, ObjectStore

T = TypeVar("T")


class StoreRequest(enum.Enum):
    """The kinds of requests, as measurements name them."""

    READ = "read"
    WRITE = "write"
    WRITE_PARTS = "write_parts"
    INFO = "info"
    DELETE = "delete"
    LIST = "list"


class WrappedStore:
    """`ObjectStore` that does nothing by itself. `_send` is called once per request."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner

    async def _send(self, request: StoreRequest, send: Callable[[], Awaitable[T]]) -> T:
        """The result of `send`, or its error; it may be called more than once."""
        return await send()

    def read(self, name: str, ranges: Sequence[ObjectRange]) -> Coroutine[Any, Any, list[Buffer]]:
        """As the port has it, but with no coroutine of its own: readers of old data have thousands of these a second,
        through each of the wrappers."""
        return self._send(StoreRequest.READ, partial(self._inner.read, name, ranges))

    async def write(self, name: str, content: Buffer, *, replaces: str | None = None) -> ObjectInfo:
        return await self._send(StoreRequest.WRITE, lambda: self._inner.write(name, content, replaces=replaces))

    async def write_parts(self, name: str, parts: Callable[[], AsyncIterator[Buffer]]) -> ObjectInfo:
        return await self._send(StoreRequest.WRITE_PARTS, lambda: self._inner.write_parts(name, parts))

    async def info(self, name: str) -> ObjectInfo:
        return await self._send(StoreRequest.INFO, lambda: self._inner.info(name))

    async def delete(self, names: Sequence[str]) -> None:
        return await self._send(StoreRequest.DELETE, lambda: self._inner.delete(names))

    async def page_for_upkeep(self, prefix: str, after: str = "") -> list[ListedObject]:
        return await self._send(StoreRequest.LIST, lambda: self._inner.page_for_upkeep(prefix, after))
