"""Work of a task on a shared store is begun again where the store failed it.

A large object is sent part by part, and what was sent is not kept: if one part of it fails again and again, the upload
is over, while the store may well take the next one. To fail the task for that would throw away more: Spark runs it
again at once, up to a limit of failures for the whole job, and a merge is given up. So the task itself makes its files
once more, under other names, after a wait with full jitter: tasks that failed together do not come back together.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from mainstem.storage.object_stores.errors import ObjectStoreOutage
from mainstem.storage.shared_store.object_target import UploadBroken

T = TypeVar("T")

log = logging.getLogger(__name__)

ATTEMPTS_MAX = 4
"""However short each of them is: every one uploads all files of the task, and its names are deleted later."""
WAIT_SECONDS = 0.5
"""Bound of the first wait; doubled for each further one."""
WAIT_SECONDS_MAX = 10.0


def begun_again(
    work: Callable[[], T],
    budget_seconds: float,
    *,
    jitter: random.Random | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """The result of `work`. While the store is out, or has broken an upload off, it is begun again, as long as less
    than `budget_seconds` have passed since that was first so. Raises what the last attempt did; what no further one
    would mend, at once."""
    chance = jitter or random.Random()
    ends: float | None = None
    for attempt in range(1, ATTEMPTS_MAX):
        try:
            return work()
        except (ObjectStoreOutage, UploadBroken) as error:
            now = monotonic()
            ends = now + budget_seconds if ends is None else ends
            wait = chance.uniform(0.0, min(WAIT_SECONDS_MAX, WAIT_SECONDS * 2.0 ** (attempt - 1)))
            if now + wait >= ends:
                raise
            log.warning("attempt %d of a task failed, the next begins in %.1f s: %s", attempt, wait, error)
        sleep(wait)
    return work()
