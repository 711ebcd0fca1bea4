"""A thinned file reads as before and takes less disk; a store is filled in portions."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from bench.errors import BenchError
from bench.store.thin_store import PORTION_MIB, RECORD_BYTES, portions, thin


def test_a_thinned_file_reads_the_same_and_gives_back_its_zeros(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    content = b"".join(random.Random(number).randbytes(70) + bytes(RECORD_BYTES) for number in range(64))
    run = runs / "one.run"
    run.write_bytes(content)
    with run.open("rb") as opened:  # as nodes have it
        thin(tmp_path)
        assert opened.read() == content
    assert run.stat().st_size == len(content)
    assert run.stat().st_blocks * 512 < len(content) // 4
    (runs / "directory").mkdir()
    with pytest.raises(BenchError, match="directory was not thinned"):
        thin(tmp_path)


def test_portions_are_all_that_was_asked_for() -> None:
    assert list(portions(2 * PORTION_MIB + 7)) == [PORTION_MIB, PORTION_MIB, 7]
    assert list(portions(0)) == []
