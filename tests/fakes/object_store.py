"""A simulated object store: whole objects in memory, and what goes wrong with them at a distance."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from mainstem.model import Buffer
from mainstem.ports import Clock, ListedObject, ObjectInfo, ObjectRange, ObjectStore
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.object_stores.errors import (
    ObjectAbsent,
    ObjectChanged,
    ObjectExists,
    ObjectStoreError,
    ObjectStoreRefused,
    ObjectStoreThrottled,
    ObjectStoreTimedOut,
    ObjectStoreUnavailable,
    ObjectTooShort,
    ReplaceUnsupported,
)
from mainstem.storage.object_stores.folders import PAGE_OBJECTS_MAX
from mainstem.storage.object_stores.names import checked
from mainstem.storage.object_stores.urls import GuardedStore

T = TypeVar("T")


@dataclass
class Weather:
    """The fates of requests. Chances are per request; times in seconds of the event loop's clock."""

    latency_seconds: tuple[float, float] = (0.0, 0.0)
    """Drawn evenly for each request, half of it before the request is done and half behind."""
    lost_answers: float = 0.0
    """The request is done, and its answer never arrives: it times out."""
    lost_requests: float = 0.0
    """The request never arrives: it times out."""
    late_requests: float = 0.0
    """The request times out, and the store does it up to `late_seconds` after that, whoever has gone on or died."""
    late_seconds: float = 10.0
    failures: float = 0.0
    """Answered with an error of the store's own."""
    timeout_seconds: float = 1.0
    requests_per_second_max: float = float("inf")
    """More are answered with SlowDown."""
    listed_after_seconds: float = 0.0
    """An object is listed, or missing from the list, up to so long after it was written or deleted."""
    down: bool = False
    """Nothing is answered: each request times out."""
    refuses: bool = False
    replaces: bool = True
    """Whether the store can replace on condition."""


class Stored(NamedTuple):
    content: bytes
    tag: str
    modified_ms: int


@dataclass
class SimulatedBucket:
    """The content of the store: the same for all nodes that have a `SimulatedObjectStore` onto it."""

    clock: Clock
    chance: random.Random
    weather: Weather = field(default_factory=Weather)
    objects: dict[str, Stored] = field(default_factory=dict)
    asked: int = 0
    """Requests so far, those included that never arrived."""
    changing: Callable[[str, bytes | None], None] = lambda name, content: None
    """Is told of each object before the store writes it, with its content, or deletes it: None."""
    _versions: int = 0
    _listing: dict[str, tuple[float, Stored | None]] = field(default_factory=dict)
    """Name → until when lists show what was there before, and what that was; None: nothing."""
    _sent_at: list[float] = field(default_factory=list)

    def put(self, name: str, content: bytes) -> ObjectInfo:
        self.changing(name, content)
        self._changes(name)
        self._versions += 1
        self.objects[name] = Stored(content, f"v{self._versions}", self.clock.now_ms())
        return ObjectInfo(len(content), self.objects[name].tag)

    def remove(self, name: str) -> None:
        if name in self.objects:
            self.changing(name, None)
            self._changes(name)
            del self.objects[name]

    def lose(self, name: str) -> None:
        """The store breaks its promise: the object is gone, and nobody deleted it."""
        del self.objects[name]

    def listed(self) -> dict[str, Stored]:
        shown = dict(self.objects)
        for name, (until, before) in list(self._listing.items()):
            if until <= self.clock.monotonic():
                del self._listing[name]
            elif before is None:
                shown.pop(name, None)
            else:
                shown[name] = before
        return shown

    def over_pace(self) -> bool:
        """Counts a request; whether the second has more of them than the store takes."""
        now = self.clock.monotonic()
        self._sent_at = [at for at in self._sent_at if at > now - 1.0]
        if len(self._sent_at) >= self.weather.requests_per_second_max:
            return True
        self._sent_at.append(now)
        return False

    def _changes(self, name: str) -> None:
        late = self.chance.uniform(0.0, self.weather.listed_after_seconds)
        if late > 0:
            self._listing[name] = (self.clock.monotonic() + late, self.objects.get(name))


class SimulatedObjectStore:
    """`ObjectStore` onto a bucket, under its weather."""

    def __init__(self, bucket: SimulatedBucket) -> None:
        self.bucket = bucket

    async def read(self, name: str, ranges: Sequence[ObjectRange]) -> list[Buffer]:
        def work() -> list[Buffer]:
            content = self._there(name).content
            found: list[Buffer] = []
            for position, length in ranges:
                if position + length > len(content):
                    raise ObjectTooShort(f"{name} ends at {len(content)}")
                found.append(content[position : position + length])
            return found

        return await self._send(name, work)

    async def write(self, name: str, content: Buffer, *, replaces: str | None = None) -> ObjectInfo:
        held = bytes(content)

        def work() -> ObjectInfo:
            there = self.bucket.objects.get(checked(name))
            if replaces is None:
                if there is not None:
                    raise ObjectExists(f"{name} is there already")
            elif not self.bucket.weather.replaces:
                raise ReplaceUnsupported("this store cannot")
            elif there is None or there.tag != replaces:
                raise ObjectChanged(f"{name} is not the object any more that was to be replaced")
            return self.bucket.put(name, held)

        return await self._send(name, work)

    async def write_parts(self, name: str, parts: Callable[[], AsyncIterator[Buffer]]) -> ObjectInfo:
        content = bytearray()
        async for part in parts():
            held = bytes(part)
            await self._send(name, lambda: None)
            content += held
        return await self._send(name, lambda: self.bucket.put(name, bytes(content)))

    async def info(self, name: str) -> ObjectInfo:
        def work() -> ObjectInfo:
            there = self._there(name)
            return ObjectInfo(len(there.content), there.tag)

        return await self._send(name, work)

    async def delete(self, names: Sequence[str]) -> None:
        def work() -> None:
            for name in names:
                self.bucket.remove(name)

        if names:
            await self._send(names[0], work)

    async def page_for_upkeep(self, prefix: str, after: str = "") -> list[ListedObject]:
        def work() -> list[ListedObject]:
            below = sorted(
                (name, there)
                for name, there in self.bucket.listed().items()
                if name.startswith(f"{prefix}/" if prefix else "") and name > after
            )
            return [
                ListedObject(name, len(there.content), there.modified_ms) for name, there in below[:PAGE_OBJECTS_MAX]
            ]

        return await self._send(prefix or "all", work)

    def _there(self, name: str) -> Stored:
        try:
            return self.bucket.objects[name]
        except KeyError:
            raise ObjectAbsent(f"{name}: there is no such object") from None

    async def _send(self, name: str, work: Callable[[], T]) -> T:
        checked(name)
        weather, chance = self.bucket.weather, self.bucket.chance
        self.bucket.asked += 1
        latency = chance.uniform(*weather.latency_seconds)
        if weather.down or chance.random() < weather.lost_requests:
            await asyncio.sleep(weather.timeout_seconds)
            raise ObjectStoreTimedOut(f"{name}: no answer in time")
        if weather.late_requests and chance.random() < weather.late_requests:
            _do_later(work, weather.timeout_seconds + chance.uniform(0.0, weather.late_seconds))
            await asyncio.sleep(weather.timeout_seconds)
            raise ObjectStoreTimedOut(f"{name}: no answer in time")
        await asyncio.sleep(latency / 2)
        if weather.refuses:
            raise ObjectStoreRefused(f"{name}: AccessDenied")
        if self.bucket.over_pace():
            raise ObjectStoreThrottled(f"{name}: SlowDown")
        if chance.random() < weather.failures:
            raise ObjectStoreUnavailable(f"{name}: InternalError")
        lost = chance.random() < weather.lost_answers
        result = work()
        if lost:
            await asyncio.sleep(weather.timeout_seconds)
            raise ObjectStoreTimedOut(f"{name}: no answer in time")
        await asyncio.sleep(latency / 2)
        return result


def in_bad_weather(clock: Clock, patience_seconds: float) -> ObjectStore:
    """A store in which nothing is, and of whose troubles callers that wait for so long notice nothing: they all pass,
    and what guards a store tries again."""
    weather = Weather(
        latency_seconds=(0.0, 0.2),
        lost_answers=0.1,
        lost_requests=0.05,
        failures=0.05,
        timeout_seconds=0.5,
        requests_per_second_max=20.0,
    )
    config = ObjectStoreConfig(retry_seconds=patience_seconds, failures_max=1000)
    bucket = SimulatedBucket(clock, random.Random(1), weather)
    return GuardedStore(SimulatedObjectStore(bucket), config, jitter=random.Random(2), monotonic=clock.monotonic)


def _do_later(work: Callable[[], object], seconds: float) -> None:
    """Have the store do something for a caller that has given it up, whose process may be gone by then."""

    def do() -> None:
        with contextlib.suppress(ObjectStoreError):  # nobody hears the answer
            work()

    asyncio.get_running_loop().call_later(seconds, do, context=contextvars.Context())
