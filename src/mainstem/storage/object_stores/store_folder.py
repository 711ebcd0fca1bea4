"""A folder of an object store, as a store of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from mainstem.model import Buffer
from mainstem.ports import ListedObject, ObjectInfo, ObjectRange, ObjectStore


class StoreFolder:
    """`ObjectStore` whose objects lie below one folder of another store. Errors name the other store's objects."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self._store = store
        self._prefix = f"{folder}/"

    async def read(self, name: str, ranges: Sequence[ObjectRange]) -> list[Buffer]:
        return await self._store.read(self._prefix + name, ranges)

    async def write(self, name: str, content: Buffer, *, replaces: str | None = None) -> ObjectInfo:
        return await self._store.write(self._prefix + name, content, replaces=replaces)

    async def write_parts(self, name: str, parts: Callable[[], AsyncIterator[Buffer]]) -> ObjectInfo:
        return await self._store.write_parts(self._prefix + name, parts)

    async def info(self, name: str) -> ObjectInfo:
        return await self._store.info(self._prefix + name)

    async def delete(self, names: Sequence[str]) -> None:
        await self._store.delete([self._prefix + name for name in names])

    async def page_for_upkeep(self, prefix: str, after: str = "") -> list[ListedObject]:
        page = await self._store.page_for_upkeep(
            (self._prefix + prefix).rstrip("/"), self._prefix + after if after else ""
        )
        return [listed._replace(name=listed.name.removeprefix(self._prefix)) for listed in page]
