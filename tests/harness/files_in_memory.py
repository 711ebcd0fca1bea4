"""A file system in memory, for tests of what files say rather than of the disk below them.

A sync costs nothing there. Simulated disks tell the fate of files when the power fails, and tests of whole nodes the
conduct of a real disk."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

DISK = tempfile.gettempdir()
MEMORY = Path("/dev/shm")
FREE_BYTES_MIN = 1 << 30
"""A test takes some tens of MB; containers may give much less."""


def memory() -> Path | None:
    """The directory of a file system in memory that has room for a test; None: there is none."""
    return MEMORY if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= FREE_BYTES_MIN else None


@contextmanager
def directory_in_memory() -> Iterator[Path]:
    """In memory where that has room, else where temporary files are; gone at the end. `tempfile` makes others there."""
    before, tempfile.tempdir = tempfile.tempdir, str(memory() or tempfile.gettempdir())
    try:
        with tempfile.TemporaryDirectory() as directory:
            yield Path(directory)
    finally:
        tempfile.tempdir = before


@pytest.fixture(name="tmp_path", autouse=True)
def path_in_memory() -> Iterator[Path]:
    """For the `conftest.py` of a directory whose tests sync often, and ask a disk for nothing."""
    with directory_in_memory() as directory:
        yield directory


@pytest.fixture
def path_on_disk() -> Iterator[Path]:
    """Beside `path_in_memory`: for a test of what a disk's file has in the page cache."""
    with tempfile.TemporaryDirectory(dir=DISK) as directory:
        yield Path(directory)
