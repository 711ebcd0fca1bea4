"""Work on every member of a group, in steps: one step in an event, and the others in events of their own.

A group may have ten thousand members, and what all of them need takes a tenth of a second. The first step belongs to
the event that begins the work, so that groups of hundreds notice nothing. While more is left, a timer that has always
run out asks for the next step (`TimerKind.WORK`): other events, of this group too, come in between.

So a piece of work may find another group after each of its pauses than before. It looks again at what it goes by, and
ends when that is over. Requests of members stay with their members until they are answered, so that any event that
comes in between answers them as it would have. All that others may see, or that the log has, changes within one step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Generic, TypeVar

S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")

ITEMS_PER_STEP = 500
"""Members, or partitions, looked at in one step: two to five milliseconds."""

ITEMS_AT_ONCE = 100
"""Between two looks at whether the step has had its fill."""

Slices = Generator[int, None, R]
"""Work that tells at each pause how many items it has done since the last."""


class Current(Generic[S]):
    """`step`: the event in which a piece of work goes on; another one after each pause."""

    def __init__(self, step: S) -> None:
        self.step = step


Work = Callable[[Current[S]], Slices[None]]


class LongWork(Generic[S]):
    """Holds the pieces of work that one machine has begun and not finished, and takes them in turn. Bounded by the
    groups: each has a piece or two for its present generation, and pieces of former ones end at their next step."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Current[S], Slices[None]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def begin(self, step: S, work: Work[S]) -> None:
        """Do the first step of a piece of work now."""
        current = Current(step)
        self._do(current, work(current))

    def go_on(self, step: S) -> None:
        """Do one more step of the piece that has waited longest."""
        if self._waiting:
            current, slices = self._waiting.popleft()
            current.step = step
            self._do(current, slices)

    def _do(self, current: Current[S], slices: Slices[None]) -> None:
        done = 0
        for items in slices:
            done += items
            if done >= ITEMS_PER_STEP:
                self._waiting.append((current, slices))
                return


def in_pieces(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """The items, some at a time, between which work may pause."""
    for first in range(0, len(items), ITEMS_AT_ONCE):
        yield items[first : first + ITEMS_AT_ONCE]


def finished(slices: Slices[R]) -> R:
    """The result of work that is done in one go."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            result: R = end.value
            return result
