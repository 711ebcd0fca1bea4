"""The garbage collector's looks, without which a run of a simulation can do: most looks for garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

GARBAGE_THRESHOLDS = 200_000, 20, 50
"""A run makes much, keeps little: to look for cycles as often as Python does by itself takes a quarter of its time."""


@contextmanager
def seldom_looking_for_garbage() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
