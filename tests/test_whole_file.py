"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from mainstem.whole_file import write_whole


def test_the_new_content_takes_the_place_of_the_old(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_whole(file, b"old", 0o644)
    with file.open("rb") as reader:
        write_whole(file, b"new", 0o600)
        assert reader.read() == b"old"
    assert file.read_bytes() == b"new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_the_mode_is_what_it_says_whatever_the_umask(tmp_path: Path) -> None:
    for umask in (0, 0o077):
        before = os.umask(umask)
        try:
            write_whole(tmp_path / "file", b"", 0o640)
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "node.pem"
    file.mkdir()  # what a rename cannot replace
    with pytest.raises(OSError, match="directory"):
        write_whole(file, b"new", 0o600)
    assert list(tmp_path.iterdir()) == [file]
