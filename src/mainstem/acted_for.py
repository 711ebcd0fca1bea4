"""For which client this node does something, for calls to other nodes that are made on the way.

A task that handles a client's request enters `acting_for`; whatever it awaits finds the client by `acted_for`. Tasks
that it starts and that outlive the request act for nobody from the request's end on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from mainstem.model import ForwardedClient

T = TypeVar("T")


class _Acting:
    __slots__ = ("client",)

    def __init__(self, client: ForwardedClient) -> None:
        self.client: ForwardedClient | None = client


_acting: ContextVar[_Acting | None] = ContextVar("acting for a client", default=None)


@contextmanager
def acting_for(client: ForwardedClient) -> Iterator[None]:
    acting = _Acting(client)
    before = _acting.set(acting)
    try:
        yield
    finally:
        acting.client = None
        _acting.reset(before)


def acted_for() -> ForwardedClient | None:
    """None: the node does it for itself."""
    acting = _acting.get()
    return None if acting is None else acting.client


async def handled_for(handle: Callable[[], Awaitable[T]], client: ForwardedClient) -> T:
    """Handle a request of this client."""
    work = handle()
    del handle  # it holds the request, which the work lets go as soon as it can
    with acting_for(client):
        return await work
