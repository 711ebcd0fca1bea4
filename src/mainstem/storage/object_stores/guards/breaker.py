"""Leaves a store alone that has been down: one probe at a time, everything else fails at once.

Without it each reader would wait out its own time at a store that is known to be gone, and all of them would come back
together when it does. An answer of any kind, a refusal included, shows that the store is up.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from mainstem.model import Sample
from mainstem.ports import ObjectStore
from mainstem.storage.object_stores.errors import (
    ObjectStoreDown,
    ObjectStoreError,
    ObjectStoreOutage,
    ObjectStoreRefused,
    ObjectStoreThrottled,
)
from mainstem.storage.object_stores.guards.wrapped import StoreRequest, WrappedStore

T = TypeVar("T")


class Breaker(WrappedStore):
    """`ObjectStore` that raises `ObjectStoreDown` at once while the store is down. After `failures_max` outages in a
    row it is; the next request after `probe_seconds` is the probe, and each one that fails doubles the time to the
    next, up to `probe_seconds_max`."""

    def __init__(
        self,
        inner: ObjectStore,
        *,
        failures_max: int,
        probe_seconds: float,
        probe_seconds_max: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(inner)
        self._failures_max = failures_max
        self._probe_seconds = probe_seconds
        self._probe_seconds_max = probe_seconds_max
        self._monotonic = monotonic
        self._failures = 0
        """Outages in a row."""
        self._reason: str | None = None
        """The error that the last probe met with; None: the store is not down."""
        self._pause = probe_seconds
        self._probe_at = 0.0
        self._probing = False
        self.fault = ""
        """Why the last request got no answer, or was refused; empty: it was answered."""

    @property
    def down(self) -> bool:
        return self._reason is not None

    def check(self) -> None:
        """Raises `ObjectStoreDown` when a request that is sent now would not be a probe."""
        if self._reason is None:
            return
        left = self._probe_at - self._monotonic()
        if self._probing or left > 0:
            raise ObjectStoreDown(
                f"the object store is down and is asked again in {max(left, 0.0):.1f} s: {self._reason}"
            )

    async def _send(self, request: StoreRequest, send: Callable[[], Awaitable[T]]) -> T:
        self.check()
        probe = self.down
        if probe:
            self._probing = True
        try:
            result = await send()
        except ObjectStoreThrottled:
            self._is_up()
            raise
        except ObjectStoreOutage as error:
            self._failed(error, probe)
            raise
        except ObjectStoreError as error:
            self._is_up(str(error) if isinstance(error, ObjectStoreRefused) else "")
            raise
        else:
            self._is_up()
            return result
        finally:
            if probe:
                self._probing = False

    def _is_up(self, fault: str = "") -> None:
        self.fault = fault
        self._failures = 0
        self._reason = None
        self._pause = self._probe_seconds

    def _failed(self, error: ObjectStoreOutage, probe: bool) -> None:
        self.fault = str(error)
        self._failures += 1
        if self._reason is None:
            if self._failures >= self._failures_max:
                self._reason = str(error)
                self._probe_at = self._monotonic() + self._pause
        elif probe:
            self._reason = str(error)
            self._pause = min(2 * self._pause, self._probe_seconds_max)
            self._probe_at = self._monotonic() + self._pause

    def samples(self) -> Iterator[Sample]:
        yield Sample("mainstem_object_store_down", "gauge", "1 while the object store is left alone", int(self.down))
