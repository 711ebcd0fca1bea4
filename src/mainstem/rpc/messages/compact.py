"""The messages of compaction: a splitter that has nothing to split and nothing to merge asks its node what to compact.

A pass is held as a merge is (`messages/merge.py`): from the answer on, for as long as the lease is in force under which
it was asked for, or until it is recorded. A damaged input is reported as that of a merge, by the id of the pass.
"""

from __future__ import annotations

import msgspec

from mainstem.rpc.messages.split import EarlierSplitter, FileDescription, HeldLease, LeaseLost
from mainstem.rpc.wire.method import Method


class AskCompaction(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for work. Work that was given before under this lease and is not recorded yet is taken back."""

    lease: HeldLease
    drain: bool = False
    """All that is not compacted yet is to be, however little."""
    covers: bool = False
    """The caller knows of covered topics (`CompactionWork.covered`)."""
    joins: bool = False
    """The caller knows queue segments of one file, as `AskMerge` has it."""


class CompactionWork(msgspec.Struct, frozen=True, kw_only=True):
    """Merged files of a write group, in the order of their spans and keys, of which some queues are to be compacted;
    the attachment has those, as `QUEUE_ROW` of `storage/compacting/compact_plan.py`."""

    pass_id: str = ""
    """Empty: nothing is worth it now."""
    more: bool = False
    """The node has not looked at all files yet: ask again soon."""
    group: int = -1
    began_ms: int = 0
    """The agreed time by which horizons have passed."""
    inputs: tuple[FileDescription, ...] = ()
    crc: int = 0
    """Of the attachment."""
    covered: tuple[int, ...] = ()
    """Numbers of topics of whose queues no batch may be left out: one without records stays in its place."""
    joined: bool = False
    """Queue segments are to be one file each, as `MergeWork` has it."""


class CompactedFile(msgspec.Struct, frozen=True):
    """The fate of an input."""

    name: str
    outputs: tuple[FileDescription, ...]
    """In its place, in the order of their keys; none: nothing of it is left."""


class RecordCompaction(msgspec.Struct, frozen=True, kw_only=True):
    """Asks to put the outputs of a pass in the place of its inputs, each of which is named."""

    lease: HeldLease
    pass_id: str
    files: tuple[CompactedFile, ...]


class CompactionReply(msgspec.Struct, frozen=True):
    outcome: str
    """'compacted', also when asked again, or 'refused: …'."""


COMPACT_WORK = Method(32, "compact.work", AskCompaction, CompactionWork, (LeaseLost, EarlierSplitter))
RECORD_COMPACTION = Method(33, "compact.commit", RecordCompaction, CompactionReply, (LeaseLost,))
"""Its name on the wire is that of version 0.1."""
