"""Lines of several processes in one stream."""

from __future__ import annotations

import io
import json

import pytest

from mainstem.cli.processes.log_stream import LINE_BYTES_MAX, LogStream


def told(form: str, text: bytes, heard: list[str] | None = None) -> list[bytes]:
    lines: list[bytes] = []
    words = [] if heard is None else heard
    LogStream(lines.append, form).carry(7, io.BytesIO(text), words.append)
    return lines


def test_each_line_of_text_names_its_node() -> None:
    heard: list[str] = []
    assert told("text", b"one\r\n\n{two}\nlast", heard) == [
        b"node 7 | one\n", b"node 7 | \n", b"node 7 | {two}\n", b"node 7 | last\n",
    ]  # fmt: skip
    assert heard == ["one", "{two}", "last"], "the last words are no blank line"


@pytest.mark.parametrize(
    "line", [b'{"time": 5, "message": "a \\" {b}"}', b"{}", b"Traceback (most recent \xff):", b"{"]
)
def test_each_line_of_json_names_its_node(line: bytes) -> None:
    (found,) = told("json", line + b"\n")
    entry = json.loads(found)
    assert entry["node"] == 7
    assert entry["message"] == (json.loads(line)["message"] if len(line) > 30 and line[:1] == b"{" else line.decode(
        errors="replace"
    ))  # fmt: skip


def test_a_long_line_is_told_in_parts() -> None:
    lines = told("text", b"x" * (LINE_BYTES_MAX + 5) + b"\n")
    assert [len(line) for line in lines] == [LINE_BYTES_MAX + len(b"node 7 | \n"), 5 + len(b"node 7 | \n")]


def test_lines_are_read_on_when_nobody_takes_them() -> None:
    """A process must not wait because the terminal of its supervisor has gone."""

    def refuse(_line: bytes) -> None:
        raise BrokenPipeError

    lines = io.BytesIO(b"one\ntwo\n")
    heard: list[str] = []
    LogStream(refuse, "text").carry(1, lines, heard.append)
    assert heard == ["one", "two"]
