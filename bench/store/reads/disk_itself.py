"""Measures a disk by itself: reads files past the page cache, several requests at a time, and drops what it reads.

No system that reads the same files once can be faster by more than what memory had of them.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

from bench.errors import BenchError

REQUEST_BYTES = 1 << 20
REQUESTS = 4
"""At a time: with 8 the disk of the shared machine brought hardly more, with 2 a fifth less."""


def read_rate(files: Sequence[Path], requests: int = REQUESTS) -> float:
    """MB/s of all the files' bytes, read once with so many requests at a time. Raises BenchError where there are no
    bytes, or the file system has no reads past the page cache."""
    places = [(path, start) for path in files for start in range(0, path.stat().st_size, REQUEST_BYTES)]
    if not places:
        raise BenchError("there are no files to read from the disk")
    try:
        descriptors = {path: os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC) for path in files}
    except OSError as error:
        raise BenchError(f"{files[0].parent}: the disk itself cannot be read: {error.strerror}") from None
    numbers = count()

    def read_some() -> int:
        memory = memoryview(mmap.mmap(-1, REQUEST_BYTES))  # begins at a page, as these reads need it
        size = 0
        while (number := next(numbers)) < len(places):
            path, start = places[number]
            size += os.preadv(descriptors[path], [memory], start)
        return size

    try:
        begun = time.perf_counter()
        with ThreadPoolExecutor(requests) as threads:
            size = sum(job.result() for job in [threads.submit(read_some) for _ in range(requests)])
        return size / 1e6 / (time.perf_counter() - begun)
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)
