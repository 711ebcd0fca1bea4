"""Bounds the requests under way at one store, and asks for fewer when the store says that it is asked too much.

The bound is halved by an answer of 503 SlowDown, at most once in the time that the requests take that were under way at
the time, and grows by one with as many successes as the bound is high: the rule by which TCP shares a link, so that
several nodes at one store come to share what it gives.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from mainstem.model import Sample
from mainstem.ports import ObjectStore
from mainstem.storage.object_stores.errors import ObjectStoreThrottled
from mainstem.storage.object_stores.guards.wrapped import StoreRequest, WrappedStore

T = TypeVar("T")


class BoundedInFlight(WrappedStore):
    """`ObjectStore` that has `requests_max` requests under way at most. Those that wait go in the order in which they
    came."""

    def __init__(self, inner: ObjectStore, requests_max: int, check: Callable[[], None] = lambda: None) -> None:
        """`check` is called before a request waits for its turn, and raises when there is no use in that."""
        super().__init__(inner)
        self._check = check
        self._requests_max = requests_max
        self.bound = float(requests_max)
        self.under_way = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._sent = 0
        self._halved_at = 0
        """Requests sent before this number do not halve the bound again: they were sent under the larger one."""

    async def _send(self, request: StoreRequest, send: Callable[[], Awaitable[T]]) -> T:
        await self._enter()
        self._sent += 1
        number = self._sent
        try:
            result = await send()
        except ObjectStoreThrottled:
            if number > self._halved_at:
                self.bound = max(1.0, self.bound / 2)
                self._halved_at = self._sent
            raise
        else:
            self.bound = min(float(self._requests_max), self.bound + 1 / self.bound)
            return result
        finally:
            self.under_way -= 1
            self._let_in()

    async def _enter(self) -> None:
        self._check()
        if self.under_way < int(self.bound) and not self._waiting:
            self.under_way += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # its place was given to it already
                self.under_way -= 1
                self._let_in()
            raise

    def _let_in(self) -> None:
        while self._waiting and self.under_way < int(self.bound):
            turn = self._waiting.popleft()
            if not turn.done():
                self.under_way += 1
                turn.set_result(None)

    def samples(self) -> Iterator[Sample]:
        yield Sample("mainstem_object_store_requests_in_flight", "gauge", "Requests under way", self.under_way)
        yield Sample(
            "mainstem_object_store_requests_in_flight_bound",
            "gauge",
            "Requests that may be under way: fewer after the store asked for fewer",
            int(self.bound),
        )
