"""Long work in the smallest steps there can be, so that anything may come between two members."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mainstem.broker.consumer_groups import long_work
from mainstem.broker.consumer_groups.modern import new_targets


@contextmanager
def small_steps() -> Iterator[None]:
    before = long_work.ITEMS_PER_STEP, long_work.ITEMS_AT_ONCE, new_targets.ASSIGNED_AT_ONCE
    long_work.ITEMS_PER_STEP, long_work.ITEMS_AT_ONCE, new_targets.ASSIGNED_AT_ONCE = 1, 1, 0
    try:
        yield
    finally:
        long_work.ITEMS_PER_STEP, long_work.ITEMS_AT_ONCE, new_targets.ASSIGNED_AT_ONCE = before
