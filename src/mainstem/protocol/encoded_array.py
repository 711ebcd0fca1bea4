"""Arrays that were encoded before the message they stand in.

A response that lists a hundred thousand things is encoded piece by piece, between turns of the event loop, and
what many responses share is encoded once. `codec.encode_elements` makes the bytes of some elements; an
`EncodedArray` of them stands in the message for the array.
"""

from __future__ import annotations

from collections.abc import Sequence

from mainstem.model import Buffer


class EncodedArray:
    """`count` elements in `buffers`, encoded for the version their message is written in. For writers only; small
    buffers are joined with what surrounds them, large ones are sent as they are."""

    __slots__ = ("buffers", "count")

    def __init__(self, count: int, buffers: Sequence[Buffer]) -> None:
        self.count = count
        self.buffers = tuple(buffers)
