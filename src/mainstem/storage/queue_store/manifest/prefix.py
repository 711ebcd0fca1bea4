"""A prefix is a list as it was at one moment, without a copy: its first entries, as long as it only grows.

Extending the newest prefix of a list gives a longer prefix of the same list; shorter ones stay as they are. So the cost
depends on the items added, not on the length of the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar, overload

Item = TypeVar("Item")


class Prefix(Sequence[Item]):
    """Equal to any sequence of the same items in the same order."""

    __slots__ = ("_items", "_length")

    def __init__(self, items: Iterable[Item] = ()) -> None:
        self._items = list(items)
        self._length = len(self._items)

    def extended(self, items: Iterable[Item]) -> Prefix[Item]:
        """A prefix with these items added at its end."""
        if len(self._items) != self._length:  # another prefix has added to the list already
            return Prefix([*self, *items])
        longer: Prefix[Item] = Prefix.__new__(Prefix)
        longer._items = self._items
        longer._items.extend(items)
        longer._length = len(longer._items)
        return longer

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Item]:
        return islice(self._items, self._length)

    @overload
    def __getitem__(self, place: int) -> Item: ...

    @overload
    def __getitem__(self, place: slice) -> list[Item]: ...

    def __getitem__(self, place: int | slice) -> Item | list[Item]:
        if isinstance(place, slice):
            return [self._items[at] for at in range(*place.indices(self._length))]
        if place < 0:
            place += self._length
        if not 0 <= place < self._length:
            raise IndexError(f"item {place} of {self._length}")
        return self._items[place]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # as a list

    def __repr__(self) -> str:
        return f"Prefix({list(self)!r})"
