"""A future whose callbacks run at once.

asyncio runs the callbacks of a future in the next turn of its loop, which costs a turn per link where futures are
chained, as they are between the store, the dispatcher and a connection. This one calls them from `set_result`. Code
that settles it must therefore be done with its own state, and listeners must be brief and must not raise. An error of
a listener is logged and goes no further: it must reach neither the code that settles, which often writes the batches
of all clients, nor the other listeners.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

LISTENER_FAILED = "a listener that was told of a result failed"

_PENDING, _FINISHED, _FAILED, _CANCELLED = range(4)


class PromptFuture(Generic[T]):
    """As much of `asyncio.Future` as chained results need; `await` works as well. Code with more state per
    request makes a subclass of it: there are several futures per request."""

    __slots__ = ("_callbacks", "_state", "_value")

    def __init__(self) -> None:
        self._state = _PENDING
        self._value: Any = None
        """The result or the error."""
        self._callbacks: tuple[Callable[[Any], object], ...] = ()

    def done(self) -> bool:
        return self._state != _PENDING

    def cancelled(self) -> bool:
        return self._state == _CANCELLED

    def result(self) -> T:
        """The result. Raises the error it was settled with, `CancelledError` when it was cancelled."""
        if self._state == _FINISHED:
            return self._value  # type: ignore[no-any-return]
        error = self.exception()
        assert error is not None
        raise error

    def exception(self) -> BaseException | None:
        if self._state == _CANCELLED:
            raise asyncio.CancelledError
        assert self._state != _PENDING, "not settled yet"
        return self._value if self._state == _FAILED else None

    def set_result(self, result: T) -> None:
        # as `_settle`, without the call: each request settles several futures
        assert self._state == _PENDING, "settled twice"
        self._state = _FINISHED
        self._value = result
        callbacks = self._callbacks
        self._callbacks = ()
        for callback in callbacks:
            try:
                callback(self)
            except Exception:
                logger.exception(LISTENER_FAILED)

    def set_exception(self, error: BaseException) -> None:
        self._settle(_FAILED, error)

    def cancel(self) -> bool:
        if self._state != _PENDING:
            return False
        self._settle(_CANCELLED, None)
        return True

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call back with this future, at once if it is settled."""
        if self._state != _PENDING:
            callback(self)
        else:
            self._callbacks += (callback,)

    def _settle(self, state: int, value: Any) -> None:
        assert self._state == _PENDING, "settled twice"
        self._state = state
        self._value = value
        callbacks = self._callbacks
        self._callbacks = ()
        for callback in callbacks:
            try:
                callback(self)
            except Exception:
                logger.exception(LISTENER_FAILED)

    @classmethod
    def settled(cls, result: T) -> PromptFuture[T]:
        """One that has its result already: `await` goes on at once."""
        future: PromptFuture[T] = cls()
        future._state = _FINISHED
        future._value = result
        return future

    def __await__(self) -> Generator[Any, None, T]:
        if self._state == _PENDING:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.add_done_callback(lambda _: None if waiter.done() else waiter.set_result(None))
            yield from waiter
        return self.result()
