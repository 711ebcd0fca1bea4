"""The answers of one connection that handlers have begun and that come later, without a task for each.

A task, its deadline and its turns of the event loop cost as much as all else that a node does for a message with a
batch or two; an append has begun when its request is decoded, and ends with the write of its block.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from mainstem.prompt_future import PromptFuture
from mainstem.rpc.wire.method import Method, Reply

Settled = Callable[[int, Method[Any, Any], PromptFuture[Reply[Any]]], None]
"""Is told of a request's answer, which may be an error or cancelled."""


@dataclass(slots=True, eq=False)
class _Begun:
    answer: PromptFuture[Reply[Any]]
    size: int
    timer: asyncio.TimerHandle | None


class BegunAnswers:
    """Each answer is told to `settled` once, or to `late` its request, if its deadline passes before."""

    def __init__(self, settled: Settled, late: Callable[[int, float], None]) -> None:
        self._settled = settled
        self._late = late
        self._open: dict[int, _Begun] = {}
        self.bytes = 0
        """Bytes of the requests that are not answered."""

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._open

    def add(
        self, request_id: int, size: int, method: Method[Any, Any], answer: PromptFuture[Reply[Any]], seconds: float
    ) -> None:
        """`size`: of the request; `seconds`: until its deadline, 0: there is none."""
        if answer.done():
            self._settled(request_id, method, answer)
            return
        timer = asyncio.get_running_loop().call_later(seconds, self._expire, request_id, seconds) if seconds else None
        self._open[request_id] = _Begun(answer, size, timer)
        self.bytes += size
        answer.add_done_callback(partial(self._end, request_id, method))

    def cancel(self, request_id: int) -> None:
        """Its caller does not wait any more; unknown requests have been answered."""
        if (begun := self._open.get(request_id)) is not None:
            begun.answer.cancel()

    def drop(self) -> None:
        """Nobody waits for any of them any more, and nobody is told."""
        for request_id in list(self._open):
            self._take(request_id).answer.cancel()

    def _end(self, request_id: int, method: Method[Any, Any], answer: PromptFuture[Reply[Any]]) -> None:
        if request_id in self._open:
            self._take(request_id)
            self._settled(request_id, method, answer)

    def _expire(self, request_id: int, seconds: float) -> None:
        begun = self._take(request_id)
        self._late(request_id, seconds)
        begun.answer.cancel()

    def _take(self, request_id: int) -> _Begun:
        begun = self._open.pop(request_id)
        self.bytes -= begun.size
        if begun.timer is not None:
            begun.timer.cancel()
        return begun
