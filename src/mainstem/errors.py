"""The base of every error Mainstem raises on purpose.

Each room derives one class of its own from `MainstemError` and its errors from that class, so that a caller
can catch one room's errors without knowing the others. A message names the fault, its place, and the
remedy. `is_of_disk` tells errors of an untrustworthy disk from all others, however deeply they are wrapped.
"""

from __future__ import annotations

import errno


class MainstemError(Exception):
    """Base of all errors that Mainstem raises on purpose."""


class ConfigError(MainstemError):
    """A configuration value that cannot be used; the message names the key, the value and what is allowed."""


class LeaderMissing(MainstemError):
    """Another node leads what the call would change, or no node does now. The caller may try again, there or
    later."""


class StorageUnavailable(MainstemError):
    """A disk of this node failed during a change, or its part in a write group ended, and it is unknown whether the
    change was logged. The caller may try again, at the node that leads next."""

    groups: frozenset[int] = frozenset()
    """The write groups in which the change failed, while it was made in the others; empty: that is not known."""


class LeaderUntold(LeaderMissing):
    """A leader could not be told of a change in time: it may go on as if the change had not been made."""


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
