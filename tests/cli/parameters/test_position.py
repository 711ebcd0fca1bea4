"""Words for a place in a queue, and message formats."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest

from mainstem.cli.parameters.position import Anchor, Position, parsed
from mainstem.cli.terminal.message_format import as_json_line, compiled


class FakeMessage(NamedTuple):
    key_bytes: bytes | None
    value_bytes: bytes | None

    def key(self) -> bytes | None:
        return self.key_bytes

    def value(self) -> bytes | None:
        return self.value_bytes

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return 7

    def timestamp(self) -> tuple[int, int]:
        return 1, 99

    def headers(self) -> list[tuple[str, bytes | None]]:
        return [("a", b"1"), ("b", None)]


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("beginning", Position(Anchor.BEGINNING)),
        ("end", Position(Anchor.END)),
        ("42", Position(Anchor.OFFSET, 42)),
        ("-10", Position(Anchor.END, 10)),
        ("@1500", Position(Anchor.TIME, 1500)),
        ("1970-01-01T00:00:01", Position(Anchor.TIME, 1000)),
        ("1970-01-01T01:00:00+01:00", Position(Anchor.TIME, 0)),
        ("1h", Position(Anchor.TIME, 10_000_000_000 - 3_600_000)),
        ("1d12h", Position(Anchor.TIME, 10_000_000_000 - 129_600_000)),
        ("9999d", Position(Anchor.TIME, 0)),
        ("yesterday", None),
        ("--1", None),
        ("", None),
    ],
)
def test_positions(text: str, position: Position | None) -> None:
    assert parsed(text, lambda: 10_000_000_000) == position


def test_format_letters() -> None:
    message = FakeMessage(b"k", None)
    assert compiled(r"%t/%p/%o %k=%s %K %S %T %h 100%%\n\0")(message) == b"t/3/7 k= 1 -1 99 a=1,b=NULL 100%\n\0"


def test_json_line_keeps_bytes_that_are_no_text() -> None:
    entry = json.loads(as_json_line(FakeMessage(b"\xff", "ä".encode())))
    assert entry == {
        "topic": "t",
        "partition": 3,
        "offset": 7,
        "timestamp": 99,
        "key_base64": "/w==",
        "value": "ä",
        "headers": [["a", "1"], ["b", None]],
    }
