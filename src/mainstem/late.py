"""A call whose other end is made later: where two parts need each other, the one that is made first gets a `Late`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

Given = ParamSpec("Given")
Got = TypeVar("Got")


class Late(Generic[Given, Got]):
    """Calls what it is bound to. It is bound once, before anybody calls it."""

    def __init__(self) -> None:
        self._bound: Callable[Given, Got] | None = None

    def bind(self, bound: Callable[Given, Got]) -> None:
        assert self._bound is None, "a late call is bound once"
        self._bound = bound

    def __call__(self, *given: Given.args, **named: Given.kwargs) -> Got:
        assert self._bound is not None, "a late call is bound before it is made"
        return self._bound(*given, **named)
