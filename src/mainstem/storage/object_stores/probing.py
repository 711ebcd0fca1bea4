"""Whether an object store does what Mainstem asks of one: found out with small objects, which are removed again.

Stores that speak S3 differ most in conditional writes: one that does not know the condition overwrites, and says that
all is well. A probe therefore tries what must be refused, too.
"""

from __future__ import annotations

import enum
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

from mainstem.model import Buffer
from mainstem.ports import ObjectRange, ObjectStore
from mainstem.storage.object_stores.errors import (
    ObjectAbsent,
    ObjectChanged,
    ObjectExists,
    ObjectStoreError,
    ReplaceUnsupported,
)

FOLDER = "mainstem-probe"
"""Below the URL's prefix."""


class Ability(enum.Enum):
    OK = "ok"
    FAILED = "failed"
    UNSUPPORTED = "unsupported"
    """Mainstem does without."""


class Tried(NamedTuple):
    """One thing that a store has to do."""

    name: str
    ability: Ability
    seconds: float
    found: str = ""
    """The failure; empty: there was none."""


class ProbeFailed(ObjectStoreError):
    """The store answered, and not as it must."""


class StoreProbe:
    """One probe of a store. `part_bytes`: the size of the parts of its large object."""

    def __init__(self, store: ObjectStore, part_bytes: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._part_bytes = part_bytes
        self._monotonic = monotonic
        place = f"{FOLDER}/{secrets.token_hex(8)}"
        self._small, self._large = f"{place}/small", f"{place}/large"
        self._tag = ""

    async def run(self) -> AsyncIterator[Tried]:
        """The steps, as they are done; ends at the first failure. The objects are removed in any case."""
        steps: tuple[tuple[str, Callable[[], Awaitable[None]]], ...] = (
            ("create", self._create),
            ("read", self._read),
            ("create only if absent", self._create_again),
            ("replace if unchanged", self._replace),
            ("upload in parts", self._upload),
            ("list", self._list),
            ("delete", self._delete),
        )
        try:
            for name, step in steps:
                began = self._monotonic()
                ability, found = Ability.OK, ""
                try:
                    await step()
                except ReplaceUnsupported as error:
                    ability, found = Ability.UNSUPPORTED, str(error)
                except ObjectStoreError as error:
                    ability, found = Ability.FAILED, str(error)
                yield Tried(name, ability, self._monotonic() - began, found)
                if ability is Ability.FAILED:
                    return
        finally:
            with suppress(ObjectStoreError):
                await self._store.delete([self._small, self._large])

    async def _create(self) -> None:
        self._tag = (await self._store.write(self._small, b"first")).tag

    async def _read(self) -> None:
        [found] = await self._store.read(self._small, [ObjectRange(1, 3)])
        if bytes(found) != b"irs":
            raise ProbeFailed(f"{self._small} holds {bytes(found)!r} where b'irs' was written")

    async def _create_again(self) -> None:
        try:
            await self._store.write(self._small, b"other")
        except ObjectExists:
            return
        raise ProbeFailed(
            "the store has overwritten an object that was to be created only if absent: two nodes would overwrite each "
            "other's; use a store that knows conditional writes"
        )

    async def _replace(self) -> None:
        second = await self._store.write(self._small, b"second", replaces=self._tag)
        try:
            await self._store.write(self._small, b"third", replaces=self._tag)
        except ObjectChanged:
            if await self._store.info(self._small) != second:
                raise ProbeFailed("the tag of an object changed though nobody wrote it") from None
            return
        raise ProbeFailed("the store has replaced an object that had changed: use one that knows conditional writes")

    async def _upload(self) -> None:
        async def parts() -> AsyncIterator[Buffer]:
            yield bytes(self._part_bytes)
            yield b"the end"

        await self._store.write_parts(self._large, parts)
        [found] = await self._store.read(self._large, [ObjectRange(self._part_bytes - 1, 8)])
        if bytes(found) != b"\0the end":
            raise ProbeFailed(f"{self._large} does not hold what was uploaded in parts")

    async def _list(self) -> None:
        await self._store.page_for_upkeep(FOLDER)  # that it may lack what was just written is allowed

    async def _delete(self) -> None:
        await self._store.delete([self._small, self._large])
        with suppress(ObjectAbsent):
            await self._store.info(self._small)
            raise ProbeFailed(f"{self._small} is there after it was deleted")
