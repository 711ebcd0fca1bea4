"""The tables of rooms are read as they are meant, and refuse what they do not name."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.import_rules import circles, may_import, read_tables, room_of

PAGE = """
| room | what lives there | may import |
| --- | --- | --- |
| `model.py` | nouns | |
| `rpc/` | calls | `model.py` |
| `disk/` | files | `model.py` `rpc/calls.py` |
| `main.py` | all | everything |

| room | what lives there | may import |
| --- | --- | --- |
| `rpc/calls.py` | calls | |
| `disk/low/` | bytes | |
| `disk/high/` | records | `disk/low/` |

| another | table |
| --- | --- |
| `nothing/` | here |
"""


@pytest.mark.parametrize(
    ("importer", "imported", "allowed"),
    [
        ("model", "rpc", False),
        ("rpc", "model", True),
        ("rpc", "rpc.calls", True),
        ("disk", "rpc.calls", True),
        ("disk", "rpc", False),
        ("disk.low", "model", True),
        ("disk.low", "rpc.calls", True),
        ("disk.high", "disk.low", True),
        ("disk.low", "disk.high", False),
        ("disk.low", "disk", False),
        ("disk", "disk.high", True),
        ("main", "disk.low", True),
    ],
)
def test_what_a_room_may_import(importer: str, imported: str, allowed: bool) -> None:
    assert may_import(importer, imported, read_tables(PAGE)) is allowed


def test_a_module_belongs_to_the_innermost_room_that_names_it() -> None:
    rooms = read_tables(PAGE)
    assert room_of("disk.low.bytes", rooms) == "disk.low"
    assert room_of("disk.anything", rooms) == "disk"
    assert room_of("nothing.here", rooms) is None


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("| `a.py` | | `no/` |", "allows no"),
        ("| nobody | | |", "names none"),
        ("| `model.py` | | |\n| `model.py` | | |", "two rows"),
    ],
)
def test_a_row_that_makes_no_sense_is_refused(row: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_tables(f"| room | what | may import |\n| --- | --- | --- |\n{row}\n")


def test_the_tables_of_the_architecture_say_what_matters() -> None:
    rooms = read_tables((Path(__file__).parents[2] / "docs/ARCHITECTURE.md").read_text())
    assert not may_import("storage.journal", "storage.queue_store", rooms)
    assert not may_import("storage.queue_store", "storage", rooms)
    assert not may_import("broker", "storage.journal", rooms)
    assert not may_import("raft", "ports", rooms)
    assert may_import("storage.upkeep", "storage.journal", rooms)
    assert all(room.allowed is not None for name, room in rooms.items() if name.startswith("storage"))


def test_modules_that_import_each_other_are_found() -> None:
    assert circles({"a": ["b"], "b": ["c"], "c": []}) == []
    assert circles({"a": ["a"], "b": []}) == [["a"]]
    assert circles({"a": ["b"], "b": ["c"], "c": ["a", "d"], "d": [], "e": ["f"], "f": ["e"]}) == [
        ["a", "b", "c"],
        ["e", "f"],
    ]
