"""Shells that lead a session, and want a processor as long as they run."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

from mainstem.pipeline.embedded.control_group import find_group
from mainstem.pipeline.embedded.processes import end_session

BURN = "ulimit -t 60; while :; do :; done"
"""It ends by itself, if the test is killed."""
STARTS_ANOTHER = "ulimit -t 60; sh -c 'while :; do :; done' & while :; do :; done"
"""Its child is in the same session."""

CORE = min(os.sched_getaffinity(0))


@contextlib.contextmanager
def session(program: str, *, bound: bool = True) -> Iterator[int]:
    """A shell that leads a session, and has the first core alone if it is `bound`; its process id."""
    binds = ["taskset", "-c", str(CORE)] if bound else []
    process = subprocess.Popen([*binds, "sh", "-c", program], start_new_session=True)
    try:
        yield process.pid
    finally:
        end_session(process.pid)
        process.wait()
        if (group := find_group()) is not None:
            group.remove()
