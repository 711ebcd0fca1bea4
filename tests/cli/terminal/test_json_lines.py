"""JSON lines: what is refused, and that whatever is written is read back."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.cli.terminal.json_lines import JsonMessage, message_of
from mainstem.cli.terminal.message_format import as_json_line


class Message(NamedTuple):
    """As a consumer gives it."""

    message: JsonMessage

    def key(self) -> bytes | None:
        return self.message.key

    def value(self) -> bytes | None:
        return self.message.value

    def topic(self) -> str:
        return "t"

    def partition(self) -> int | None:
        return self.message.partition

    def offset(self) -> int:
        return 7

    def timestamp(self) -> tuple[int, int]:
        return 1, -1 if self.message.timestamp_ms is None else self.message.timestamp_ms

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self.message.headers or None


contents = st.none() | st.binary(max_size=20) | st.text(max_size=20).map(str.encode)


@given(
    st.builds(
        JsonMessage,
        key=contents,
        value=contents,
        headers=st.lists(st.tuples(st.text(max_size=5), contents), max_size=4),
        timestamp_ms=st.none() | st.integers(0, (1 << 63) - 1),
        partition=st.integers(0, (1 << 31) - 1),
    )
)
def test_what_is_written_is_read_back(message: JsonMessage) -> None:
    line = as_json_line(Message(message))
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert message_of(line.removesuffix(b"\n")) == message


@pytest.mark.parametrize(
    ("line", "part"),
    [
        (b"", "not a message in JSON"),
        (b"plain", "not a message in JSON"),
        (b"[]", "Expected `object`"),
        (b"\xff", "not a message in JSON"),
        (b"{}", "value is missing; write null for a tombstone"),
        (b'{"value":1}', "at `$.value`"),
        (b'{"value":"a","vlaue":"b"}', "unknown field `vlaue`"),
        (b'{"value":"a","value_base64":"YQ=="}', "value and value_base64 exclude each other"),
        (b'{"key":null,"key_base64":"YQ==","value":""}', "key and key_base64 exclude each other"),
        (b'{"value_base64":"?"}', "value_base64 is not base64"),
        (b'{"value":"","headers":[["a",{"base64":"?"}]]}', "header a is not base64"),
        (b'{"value":"","headers":[["a"]]}', "at `$.headers[0]`"),
        (b'{"value":"","headers":{"a":"b"}}', "at `$.headers`"),
        (b'{"value":"","partition":-1}', "partition -1 is not in the range"),
        (b'{"value":"","timestamp":-2}', "timestamp -2 is not a time"),
    ],
)
def test_what_is_no_message_is_refused_with_the_reason(line: bytes, part: str) -> None:
    with pytest.raises(ValueError) as refused:
        message_of(line)
    assert part in str(refused.value)
