"""The handler of a method, as whoever carries calls between nodes finds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from mainstem.rpc.handlers import Handlers
from mainstem.rpc.wire.method import Method


class Registers(Protocol):
    def register(self, handlers: Handlers) -> None: ...


def handler_of(served_by: Registers, method: Method[Any, Any]) -> Callable[..., Any]:
    """The answer of a part of a node to calls of a method with."""
    handlers = Handlers()
    served_by.register(handlers)
    found = handlers.find(method.number)
    assert found is not None, f"{method.name} is not served"
    return found.handler
