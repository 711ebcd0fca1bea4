"""One load per key at a time: who asks while a load is under way gets what it brings.

The first to ask does the work in its own task. If that task is cancelled, the next one waiting starts over;
if the load fails, all who wait get the error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class _Landed(NamedTuple, Generic[Value]):
    value: Value


class SingleFlight(Generic[Key, Value]):
    """Joins concurrent loads of the same key."""

    def __init__(self) -> None:
        self._under_way: dict[Key, asyncio.Future[_Landed[Value] | Exception | None]] = {}
        """Each brings what was loaded, the error, or None: it was cancelled."""

    def __contains__(self, key: Key) -> bool:
        return key in self._under_way

    async def run(self, key: Key, load: Callable[[], Awaitable[Value]]) -> Value:
        """The result of `load`, or of the load of this key that is under way; raises what that raises."""
        while (waiting := self._under_way.get(key)) is not None:
            landed = await asyncio.shield(waiting)
            if isinstance(landed, Exception):
                raise landed
            if landed is not None:
                return landed.value
        future: asyncio.Future[_Landed[Value] | Exception | None] = asyncio.get_running_loop().create_future()
        self._under_way[key] = future
        outcome: _Landed[Value] | Exception | None = None
        try:
            value = await load()
            outcome = _Landed(value)
            return value
        except Exception as error:
            outcome = error
            raise
        finally:
            del self._under_way[key]
            future.set_result(outcome)

    async def run_together(self, keys: Sequence[Key], load: Callable[[], Awaitable[Sequence[Value | None]]]) -> None:
        """Load several keys in one go, of which no load is under way. `load` brings None for those that whoever wants
        them has to load alone. Raises what it does."""
        assert not any(key in self._under_way for key in keys), "who asks for a key that is under way waits for it"
        loop = asyncio.get_running_loop()
        futures: dict[Key, asyncio.Future[_Landed[Value] | Exception | None]] = {
            key: loop.create_future() for key in keys
        }
        self._under_way.update(futures)
        outcomes: list[_Landed[Value] | Exception | None] = [None] * len(keys)
        try:
            outcomes = [None if value is None else _Landed(value) for value in await load()]
        except Exception as error:
            outcomes = [error] * len(keys)
            raise
        finally:
            for (key, future), outcome in zip(futures.items(), outcomes, strict=True):
                del self._under_way[key]
                future.set_result(outcome)
