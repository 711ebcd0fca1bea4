"""Names that two classes or two modules share are found, and what may share one is written down with its reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.name_twins import ALLOWED, Allowed, twins

ROOT = Path(__file__).resolve().parents[2]
NOTHING = Allowed({}, {}, {})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for place, content in {
        "disk/reader.py": "class Reader:\n    class Line: ...\nclass _Part: ...\n",
        "disk/line.py": "class Line: ...\nclass _Part: ...\n",
        "net/reader.py": "class Peer: ...\n",
        "net/__init__.py": "",
        "disk/__init__.py": "",
        "commands/store/reader.py": "",
        "commands/net/reader.py": "",
    }.items():
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return tmp_path


def test_twins_are_found_wherever_they_are(source: Path) -> None:
    assert list(twins(source, NOTHING)) == [
        "modules called reader: commands/net/reader.py, commands/store/reader.py, disk/reader.py, net/reader.py",
        "classes called Line: disk/line.py, disk/reader.py",
    ]


def test_what_may_share_a_name_is_not_reported(source: Path) -> None:
    allowed = Allowed({"commands": "as typed"}, {"reader": "both read"}, {"Line": "one is of the other"})
    assert not list(twins(source, allowed))
    assert list(twins(source, allowed._replace(modules={}))) == ["modules called reader: disk/reader.py, net/reader.py"]


def test_what_nothing_needs_any_more_is_reported(source: Path) -> None:
    allowed = Allowed({"net": "", "disk/old": ""}, {"reader": "", "line": ""}, {"Line": "", "Peer": ""})
    assert list(twins(source, allowed)) == [
        "modules called line may be several, and there are not",
        "classes called Peer may be several, and there are not",
        "modules in disk/old/ may share their names with others, and none does",
    ]


def test_one_thing_has_one_name() -> None:
    assert list(twins(ROOT / "src/mainstem", ALLOWED)) == []
