"""For which client this node does something, for calls to other nodes that are made on the way.

A task that handles a client's request enters `acting_for`; whatever it awaits finds the client by `acted_for`. Tasks
that it starts and that outlive the request act for nobody from the request's end on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from mainstem.model import ForwardedClient


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
