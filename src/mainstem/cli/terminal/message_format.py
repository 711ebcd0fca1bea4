"""How a consumed message is written: a format string with kcat's letters, or one JSON object per line."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Any

import click

HELP = (
    "%s value, %k key, %S and %K their sizes (-1: none), %t topic, %p partition, %o offset, %T timestamp, "
    "%h headers, %% percent; \\n, \\t, \\0."
)

_TOKEN = re.compile(r"%(.)|\\(.)|([^%\\]+)", re.DOTALL)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}

Part = Callable[[Any], bytes]
"""Bytes of one part of the format for a `confluent_kafka.Message`."""


def compiled(text: str) -> Callable[[Any], bytes]:
    """The format as a function from message to bytes. Raises click.BadParameter for an unknown letter."""
    parts: list[Part] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise click.BadParameter(f"{text!r} ends within an escape", param_hint="--format")
        parts.append(_part(match))
        position = match.end()
    return lambda message: b"".join(part(message) for part in parts)


def _part(match: re.Match[str]) -> Part:
    letter, escape, plain = match.groups()
    if plain is not None:
        return _constant(plain.encode())
    if escape is not None:
        if escape not in _ESCAPES:
            raise click.BadParameter(f"there is no escape \\{escape}", param_hint="--format")
        return _constant(_ESCAPES[escape])
    if letter == "%":
        return _constant(b"%")
    if letter not in _LETTERS:
        raise click.BadParameter(f"there is no %{letter}; expected {HELP}", param_hint="--format")
    return _LETTERS[letter]


def _constant(content: bytes) -> Part:
    return lambda message: content


def _size(content: bytes | None) -> bytes:
    return b"-1" if content is None else str(len(content)).encode()


def _headers(message: Any) -> bytes:
    pairs = message.headers() or []
    return b",".join(key.encode() + b"=" + (b"NULL" if value is None else value) for key, value in pairs)


_LETTERS: dict[str, Part] = {
    "s": lambda message: message.value() or b"",
    "k": lambda message: message.key() or b"",
    "S": lambda message: _size(message.value()),
    "K": lambda message: _size(message.key()),
    "t": lambda message: message.topic().encode(),
    "p": lambda message: str(message.partition()).encode(),
    "o": lambda message: str(message.offset()).encode(),
    "T": lambda message: str(message.timestamp()[1]).encode(),
    "h": _headers,
}


def as_json_line(message: Any) -> bytes:
    """One JSON object and a newline, as `json_lines.message_of` reads it back without a loss. A key or value that is
    not UTF-8 stands under `key_base64`, `value_base64` instead; headers are [name, value] pairs, in which a value that
    is not UTF-8 is {"base64": text}."""
    entry: dict[str, object] = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": message.timestamp()[1],
    }
    entry |= _text("key", message.key()) | _text("value", message.value())
    entry["headers"] = [[name, _header_value(value)] for name, value in message.headers() or []]
    return json.dumps(entry, ensure_ascii=False).encode() + b"\n"


def _text(name: str, content: bytes | None) -> dict[str, str | None]:
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}


def _header_value(content: bytes | None) -> str | dict[str, str] | None:
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}
