"""Calls that are begun at once, as `rpc.node_calls.NodeCalls.begin` makes them, over those that are awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from mainstem.prompt_future import PromptFuture
from mainstem.rpc.wire.method import Reply

_under_way: set[asyncio.Task[Reply[Any]]] = set()


def begun(call: Coroutine[Any, Any, Reply[Any]]) -> PromptFuture[Reply[Any]]:
    """The answer of a call, made in a task that ends with it."""
    answer: PromptFuture[Reply[Any]] = PromptFuture()
    task = asyncio.get_running_loop().create_task(call)
    _under_way.add(task)

    def ended(task: asyncio.Task[Reply[Any]]) -> None:
        _under_way.discard(task)
        if answer.done():
            return
        if task.cancelled():
            answer.cancel()
        elif (error := task.exception()) is not None:
            answer.set_exception(error)
        else:
            answer.set_result(task.result())

    task.add_done_callback(ended)
    answer.add_done_callback(lambda _: task.cancel())
    return answer
