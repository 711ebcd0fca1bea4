"""Has the Python workers of Spark keep their modules out of garbage collection.

Spark collects garbage in a worker after each task, so that memory of the task is there for the next one. That visits
every object of every module each time: twenty milliseconds of a processor, where the task of a small merge takes ten.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import TypeVar

WorkT = TypeVar("WorkT")
ResultT = TypeVar("ResultT")


@functools.cache
def keep_modules() -> None:
    """Exempt what the calling worker has loaded by its first task from garbage collection."""
    gc.collect()
    gc.freeze()


def keeping_modules(function: Callable[[WorkT], ResultT]) -> Callable[[WorkT], ResultT]:
    """The same function, for a task of Spark: the worker that runs it keeps its modules."""
    return functools.partial(_run, function)


def _run(function: Callable[[WorkT], ResultT], work: WorkT) -> ResultT:
    keep_modules()
    return function(work)
