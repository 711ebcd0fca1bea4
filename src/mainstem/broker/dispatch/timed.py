"""Charges clients for the time that their requests take of the event loop (`request_percentage`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import replace
from typing import Any

from mainstem.broker.request_context import RequestContext
from mainstem.broker.started import Later
from mainstem.broker.throttling import Throttling

THROTTLE_TIME_MS = "throttle_time_ms"


async def charged(
    handle: Later[Any], throttling: Throttling, call: RequestContext, monotonic: Callable[[], float]
) -> Any:
    """Handle a request; its response tells the client for how long it is throttled."""
    steps = _Steps(handle(), monotonic)
    del handle  # it holds the request, which the work lets go as soon as it can
    response = await steps
    throttle_ms = throttling.took(call.session, call.client_id, steps.seconds)
    if throttle_ms > getattr(response, THROTTLE_TIME_MS, throttle_ms):
        return replace(response, **{THROTTLE_TIME_MS: throttle_ms})
    return response


class _Steps:
    """Work that is awaited as it is, and the time of its steps: what it waits for takes none."""

    def __init__(self, work: Awaitable[Any], monotonic: Callable[[], float]) -> None:
        self._work = work
        self._monotonic = monotonic
        self.seconds = 0.0

    def __await__(self) -> Generator[Any, Any, Any]:
        steps: Any = self._work.__await__()
        value: Any = None
        error: BaseException | None = None
        while True:
            before = self._monotonic()
            try:
                awaited = steps.send(value) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value
            finally:
                self.seconds += self._monotonic() - before
            try:
                value, error = (yield awaited), None
            except BaseException as thrown:
                value, error = None, thrown
