"""Descriptions of remote files, for tests that need no bytes of them."""

from __future__ import annotations

from mainstem.storage.store_files.store_file import StoreFile
from mainstem.storage.write_groups.control import RemoteSpan

CLASS = "86400000+remote"


def packed(name: str, group: int = 0, first_queue: int = 1 << 32, size: int = 1000) -> StoreFile:
    """A packed file of one queue."""
    return StoreFile(
        name=f"{name}.pack", retention_class=CLASS, bytes=size + 100, batch_bytes=size, batch_count=2, record_count=4,
        queue_count=1, min_timestamp=1000, max_timestamp=2000, level=1, group=group, first_queue=first_queue,
        last_queue=first_queue, first_offset=0,
    )  # fmt: skip


def span(after: int, upto: int, *files: StoreFile) -> RemoteSpan:
    return RemoteSpan(after, upto, tuple(file.message() for file in files))
