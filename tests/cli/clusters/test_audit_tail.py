"""Lines of `mainstem audit tail`: what clients chose writes nothing to a terminal but text."""

from __future__ import annotations

import pytest

from mainstem.cli.audit.tail import row_of
from mainstem.cli.main import run


def test_a_record_is_a_line_whose_fields_stand_below_each_other() -> None:
    record = {
        "version": 1, "time_ms": 1_790_000_000_123, "event": "admin", "principal": "User:an", "host": "10.0.0.1",
        "operation": "CreateTopics", "resource": "topic:t", "outcome": "allowed", "client_id": "c", "repeated": 3,
    }  # fmt: skip
    line = row_of(record, 0)
    assert line[20:23] == "123"
    assert line[23:].split(None, 6) == [
        "admin", "User:an", "10.0.0.1", "CreateTopics", "topic:t", "allowed", "client_id: c, repeated: 3"
    ]  # fmt: skip


@pytest.mark.parametrize("record", [{}, {"time_ms": "soon", "resource": None}, {"detail": "b'no record'"}])
def test_a_record_of_another_version_is_shown_as_far_as_it_goes(record: dict[str, object]) -> None:
    line = row_of(record, 1_000)
    assert line.startswith("1970-01-01")
    assert str(record.get("detail", "-")) in line


def test_no_record_writes_control_characters() -> None:
    line = row_of({"principal": "User:\x1b[2Jan\r\n", "resource": "topic:\u202egnp", "client_id": "\x07"}, 0)
    assert line.isprintable()
    assert "User:\\x1b[2Jan\\r\\n" in line


def test_offsets_are_no_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "tail", "--since", "17"]) == 2
    assert "an age such as 1h" in capsys.readouterr().err
