"""Files of a storage node's tests lie in memory: they sync thousands of times, and ask a disk for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.files_in_memory import directory_in_memory


@pytest.fixture(autouse=True)
def tmp_path() -> Iterator[Path]:
    """Gone with the test."""
    with directory_in_memory() as directory:
        yield directory
