"""Which handler answers which method: how the rooms of a node are called, whoever carries the calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, NamedTuple

from mainstem.model import Buffer
from mainstem.rpc.identity import Identity
from mainstem.rpc.method import Method, Reply, ReplyT, RequestT


class Call(NamedTuple, Generic[RequestT]):
    """What a handler gets."""

    request: RequestT
    attachment: Buffer
    """Nobody else writes to it; keeping a view of it keeps the memory of its frame."""
    peer: str
    """The caller's name and address, for logs."""
    node: Identity | None = None
    """Which node calls; None: a client."""
    connection: int = 0
    """Counts the accepted connections: a later one has a larger number."""


Unary = Callable[[Call[RequestT]], Awaitable[Reply[ReplyT]]]
Prompt = Callable[[Call[RequestT]], Reply[ReplyT]]
Streaming = Callable[[Call[RequestT]], AsyncIterator[Reply[ReplyT]]]


class Found(NamedTuple):
    """A method and what answers it."""

    method: Method[Any, Any]
    handler: Callable[..., Any]
    prompt: bool


class Handlers:
    """Of one node. Every room registers its own."""

    def __init__(self) -> None:
        self._methods: dict[int, Found] = {}

    def unary(self, method: Method[RequestT, ReplyT], handler: Unary[RequestT, ReplyT]) -> None:
        assert not method.streams, f"{method.name} streams"
        self._add(method, handler, prompt=False)

    def prompt(self, method: Method[RequestT, ReplyT], handler: Prompt[RequestT, ReplyT]) -> None:
        """A handler that answers at once: it must be brief, everything else waits."""
        assert not method.streams, f"{method.name} streams"
        self._add(method, handler, prompt=True)

    def stream(self, method: Method[RequestT, ReplyT], handler: Streaming[RequestT, ReplyT]) -> None:
        assert method.streams, f"{method.name} does not stream"
        self._add(method, handler, prompt=False)

    def _add(self, method: Method[Any, Any], handler: Callable[..., Any], *, prompt: bool) -> None:
        assert method.number not in self._methods, f"method number {method.number} is taken"
        self._methods[method.number] = Found(method, handler, prompt)

    def find(self, number: int) -> Found | None:
        return self._methods.get(number)
