"""Turns of the event loop, shared out to what takes many of them.

Long work (a request with a hundred thousand names, a search through a whole queue) goes on in slices of a millisecond
or so. Between two slices it takes a turn here. One slice runs in each turn of the loop, whoever's it is: a hundred long
requests at once hold everybody else up no longer than one of them does, and share its pace among themselves, in the
order they came.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Pace:
    """Counts what a piece of long work has done, and takes a turn when it is time."""

    def __init__(self, turns: Turns, elements: int) -> None:
        self._turns = turns
        self._elements = elements
        self._done = 0

    async def step(self, elements: int = 1) -> None:
        """So many elements are done."""
        self._done += elements
        if self._done >= self._elements:
            self._done = 0
            await self._turns.take()


class Turns:
    """Bounded by who waits: a request waits for one turn at a time."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._due = False
        self.taken = 0
        """Turns given so far."""

    async def take(self) -> None:
        """Return in a later turn of the loop, with the slice of that turn to oneself."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append(future)
        if not self._due:
            self._due = True
            loop.call_soon(self._give)
        await future

    def pace(self, elements: int) -> Pace:
        """For one piece of work that does so many elements between two turns."""
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
