"""Keeps what was used last, within a bound."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Lru(Generic[K, V]):
    """Values by key; past the bound those go that were used longest ago. The newest stays even if it alone exceeds the
    bound, unless that is 0: then nothing is kept."""

    def __init__(
        self,
        bound: int,
        weight: Callable[[V], int] | None = None,
        let_go: Callable[[V], object] = lambda value: None,
    ) -> None:
        """`bound` is of the sum of all weights, each of which stays the same while the value is here; without `weight`,
        of the number of values. `let_go` is called for each value that goes because of the bound, in place of which
        another one comes, or that is there at `clear`; the caller of `pop` has the value itself."""
        self._bound = bound
        self._weight = weight
        self._let_go = let_go
        self._values: OrderedDict[K, V] = OrderedDict()
        self.held = 0
        """The sum of the weights."""

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: K) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[K]:
        """Keys; that used longest ago comes first."""
        return iter(self._values)

    def get(self, key: K) -> V | None:
        """The value, which counts as used now; None: there is none."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def peek(self, key: K) -> V | None:
        """The value, which does not count as used."""
        return self._values.get(key)

    def put(self, key: K, value: V) -> None:
        """Keep a value, in place of the key's last one."""
        self._drop(key)
        self._values[key] = value
        self.held += self._weight(value) if self._weight else 1
        while self.held > self._bound and len(self._values) > (1 if self._bound else 0):
            self._drop(next(iter(self._values)))

    def clear(self) -> None:
        """Let go of all values."""
        while self._values:
            self._drop(next(iter(self._values)))

    def _drop(self, key: K) -> None:
        if (value := self.pop(key)) is not None:
            self._let_go(value)

    def pop(self, key: K) -> V | None:
        """Let go of a value, and return it; None: there is none."""
        value = self._values.pop(key, None)
        if value is not None:
            self.held -= self._weight(value) if self._weight else 1
        return value
