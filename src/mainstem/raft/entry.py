"""What a replicated log is made of: entries, the state that must outlive a crash, descriptors of snapshots.

An entry is a descriptor. `data` is a handle of the driver's (a block in the journal, a few bytes), carried by
reference and never looked into; only membership entries are understood here, whose `data` is a `Membership`.
"""

from __future__ import annotations

import msgspec

from mainstem.raft.membership import Membership

KIND_DATA = 0
KIND_NO_OP = 1
"""What a new leader logs first, so that something of its own term can be committed."""
KIND_MEMBERSHIP = 2
"""The kinds above mean to the journal what they mean here; every other kind is the driver's own."""

NOBODY = 0
"""No node: nobody voted for, no leader known. Node ids are positive."""


class Entry(msgspec.Struct, frozen=True):
    """One entry of the log. `size` (bytes) counts for flow control only."""

    term: int
    index: int
    kind: int
    size: int
    data: object


class HardState(msgspec.Struct, frozen=True):
    """What a node must remember to keep its promises: its term, and whom it voted for in that term."""

    term: int = 0
    vote: int = NOBODY


class Snapshot(msgspec.Struct, frozen=True):
    """Names a snapshot of the applied state: everything up to entry `index`, and the membership at that point."""

    index: int
    term: int
    membership: Membership
