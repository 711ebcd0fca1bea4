"""A future whose callbacks run at once.

asyncio runs the callbacks of a future in the next turn of its loop, which costs a turn per link where futures are
chained, as they are between the store, the dispatcher and a connection. This one calls them from `set_result`. Who
settles it must therefore be done with its own state, and who listens must be brief and must not raise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class PromptFuture(Generic[T]):
    """As much of `asyncio.Future` as those who pass results on need; `await` works as well."""

    __slots__ = ("_callbacks", "_cancelled", "_error", "_result", "_settled")

    def __init__(self) -> None:
        self._settled = False
        self._cancelled = False
        self._error: BaseException | None = None
        self._result: T | None = None
        self._callbacks: list[Callable[[Any], object]] = []

    def done(self) -> bool:
        return self._settled

    def cancelled(self) -> bool:
        return self._cancelled

    def result(self) -> T:
        """The result. Raises the error it was settled with, `CancelledError` when it was cancelled."""
        if self._cancelled:
            raise asyncio.CancelledError
        if self._error is not None:
            raise self._error
        assert self._settled, "not settled yet"
        return self._result  # type: ignore[return-value]

    def exception(self) -> BaseException | None:
        if self._cancelled:
            raise asyncio.CancelledError
        assert self._settled, "not settled yet"
        return self._error

    def set_result(self, result: T) -> None:
        self._result = result
        self._settle()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._settle()

    def cancel(self) -> bool:
        if self._settled:
            return False
        self._cancelled = True
        self._settle()
        return True

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call back with this future, at once if it is settled."""
        if self._settled:
            callback(self)
        else:
            self._callbacks.append(callback)

    def _settle(self) -> None:
        assert not self._settled, "settled twice"
        self._settled = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def __await__(self) -> Generator[Any, None, T]:
        if not self._settled:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.add_done_callback(lambda _: None if waiter.done() else waiter.set_result(None))
            yield from waiter
        return self.result()
