"""The beginnings of queues that need no index to be asked for.

A file that has one queue alone, as all files of a large queue are, has that queue's batches from its first byte to its
index. A reader that begins where such a queue begins needs the first bytes of the first of these files, whatever the
index says: where each request takes long, they are asked for beside the index.

Of a file with many queues nothing but the index tells where each of them begins. But readers who begin with most of its
queues together, as those of a group do that catches up with a topic, want most of the file, whatever the index says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from mainstem.storage.queue_store.manifest.manifest import Manifest
from mainstem.storage.queue_store.reading.file_search import Spans
from mainstem.storage.store_files.store_file import StoreFile

SPANS_MAX = 64
"""Spans that are looked at for the first one with the queue, in some microseconds each: a reader that has more of
them before it is far from the beginning of its write group's history, and waits for the index first."""

MOST_SHARE = 0.5
"""Of the queues of a file: where readers begin with more than these, less than half of what comes beside the index is
asked for in vain. And of what a queue has in a file: a reader that begins later than in the middle is not counted."""


class FirstFile(NamedTuple):
    """The first merged file that may have a queue."""

    at: int
    """The place of its span."""
    file: StoreFile


def first_file_with(manifest: Manifest, spans: Spans, queue_id: int, offset: int) -> FirstFile | None:
    """The first merged file that may have a queue at an offset or behind it. None: there is none near the beginning of
    the write group's history."""
    for at in range(min(len(spans), SPANS_MAX)):
        span = spans[at]
        if span.runs:
            return None  # any of them may have the queue
        entry = next(iter(span.keyed(queue_id, offset)), None)
        if entry is not None:
            file = manifest.files.get(entry.name)
            return None if file is None else FirstFile(at, file)
    return None


def is_begun_with(file: StoreFile, offset: int) -> bool:
    """Whether a read of a file's queue from an offset on begins with the very first batch, as far as the manifest
    tells."""
    return file.first_queue == file.last_queue and file.first_offset >= offset


class BeginningsTogether:
    """The readers that begin with queues of files of which they wait for the index."""

    def __init__(self) -> None:
        self._queues: dict[str, set[int]] = {}
        """By the name of the file. As many as there are readers that wait, at most."""

    @contextmanager
    def begins(self, file: StoreFile, queue_id: int) -> Iterator[bool]:
        """For the time in which a reader waits for where its queue begins in a file. Whether readers wait for most of
        its queues now, and did not before this one came."""
        queues = self._queues.setdefault(file.name, set())
        before = len(queues)
        queues.add(queue_id)
        most = max(1.0, file.queue_count * MOST_SHARE)
        try:
            yield before <= most < len(queues)
        finally:
            queues.discard(queue_id)
            if not queues and self._queues.get(file.name) is queues:
                del self._queues[file.name]
