"""The table from method to handler: the rooms of a node register here, and any carrier of calls looks them
up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, NamedTuple

from mainstem.model import Buffer
from mainstem.rpc.wire.identity import Identity
from mainstem.rpc.wire.method import Method, Reply, ReplyT, RequestT


class RpcCall(NamedTuple, Generic[RequestT]):
    """One call, as its handler gets it."""

    request: RequestT
    attachment: Buffer
    """The attachment; no other code writes to it. A kept view of it keeps the memory of its frame."""
    peer: str
    """The caller's name and address, for logs."""
    node: Identity | None = None
    """The calling node; None: a client calls."""
    connection: int = 0
    """The number of the caller's connection: a connection accepted later has a larger one."""


Unary = Callable[[RpcCall[RequestT]], Awaitable[Reply[ReplyT]]]
Prompt = Callable[[RpcCall[RequestT]], Reply[ReplyT]]
Streaming = Callable[[RpcCall[RequestT]], AsyncIterator[Reply[ReplyT]]]


class BoundMethod(NamedTuple):
    """A method and its handler."""

    method: Method[Any, Any]
    handler: Callable[..., Any]
    prompt: bool


class Handlers:
    """All methods that one node serves; every room registers its own."""

    def __init__(self) -> None:
        self._methods: dict[int, BoundMethod] = {}

    def unary(self, method: Method[RequestT, ReplyT], handler: Unary[RequestT, ReplyT]) -> None:
        assert not method.streams, f"{method.name} streams"
        self._add(method, handler, prompt=False)

    def prompt(self, method: Method[RequestT, ReplyT], handler: Prompt[RequestT, ReplyT]) -> None:
        """A handler that answers at once: it must be brief, since everything else waits meanwhile."""
        assert not method.streams, f"{method.name} streams"
        self._add(method, handler, prompt=True)

    def stream(self, method: Method[RequestT, ReplyT], handler: Streaming[RequestT, ReplyT]) -> None:
        assert method.streams, f"{method.name} does not stream"
        self._add(method, handler, prompt=False)

    def _add(self, method: Method[Any, Any], handler: Callable[..., Any], *, prompt: bool) -> None:
        assert method.number not in self._methods, f"method number {method.number} is taken"
        self._methods[method.number] = BoundMethod(method, handler, prompt)

    def find(self, number: int) -> BoundMethod | None:
        return self._methods.get(number)
