"""Messages as JSON lines: what `mainstem consume --json` writes, read back for `mainstem produce --json-lines`.

A line is an object with `value` or `value_base64` (null: a tombstone), and where there are such `key` or `key_base64`,
`headers`, `timestamp` (ms since the epoch) and `partition`. `topic` and `offset`, where a message came from, are
accepted and have no meaning for a message that is yet to be sent.
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

import msgspec

HEADERS_MAX = 10_000
"""Of one message; a line with more is a mistake."""


class JsonMessage(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int | None
    """None: it has none, as from clients of old."""
    partition: int | None


class _Base64(msgspec.Struct, forbid_unknown_fields=True):
    base64: str


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    key: str | msgspec.UnsetType | None = msgspec.UNSET
    key_base64: str | msgspec.UnsetType = msgspec.UNSET
    value: str | msgspec.UnsetType | None = msgspec.UNSET
    value_base64: str | msgspec.UnsetType = msgspec.UNSET
    headers: list[tuple[str, str | _Base64 | None]] = []
    timestamp: int | None = None
    partition: int | None = None
    topic: str | None = None
    offset: int | None = None


_DECODER = msgspec.json.Decoder(_Line)


def message_of(line: bytes) -> JsonMessage:
    """The message that a line holds. Raises ValueError that says what is wrong with it."""
    try:
        read = _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"not a message in JSON: {error}") from None
    if read.value is msgspec.UNSET and read.value_base64 is msgspec.UNSET:
        raise ValueError("value is missing; write null for a tombstone, or value_base64")
    if len(read.headers) > HEADERS_MAX:
        raise ValueError(f"{len(read.headers)} headers; at most {HEADERS_MAX} are allowed")
    if read.partition is not None and not 0 <= read.partition < 1 << 31:
        raise ValueError(f"partition {read.partition} is not in the range 0<=x<2147483648")
    if read.timestamp is not None and not -1 <= read.timestamp < 1 << 63:
        raise ValueError(f"timestamp {read.timestamp} is not a time in ms since 1970")
    return JsonMessage(
        key=_content("key", read.key, read.key_base64),
        value=_content("value", read.value, read.value_base64),
        headers=[(name, _header(name, value)) for name, value in read.headers],
        timestamp_ms=None if read.timestamp in (None, -1) else read.timestamp,
        partition=read.partition,
    )


def _content(name: str, text: str | msgspec.UnsetType | None, encoded: str | msgspec.UnsetType) -> bytes | None:
    if encoded is msgspec.UNSET:
        return text.encode() if isinstance(text, str) else None
    if text is not msgspec.UNSET:
        raise ValueError(f"{name} and {name}_base64 exclude each other")
    return _decoded(f"{name}_base64", encoded)


def _header(name: str, value: str | _Base64 | None) -> bytes | None:
    if isinstance(value, _Base64):
        return _decoded(f"header {name}", value.base64)
    return None if value is None else value.encode()


def _decoded(name: str, text: str | msgspec.UnsetType) -> bytes:
    assert isinstance(text, str)
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{name} is not base64: {error}") from None
