"""Whether a file has changed since it was read."""

from __future__ import annotations

import os
from collections.abc import Iterable

FileStamp = tuple[int, int, int] | None
"""Differs when a file was written or replaced; None: it is not there."""


def stamps(files: Iterable[str]) -> tuple[FileStamp, ...]:
    """One stamp for each file, in their order."""
    return tuple(map(_stamp, files))


def _stamp(file: str) -> FileStamp:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
