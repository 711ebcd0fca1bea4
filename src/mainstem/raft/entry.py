"""The parts of a replicated log: entries, the state that must outlive a crash, descriptors of snapshots.

An entry is a descriptor. `data` is a handle of the driver's (a block in the journal, a few bytes), carried by reference
and never read; the core understands only membership entries, whose `data` is a `Membership`.
"""

from __future__ import annotations

import msgspec

from mainstem.raft.membership import Membership

KIND_DATA = 0
KIND_NO_OP = 1
"""A new leader's first entry, by which an entry of its own term can be committed."""
KIND_MEMBERSHIP = 2
"""The journal uses the kinds above with the same meaning; every other kind is the driver's own."""

NOBODY = 0
"""No node: no vote given, no leader known. Node ids are positive."""


class Entry(msgspec.Struct, frozen=True):
    """One entry of the log. `size` (bytes) counts for flow control only."""

    term: int
    index: int
    kind: int
    size: int
    data: object


class HardState(msgspec.Struct, frozen=True):
    """The state a node must remember to keep its promises: its term, and its vote in that term."""

    term: int = 0
    vote: int = NOBODY


class Snapshot(msgspec.Struct, frozen=True):
    """Names a snapshot of the applied state: everything up to entry `index`, and the membership at that point."""

    index: int
    term: int
    membership: Membership
