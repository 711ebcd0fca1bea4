"""The errors of a broker's link to the storage nodes."""

from __future__ import annotations

from mainstem.errors import LeaderMissing, MainstemError, StorageUnavailable


class LinkError(MainstemError):
    """Base of what goes wrong between a broker and the storage nodes."""


class NoLeader(LinkError, LeaderMissing):
    """No node leads the write group now, or the one that does was not found in time; the caller may try again."""


class StorageUnreached(LinkError, StorageUnavailable):
    """The leader of a write group did not answer: the call may have taken effect."""


class AbortedUntold(LinkError):
    """The leader of a write group cannot tell now what was aborted among some records: they are deleted, or in
    a file that it cannot read."""
