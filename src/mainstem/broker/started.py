"""Requests that begin during their dispatch, and responses that are encoded by their handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from mainstem.model import Buffer
from mainstem.prompt_future import PromptFuture

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Started(Protocol[R_co]):
    """A request that needs no task to end."""

    @property
    def future(self) -> PromptFuture[Any] | None:
        """What is waited for; None: nothing."""
        ...

    @property
    def last(self) -> bool:
        """Nothing more is taken from the connection: see `ports.Exchange`."""
        ...

    def finish(self, results: Any) -> R_co | None:
        """Make the response (None: there is none) of what the future comes back with, without one of an empty list.
        Raises UnanswerableRequest, which closes the connection."""
        ...


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
