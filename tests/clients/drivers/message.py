"""The messages that a test sends and gets back, the same for every client, and messages that are easily got wrong."""

from __future__ import annotations

from typing import NamedTuple

Headers = tuple[tuple[str, bytes | None], ...]

FIRST_TIMESTAMP_MS = 1_700_000_000_000


class Message(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    """None: the client's own clock decides."""


class Received(NamedTuple):
    offset: int
    value: bytes | None
    key: bytes | None
    headers: Headers
    timestamp_ms: int

    @property
    def content(self) -> tuple[bytes | None, bytes | None, Headers]:
        return self.value, self.key, self.headers


def content(message: Message) -> tuple[bytes | None, bytes | None, Headers]:
    return message.value, message.key, message.headers


EVERY_BYTE = bytes(range(256))

AWKWARD: tuple[Message, ...] = tuple(
    Message(value, key, headers, FIRST_TIMESTAMP_MS + 1_000 * number)
    for number, (value, key, headers) in enumerate(
        (
            (b"plain", b"key", ()),
            (b"no key", None, ()),
            (b"empty key", b"", ()),
            (None, b"tombstone", ()),
            (b"", b"empty value", ()),
            (b"", b"", ()),
            (None, None, ()),
            (EVERY_BYTE, EVERY_BYTE, ()),
            (b"headers", b"key", (("name", b"value"), ("name", b"again"), ("empty", b""))),
            (b"null header", b"key", (("null", None), ("after", b"it"))),
            (b"compresses well " * 4_000, b"long", ()),
        )
    )
)
"""Null and empty keys and values, every byte, repeated, empty and null headers, something to compress."""
