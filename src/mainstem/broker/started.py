"""Requests that begin during their dispatch, and responses that are encoded by their handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from mainstem.model import Buffer
from mainstem.prompt_future import PromptFuture

R = TypeVar("R")


class Started(NamedTuple, Generic[R]):
    """A request that needs no task to end. `finish` makes the response (None: there is none) of what `future` comes
    back with, or without a future of an empty list, at once. It may raise UnanswerableRequest, which closes the
    connection."""

    future: PromptFuture[Any] | None
    finish: Callable[[Any], R | None]


class EncodedFrame(NamedTuple):
    """A response whose whole frame is written already."""

    buffers: list[Buffer]
    """To be sent one after the other, from the length on."""
    errors: Sequence[int]
    """The error codes in it, for statistics."""


class Waiting(NamedTuple, Generic[R]):
    """A request that waits without a task. When `future` is settled, `again` goes on with it; cancel it to give up."""

    future: PromptFuture[None]
    again: Callable[[], R | Waiting[R] | Later[R]]


Later = Callable[[], Awaitable[R]]
"""How a request goes on that could not be answered within its dispatch: to be run in a task, once."""
