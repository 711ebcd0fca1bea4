"""Shares the turns of the event loop among long pieces of work.

Long work (a request with a hundred thousand names, a search through a whole queue) goes on in slices of a millisecond
or so. Between two slices it takes a turn here. One slice runs in each turn of the loop, of whichever work: a hundred
long requests at once delay all others no longer than one of them does, and share its pace among themselves, in the
order they came.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator
from typing import TypeVar

R = TypeVar("R")


class Pace:
    """Counts what a piece of long work has done, and takes a turn when it is time."""

    def __init__(self, turns: Turns, elements: int) -> None:
        self._turns = turns
        self._elements = elements
        self._done = 0

    async def step(self, elements: int = 1) -> None:
        """Note that so many elements are done; takes a turn when it is time."""
        self._done += elements
        if self._done >= self._elements:
            self._done = 0
            await self._turns.take()


class Turns:
    """Holds the work that waits for a turn. Bounded by the callers: a request waits for one turn at a
    time."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._due = False
        self.taken = 0
        """Turns given so far."""

    async def take(self) -> None:
        """Return in a later turn of the loop, whose slice then belongs to the caller alone."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append(future)
        if not self._due:
            self._due = True
            loop.call_soon(self._give)
        await future

    async def run(self, slices: Generator[None, None, R]) -> R:
        """Run the slices, one per turn of the event loop; returns their result."""
        while True:
            try:
                next(slices)
            except StopIteration as end:
                result: R = end.value
                return result
            await self.take()

    def pace(self, elements: int) -> Pace:
        """A pace for one piece of work that does so many elements between two turns."""
        return Pace(self, elements)

    def _give(self) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():  # not cancelled meanwhile
                self.taken += 1
                future.set_result(None)
                break
        self._due = bool(self._waiting)
        if self._due:
            asyncio.get_running_loop().call_soon(self._give)
