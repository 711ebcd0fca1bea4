"""Tries requests again that met an outage: with jitter, for a bounded time, and seldom while much fails.

* **Full jitter**: before attempt n the wait is drawn evenly from nothing up to a bound that doubles with n, so that
  those who failed together do not come back together. A store that asks for fewer requests is given longer.
* **A time budget** for each call: the last attempt begins before it is over.
* **A token budget** for the store: a retry takes a token, and ten successes give one back. While most requests fail
  there are no tokens, and the load on the store is what callers ask for, never a multiple of it. After an answer of
  SlowDown a retry takes none: fewer requests are sent then (`in_flight.py`).
* A write whose **answer was lost** may have been done. When a later attempt finds the object there, or changed, its
  content tells: the writer's own bytes mean that the write is done. Two writers that must not both be told so write
  something that differs, such as their number.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from mainstem.model import Buffer, Sample
from mainstem.ports import ObjectInfo, ObjectRange, ObjectStore
from mainstem.storage.object_stores.errors import (
    ObjectAbsent,
    ObjectChanged,
    ObjectExists,
    ObjectStoreDown,
    ObjectStoreOutage,
    ObjectStoreThrottled,
)
from mainstem.storage.object_stores.guards.wrapped import StoreRequest, WrappedStore

T = TypeVar("T")

TOKENS_MAX = 100.0
"""Retries that may follow each other while nothing succeeds: more than are in flight when a store stumbles."""
TOKENS_PER_SUCCESS = 0.1
"""In the long run retries add a tenth to the load."""
WAIT_SECONDS = 0.1
"""Bound of the first wait; doubled for each further one."""
THROTTLED_WAIT_SECONDS = 1.0
"""The same after the store asked for fewer requests: it counts them by the second."""
WAIT_SECONDS_MAX = 10.0


class Retrying(WrappedStore):
    """`ObjectStore` that tries again for `retry_seconds` in all. An outage that lasts longer is raised as it was met
    last."""

    def __init__(
        self,
        inner: ObjectStore,
        retry_seconds: float,
        *,
        jitter: random.Random,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        super().__init__(inner)
        self._retry_seconds = retry_seconds
        self._jitter = jitter
        self._monotonic = monotonic
        self._sleep = sleep
        self.tokens = TOKENS_MAX
        self.retries = 0
        self.given_up = 0

    async def _send(self, request: StoreRequest, send: Callable[[], Awaitable[T]]) -> T:
        ends = self._monotonic() + self._retry_seconds
        attempts = 0
        while True:
            attempts += 1
            try:
                result = await send()
            except ObjectStoreDown:
                raise
            except ObjectStoreOutage as error:
                wait = self._wait(attempts, error)
                price = 0 if isinstance(error, ObjectStoreThrottled) else 1
                if self.tokens < price or self._monotonic() + wait >= ends:
                    self.given_up += 1
                    raise
                self.tokens -= price
                self.retries += 1
                await self._sleep(wait)
            else:
                self.tokens = min(TOKENS_MAX, self.tokens + TOKENS_PER_SUCCESS)
                return result

    def _wait(self, attempts: int, error: ObjectStoreOutage) -> float:
        """Seconds before the next attempt."""
        first = THROTTLED_WAIT_SECONDS if isinstance(error, ObjectStoreThrottled) else WAIT_SECONDS
        return self._jitter.uniform(0.0, min(WAIT_SECONDS_MAX, first * 2.0 ** (attempts - 1)))

    async def write(self, name: str, content: Buffer, *, replaces: str | None = None) -> ObjectInfo:
        doubtful = False
        """An attempt before may have been done."""

        async def attempt() -> ObjectInfo:
            nonlocal doubtful
            try:
                return await self._inner.write(name, content, replaces=replaces)
            except (ObjectExists, ObjectChanged):
                if doubtful and (there := await self._own(name, content)) is not None:
                    return there
                raise
            except ObjectStoreOutage as error:
                doubtful = doubtful or not isinstance(error, ObjectStoreThrottled | ObjectStoreDown)
                raise

        return await self._send(StoreRequest.WRITE, attempt)

    async def _own(self, name: str, content: Buffer) -> ObjectInfo | None:
        """The object, if it holds just these bytes, before and after it was read."""
        try:
            before = await self._inner.info(name)
            if before.size_bytes != len(content):
                return None
            if len(content):
                [there] = await self._inner.read(name, [ObjectRange(0, len(content))])
                if bytes(there) != bytes(content):
                    return None
                if await self._inner.info(name) != before:
                    return None
        except ObjectAbsent:
            return None
        return before

    def samples(self) -> Iterator[Sample]:
        yield Sample(
            "mainstem_object_store_retries_total", "counter", "Requests to the object store tried again", self.retries
        )
        yield Sample(
            "mainstem_object_store_given_up_total",
            "counter",
            "Calls to the object store that failed after all retries that they may have",
            self.given_up,
        )
