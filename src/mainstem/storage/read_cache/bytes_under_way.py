"""Bounds the bytes that are on their way into memory at once. Those who wait go in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Self


class BytesUnderWay:
    """At most `bytes_max` bytes under way, or one piece that is larger."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def of(self, length: int) -> RoomTaken:
        """For the time in which `length` bytes come, or as many as the room that was taken for them is shrunk to."""
        return RoomTaken(self, length)

    def enters(self, length: int) -> bool:
        """Take room at once, if there is some and nobody waits."""
        if self._waiting or not self._has_room(length):
            return False
        self.bytes += length
        return True

    async def wait_for(self, length: int) -> None:
        """Take room when it is this piece's turn."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((length, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # its room was given to it already
                self.leave(length)
            else:
                self._waiting.remove((length, turn))
                self._let_in()
            raise

    def _has_room(self, length: int) -> bool:
        return not self.bytes or self.bytes + length <= self._bytes_max

    def leave(self, length: int) -> None:
        """So many bytes have come, or do not come."""
        self.bytes -= length
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._has_room(self._waiting[0][0]):
            length, turn = self._waiting.popleft()
            if not turn.done():
                self.bytes += length
                turn.set_result(None)


class RoomTaken:
    """The share of the room that one piece has inside the `async with`."""

    __slots__ = ("_length", "_of")

    def __init__(self, of: BytesUnderWay, length: int) -> None:
        self._of = of
        self._length = length

    async def __aenter__(self) -> Self:
        if not self._of.enters(self._length):
            await self._of.wait_for(self._length)
        return self

    async def __aexit__(self, *_raised: object) -> None:
        self.shrink(0)

    def shrink(self, length: int) -> None:
        """Give back what is more than `length` bytes."""
        if length < self._length:
            self._of.leave(self._length - length)
            self._length = length
