"""Reads of the disk itself: every byte of the files once, or an error that says why not."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from bench.errors import BenchError
from bench.store.reads.disk_itself import REQUEST_BYTES, read_rate


def test_each_piece_of_each_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / name for name in ("one", "two", "empty")]
    for path, size in zip(files, (3 * REQUEST_BYTES + 5, 17, 0), strict=True):
        path.write_bytes(os.urandom(size))
    read: list[tuple[str, int, int]] = []
    preadv = os.preadv

    def watched(descriptor: int, buffers: Sequence[memoryview], position: int) -> int:
        size = preadv(descriptor, buffers, position)
        read.append((os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")), position, size))
        return size

    monkeypatch.setattr(os, "preadv", watched)
    assert read_rate(files) > 0
    wanted = [("one", at * REQUEST_BYTES, REQUEST_BYTES) for at in range(3)]
    assert sorted(read) == [*wanted, ("one", 3 * REQUEST_BYTES, 5), ("two", 0, 17)]


def test_nothing_to_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="no files"):
        read_rate([])
    (tmp_path / "empty").touch()
    with pytest.raises(BenchError, match="no files"):
        read_rate([tmp_path / "empty"])
