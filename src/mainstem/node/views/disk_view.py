"""The room on a disk, as views say it."""

from __future__ import annotations

import os
from pathlib import Path

from mainstem.console.views.of_cluster import DiskView


def own_disk(path: Path | None, used_bytes: int) -> DiskView | None:
    """Disk 2; None where `path` is, as the store is shared."""
    return disk(path, used_bytes) if path is not None else None


def disk(path: Path, used_bytes: int) -> DiskView:
    """The disk a directory lies on."""
    stat = os.statvfs(path)
    return DiskView(
        path=str(path),
        used_bytes=used_bytes,
        free_bytes=stat.f_bavail * stat.f_frsize,
        total_bytes=stat.f_blocks * stat.f_frsize,
    )
