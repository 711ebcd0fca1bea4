"""So many readers of a source from which each read takes long, each at a place of its own, that the memory for chunks
would evict what was loaded for one before it comes back for the rest.

Each is then brought stretches of its own, which begin and end with extents: what its read takes, and in the same
request what it will ask for next, as far as there is room for what readers come back for. The first to be served takes
that room, up to a whole stretch, and leaves it once it has passed; while there is none, a request brings what the read
takes. So readers that come back soon have few requests each, those that come back late hold no more than the room, and
nothing is asked for twice. The size is chosen when the request is sent, and not before it waits for its turn. A
stretch for which no reader came back in `REST_SECONDS` goes once others want the room.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from mainstem.lru import Lru
from mainstem.model import Buffer
from mainstem.ports import Clock
from mainstem.storage.disks.single_flight import SingleFlight
from mainstem.storage.read_cache.bytes_under_way import BytesUnderWay
from mainstem.storage.read_cache.cached_chunk import CachedChunk

LEFT_SHARE = 0.25
CROWD_SECONDS = 1.0
"""Readers are a crowd no more once no more than this share of those that make one waited at a time, for so long: fewer
wait whenever the others are being served, and the time is that of ten slow requests."""

REST_SECONDS = 10.0
"""A reader that has not come back for so long is slow, or gone: it asks once more."""

Place = tuple[str, int]
"""File name and position."""


class _Rest(NamedTuple):
    """A stretch of which its reader has taken a part."""

    stretch: CachedChunk
    kept_at: float


class ReadersCrowd:
    """Readers that wait, whether they are a crowd, and the stretches of each."""

    def __init__(self, clock: Clock, *, room: int, stretch_bytes: int, under_way: BytesUnderWay | None) -> None:
        """`room`: the bytes that readers may come back for. `stretch_bytes`: of one request at most. `under_way` None:
        they are never a crowd."""
        self._clock = clock
        self._room = room
        self._stretch_bytes = stretch_bytes
        self._under_way = under_way
        self._waiting = 0
        """Reads under way, or waiting for room, that a reader waits for."""
        self._crowded_until = float("-inf")
        self._loads: SingleFlight[Place, CachedChunk] = SingleFlight()
        """By the place where a stretch begins."""
        self._rests: Lru[Place, _Rest] = Lru(room, lambda rest: len(rest.stretch.data))
        """By the place where its reader goes on. Each is one reader's."""
        self._to_come = 0
        """Bytes of stretches on their way of which a reader will come back for a part."""

    @property
    def is_crowded(self) -> bool:
        """Whether readers are so many that each is brought stretches of its own."""
        return self._clock.monotonic() < self._crowded_until

    @property
    def held(self) -> int:
        """Bytes of stretches that readers come back for."""
        return self._rests.held

    @contextmanager
    def reader_waiting(self) -> Iterator[None]:
        """Inside the `with`, a reader waits. They are a crowd once there is no room for a whole stretch for each of
        them, and until so few are left for a while. Those who wait for the same chunks are one."""
        self._waiting += 1
        if self._under_way is not None:
            share = LEFT_SHARE if self.is_crowded else 1.0
            if self._waiting * self._stretch_bytes > self._room * share:
                self._crowded_until = self._clock.monotonic() + CROWD_SECONDS
        try:
            yield
        finally:
            self._waiting -= 1

    async def stretch(
        self, place: Place, wanted: int, whole: Callable[[int], int], read: Callable[[int], Awaitable[Buffer]]
    ) -> CachedChunk:
        """The extents from a place on, for one reader alone, who takes `wanted` bytes of them now. `whole(most)`: the
        bytes of the first of them that have no more together, or of the very first. `read(length)` reads. Raises as it
        does."""
        assert self._under_way is not None, "there is a crowd"
        under_way = self._under_way

        async def load() -> CachedChunk:
            now, most = whole(min(wanted, self._stretch_bytes)), whole(self._stretch_bytes)
            async with under_way.of(most) as turn:
                length = now if most == now else max(now, whole(min(most, self._room_left())))
                turn.shrink(length)
                to_come = length if length > now else 0
                self._to_come += to_come
                try:
                    data = await read(length)
                finally:
                    self._to_come -= to_come
            return CachedChunk(data, place[1], place[1] + len(data))

        with self.reader_waiting():
            return await self._loads.run(place, load)

    def _room_left(self) -> int:
        """The bytes that one more reader may come back for."""
        if self._rests.held + self._to_come + self._stretch_bytes > self._room:
            self.drop_old()
        return self._room - self._rests.held - self._to_come

    def keep_rest(self, place: Place, length: int, stretch: CachedChunk) -> None:
        """Keep a stretch for its reader, who goes on with an extent of so many bytes at a place."""
        if stretch.has(place[1], length):
            self._rests.put(place, _Rest(stretch, self._clock.monotonic()))

    def take_rest(self, place: Place) -> CachedChunk | None:
        """The stretch kept for a reader that goes on at a place, if it still is."""
        rest = self._rests.pop(place)
        return None if rest is None else rest.stretch

    def drop_old(self) -> None:
        """Let go of what no reader has come back for in a long time."""
        old = self._clock.monotonic() - REST_SECONDS
        while (first := next(iter(self._rests), None)) is not None:
            rest = self._rests.peek(first)
            if rest is None or rest.kept_at > old:
                return
            self._rests.pop(first)

    def forget(self, name: str) -> None:
        """Drop what there is of a file that is gone."""
        for place in [place for place in self._rests if place[0] == name]:
            self._rests.pop(place)

    def clear(self) -> None:
        self._rests.clear()
