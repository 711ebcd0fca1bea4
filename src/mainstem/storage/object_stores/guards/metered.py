"""Counts what is asked of an object store: requests by kind and outcome, bytes, seconds. Stores charge by request."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from itertools import accumulate
from typing import TypeVar

from mainstem.model import Buffer, HistogramSample, Sample
from mainstem.ports import ObjectInfo, ObjectRange, ObjectStore
from mainstem.storage.object_stores.errors import (
    ObjectAbsent,
    ObjectChanged,
    ObjectExists,
    ObjectStoreRefused,
    ObjectStoreThrottled,
    ObjectStoreTimedOut,
    ObjectStoreUnavailable,
)
from mainstem.storage.object_stores.guards.wrapped import StoreRequest, WrappedStore

T = TypeVar("T")

DONE = "done"

OUTCOMES: dict[type[BaseException], str] = {
    ObjectAbsent: "absent",
    ObjectExists: "exists",
    ObjectChanged: "changed",
    ObjectStoreRefused: "refused",
    ObjectStoreThrottled: "throttled",
    ObjectStoreTimedOut: "timed_out",
    ObjectStoreUnavailable: "unavailable",
    asyncio.CancelledError: "cancelled",
}
"""The outcome under which a failed request is counted; others are "failed"."""

BOUNDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, float("inf"))
"""Seconds: stores answer in 10 to 100 ms, large parts take longer."""


class Metered(WrappedStore):
    """`ObjectStore` that counts. One call of `write_parts` counts once, however many parts it has."""

    def __init__(self, inner: ObjectStore, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__(inner)
        self._monotonic = monotonic
        self.requests: Counter[tuple[StoreRequest, str]] = Counter({(request, DONE): 0 for request in StoreRequest})
        """By kind and outcome."""
        self.read_bytes = 0
        self.written_bytes = 0
        self._seconds: dict[StoreRequest, list[int]] = {request: [0] * len(BOUNDS) for request in StoreRequest}
        self._seconds_sum: defaultdict[StoreRequest, float] = defaultdict(float)

    async def _send(self, request: StoreRequest, send: Callable[[], Awaitable[T]]) -> T:
        began = self._monotonic()
        outcome = DONE
        try:
            return await send()
        except BaseException as error:
            outcome = next((name for kind, name in OUTCOMES.items() if isinstance(error, kind)), "failed")
            raise
        finally:
            seconds = self._monotonic() - began
            self.requests[request, outcome] += 1
            self._seconds[request][bisect_left(BOUNDS, seconds)] += 1
            self._seconds_sum[request] += seconds

    async def read(self, name: str, ranges: Sequence[ObjectRange]) -> list[Buffer]:
        found = await super().read(name, ranges)
        self.read_bytes += sum(map(len, found))
        return found

    async def write(self, name: str, content: Buffer, *, replaces: str | None = None) -> ObjectInfo:
        info = await super().write(name, content, replaces=replaces)
        self.written_bytes += info.size_bytes
        return info

    async def write_parts(self, name: str, parts: Callable[[], AsyncIterator[Buffer]]) -> ObjectInfo:
        info = await super().write_parts(name, parts)
        self.written_bytes += info.size_bytes
        return info

    def samples(self) -> Iterator[Sample | HistogramSample]:
        for (request, outcome), count in sorted(self.requests.items(), key=lambda item: (item[0][0].value, item[0][1])):
            yield Sample(
                "mainstem_object_store_requests_total",
                "counter",
                "Requests to the object store, those included that were tried again",
                count,
                (("request", request.value), ("outcome", outcome)),
            )
        for direction, size in (("read", self.read_bytes), ("written", self.written_bytes)):
            yield Sample(
                f"mainstem_object_store_{direction}_bytes_total",
                "counter",
                f"Bytes of objects {direction}",
                size,
            )
        for request, counts in self._seconds.items():
            yield HistogramSample(
                "mainstem_object_store_request_seconds",
                "Seconds that requests to the object store took",
                BOUNDS,
                tuple(accumulate(counts)),
                self._seconds_sum[request],
                (("request", request.value),),
            )
