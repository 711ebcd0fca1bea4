"""The table from method to handler: the rooms of a node register here, and any carrier of calls looks them
up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, NamedTuple

from mainstem.model import Buffer
from mainstem.prompt_future import PromptFuture
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
Begin = Callable[[RpcCall[RequestT]], PromptFuture[Reply[ReplyT]] | None]
Prompt = Callable[[RpcCall[RequestT]], Reply[ReplyT]]
Streaming = Callable[[RpcCall[RequestT]], AsyncIterator[Reply[ReplyT]]]


class BoundMethod(NamedTuple):
    """A method and its handler."""

    method: Method[Any, Any]
    handler: Callable[..., Any]
    prompt: bool = False
    begin: Callable[[RpcCall[Any]], PromptFuture[Reply[Any]] | None] | None = None
    """Begins the answer at once, where it can."""

    def answer(self, call: RpcCall[Any]) -> Awaitable[Reply[Any]]:
        """The one answer, for carriers of calls that have a task for each."""
        begun = self.begin(call) if self.begin is not None else None
        answer: Awaitable[Reply[Any]] = self.handler(call) if begun is None else begun
        return answer


class Handlers:
    """All methods that one node serves; every room registers its own."""

    def __init__(self) -> None:
        self._methods: dict[int, BoundMethod] = {}

    def unary(
        self,
        method: Method[RequestT, ReplyT],
        handler: Unary[RequestT, ReplyT],
        begin: Begin[RequestT, ReplyT] | None = None,
    ) -> None:
        """`begin`: is asked first, as soon as a request is there and in the order of requests, and answers without a
        task of its own by a future, which may be cancelled; None: the handler answers. It must be brief."""
        assert not method.streams, f"{method.name} streams"
        self._add(BoundMethod(method, handler, begin=begin))

    def prompt(self, method: Method[RequestT, ReplyT], handler: Prompt[RequestT, ReplyT]) -> None:
        """A handler that answers at once: it must be brief, since everything else waits meanwhile."""
        assert not method.streams, f"{method.name} streams"
        self._add(BoundMethod(method, handler, prompt=True))

    def stream(self, method: Method[RequestT, ReplyT], handler: Streaming[RequestT, ReplyT]) -> None:
        assert method.streams, f"{method.name} does not stream"
        self._add(BoundMethod(method, handler))

    def _add(self, bound: BoundMethod) -> None:
        number = bound.method.number
        assert number not in self._methods, f"method number {number} is taken"
        self._methods[number] = bound

    def find(self, number: int) -> BoundMethod | None:
        return self._methods.get(number)
