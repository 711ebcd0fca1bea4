"""An object store that is only read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from mainstem.storage.object_stores.errors import ObjectStoreError
from mainstem.storage.object_stores.guards.wrapped import StoreRequest, WrappedStore

T = TypeVar("T")

READS = frozenset({StoreRequest.READ, StoreRequest.INFO, StoreRequest.LIST})


class StoreIsReadOnly(ObjectStoreError):
    """Something was to be written to a store that this program only reads."""


class ReadOnlyStore(WrappedStore):
    """`ObjectStore` that writes and deletes nothing, whoever asks for it: raises `StoreIsReadOnly`."""

    async def _send(self, request: StoreRequest, send: Callable[[], Awaitable[T]]) -> T:
        if request not in READS:
            raise StoreIsReadOnly(f"a request to {request.value}: this node reads the object store only")
        return await send()
