"""What a run of a simulation can do without: a disk below its manifests, and most looks for garbage."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = Path("/dev/shm")
"""Manifests are real files; nothing is gained by having them on a disk."""
FREE_BYTES_MIN = 1 << 30
"""A run takes some tens of MB; containers may give much less."""

GARBAGE_THRESHOLDS = 200_000, 20, 50
"""A run makes much, keeps little: to look for cycles as often as Python does by itself takes a quarter of its time."""


def memory() -> Path | None:
    """The directory of a file system in memory that has room for a run; None: there is none."""
    return MEMORY if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= FREE_BYTES_MIN else None


@contextmanager
def seldom_looking_for_garbage() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
