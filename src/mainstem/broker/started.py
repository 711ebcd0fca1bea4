"""Requests that begin during their dispatch, and responses that are encoded by their handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from mainstem.model import Buffer
from mainstem.ports import Scattered
from mainstem.prompt_future import PromptFuture

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Started(Protocol[R_co]):
    """A request that finishes without a task."""

    @property
    def future(self) -> PromptFuture[Any] | None:
        """The future that it waits for; None: it does not wait."""
        ...

    @property
    def last(self) -> bool:
        """Whether nothing more is taken from the connection: see `ports.Exchange`."""
        ...

    @property
    def holds(self) -> int:
        """See `ports.Exchange`."""
        ...

    def finish(self) -> R_co | None:
        """Make the response (None: there is none), once the future is done. Raises the future's error, and
        UnanswerableRequest, which closes the connection."""
        ...

    def fail(self) -> R_co | None:
        """Make a response with an error for every item, after `finish` has raised. Raises
        UnanswerableRequest."""
        ...


class EncodedFrame(NamedTuple):
    """A response whose whole frame is already written."""

    buffers: Sequence[Buffer | Scattered]
    """The buffers to send one after the other, from the length on."""
    errors: Mapping[int, int]
    """How often each error code occurs in it, for statistics."""
    last: bool = False
    """Nothing more is taken from the connection: see `ports.LastReply`."""


class Waiting(NamedTuple, Generic[R]):
    """A request that waits without a task. When `future` is settled, `again` goes on with it; cancel it to give up."""

    future: PromptFuture[None]
    again: Callable[[], R | Waiting[R] | Later[R]]


Later = Callable[[], Awaitable[R]]
"""The rest of a request that could not be answered within its dispatch: run it in a task, once."""
