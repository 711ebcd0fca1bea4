"""The beginning of a queue that needs no index to be found.

A file that has one queue alone, as all files of a large queue are, has that queue's batches from its first byte to its
index. A reader that begins where such a queue begins needs the first bytes of the first of these files, whatever the
index says: where each request takes long, they are asked for beside the index."""

from __future__ import annotations

from mainstem.storage.queue_store.manifest.manifest import Manifest
from mainstem.storage.queue_store.reading.file_search import Spans
from mainstem.storage.store_files.store_file import StoreFile

SPANS_MAX = 64
"""Spans that are looked at for the first one with the queue, in some microseconds each: a reader that has more of
them before it is far from the beginning of its write group's history, and waits for the index first."""


def file_begun_with(manifest: Manifest, spans: Spans, queue_id: int, offset: int) -> StoreFile | None:
    """The file of one queue alone in which a read from an offset on begins with the very first batch. None: it begins
    elsewhere, or the index has to be asked."""
    for at in range(min(len(spans), SPANS_MAX)):
        span = spans[at]
        if span.runs:
            return None  # any of them may have the queue
        entry = next(iter(span.keyed(queue_id, offset)), None)
        if entry is None:
            continue
        file = manifest.files.get(entry.name)
        if file is None or file.first_queue != file.last_queue or file.first_offset < offset:
            return None
        return file
    return None
