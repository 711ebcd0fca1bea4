"""Arrays that are encoded before the message that contains them.

A response with a hundred thousand elements is encoded piece by piece, between turns of the event loop, and elements
that many responses share are encoded once. `codec.encode_elements` makes the bytes of some elements; an
`EncodedArray` of them stands in the message for the array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from mainstem.model import Buffer

Element = TypeVar("Element")


class EncodedArray:
    """`count` elements in `buffers`, encoded for the version their message is written in. For writers only; small
    buffers are joined with what surrounds them, large ones are sent as they are."""

    __slots__ = ("buffers", "count")

    def __init__(self, count: int, buffers: Sequence[Buffer]) -> None:
        self.count = count
        self.buffers = tuple(buffers)


def elements(array: tuple[Element, ...] | EncodedArray | None) -> tuple[Element, ...]:
    """The elements of an array of a message that was read, in which there is no `EncodedArray`. Raises TypeError for
    one, and for null."""
    if not isinstance(array, tuple):
        raise TypeError(f"{type(array).__name__} in place of an array that was read")
    return array
