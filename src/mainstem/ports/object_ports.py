"""Object stores."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mainstem.model import (
    Buffer,
)

if TYPE_CHECKING:
    pass


class ObjectRange(NamedTuple):
    """A part of an object. The length is at least 1."""

    position: int
    length: int


class ObjectInfo(NamedTuple):
    size_bytes: int
    tag: str
    """Names what the object holds: whoever writes the object anew changes it. Only compared, never read."""


class ListedObject(NamedTuple):
    name: str
    size_bytes: int
    modified_ms: int
    """When the object was written, by the clock of the store, in ms since the Unix epoch."""


class ObjectStore(Protocol):
    """Objects below one prefix of a bucket, or in one directory. Names are relative to it, with `/` between their
    parts; no object lies below the name of another. An object appears whole or not at all. Errors are those of
    `storage/object_stores/errors.py`; after one that is an `ObjectStoreOutage` nobody knows whether a write was
    done."""

    async def read(self, name: str, ranges: Sequence[ObjectRange]) -> list[Buffer]:
        """The bytes of each range, in the order of the ranges; ranges that lie near each other cost one request. Raises
        `ObjectAbsent`, and `ObjectTooShort` when the object ends before a range does."""
        ...

    async def write(self, name: str, content: Buffer, *, replaces: str | None = None) -> ObjectInfo:
        """Write an object that fits into memory, in one request. Without `replaces` the object is created, and
        `ObjectExists` raised if there is one. With it the object is replaced if its tag is still `replaces`: otherwise
        `ObjectChanged` is raised; `ReplaceUnsupported` by a store that cannot compare and replace in one step."""
        ...

    async def write_parts(self, name: str, parts: Callable[[], AsyncIterator[Buffer]]) -> ObjectInfo:
        """Write a large object part by part. `parts` may be called again, after a failure, and then begins at the first
        part. The uploaded parts of an unfinished object are given up. Nothing guards the name, so that it must be one
        that no other writer chooses. A part that was handed over stays as it is: the store may hold it until the object
        is written."""
        ...

    async def info(self, name: str) -> ObjectInfo:
        """Raises `ObjectAbsent`."""
        ...

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects. One that is not there is no error."""
        ...

    async def page_for_upkeep(self, prefix: str, after: str = "") -> list[ListedObject]:
        """Some of the objects below the folder `prefix`, of all if that is empty, whose names come after `after`, by
        their names; none: there are no more. A store may list an object late, and a deleted one still: upkeep alone may
        ask, and nothing follows from an object's absence."""
        ...
