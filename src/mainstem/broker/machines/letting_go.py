"""Frees what a machine held, once it serves no more, in pieces with a turn of the event loop for each.

A coordinator of a hundred thousand groups holds a million offsets: to drop it as a whole, when another node takes over
or when the log has failed, stops the event loop for a tenth of a second while the interpreter frees them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from typing import Any, Protocol

LET_GO_AT_ONCE = 500
"""Groups, their offsets, or transactional ids: a tenth of a millisecond, or half a one where a group holds as much as
ten offsets."""

END = object()


class Emptied(Collection[object], Protocol):
    """A dictionary that nobody fills any more."""

    def popitem(self) -> object: ...


def emptied(content: Emptied) -> Iterator[None]:
    """Empty a dictionary, a piece at a time. Others may look at it in between, and find less and less."""
    while content:
        for _ in range(min(LET_GO_AT_ONCE, len(content))):
            content.popitem()
        yield


def emptied_to_its_leaves(content: dict[str, dict[str, dict[int, Any]]]) -> Iterator[None]:
    """The same for what is found by three keys, where those of a single first key may be a million."""
    freed = 0
    while content:
        branches = content.popitem()[1]
        while branches:
            leaves = branches.popitem()[1]
            while leaves:
                leaves.popitem()
                freed += 1
                if freed % LET_GO_AT_ONCE == 0:
                    yield
    yield


def let_go_in_turns(pieces: Iterator[None]) -> None:
    """Have a piece done in each of the event loop's next turns, until none is left. A loop that ends before that lets
    go of the rest at once."""
    loop = asyncio.get_running_loop()

    def let_go() -> None:
        if next(pieces, END) is not END:
            loop.call_soon(let_go)

    loop.call_soon(let_go)
