"""Tells errors of an untrustworthy disk from all others, however deeply they are wrapped."""

from __future__ import annotations

import errno

DISK_ERRORS = frozenset({errno.EIO, errno.EROFS, errno.ENODEV, errno.ENXIO, errno.EUCLEAN, errno.ESTALE})
"""The errors of a disk, its file system or its connection that is broken, gone, or mounted read-only. A full,
missing or forbidden one has errors of its own, with remedies of their own."""

DISK_REMEDY = (
    "put the disk of write_dir right (the kernel's log may say more), then start the node again: it goes on from what "
    "is on the disk"
)


def is_of_disk(error: BaseException) -> bool:
    """Whether an error is a disk's, or was raised because of one."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in DISK_ERRORS:
            return True
        cause = cause.__cause__
    return False
