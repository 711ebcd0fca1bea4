"""The messages of merges: a splitter that has nothing to split asks its node what to merge, and hands in the outputs.

The node holds the inputs of a merge from its answer on, for as long as the lease is in force under which it was asked
for, or until the outputs are recorded. If a merge is given up, or its answer lost, a later question gets the same work
again, under another id: nothing of the first counts then."""

from __future__ import annotations

import msgspec

from mainstem.rpc.errors import Refused
from mainstem.rpc.messages.split import EarlierSplitter, FileDescription, HeldLease, LeaseLost
from mainstem.rpc.wire.method import Method, Nothing


class MergeGone(Refused):
    """The node does not know of this merge, or not any more. Nothing was changed."""

    kind = "merge gone"


class MergeTopic(msgspec.Struct, frozen=True):
    name: str
    retention_class: str
    segment_bytes: int
    """Its `segment.bytes`."""
    segment_records: int = -1
    """Its `segment.records`."""


class MergeInput(msgspec.Struct, frozen=True):
    """A file that has blocks (after, upto] of the write group."""

    file: FileDescription
    after: int
    upto: int


class AskMerge(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for work. Work that was given before under this lease and is not recorded yet is taken back, except for
    `kept`, merge ids that the caller still works on."""

    lease: HeldLease
    drain: bool = False
    """All runs are to be merged, however few."""
    kept: tuple[str, ...] = ()
    joins: bool = False
    """The caller knows queue segments of one file. Others are given no such file to merge, and are refused where there
    is nothing else (`EarlierSplitter`)."""


class MergeWork(msgspec.Struct, frozen=True, kw_only=True):
    """Whole spans of a write group, in the order of their blocks, to be merged into files of `level`."""

    merge_id: str = ""
    """Empty: there is nothing to merge now."""
    more: bool = False
    """The node has not looked at all files yet: ask again soon."""
    group: int = -1
    level: int = 0
    inputs: tuple[MergeInput, ...] = ()
    topics: dict[int, MergeTopic] = {}
    """By number, the topics that exist, of all queues in the inputs and maybe of others."""
    packed_bytes: int = 0
    task_bytes: int = 0
    output_files_max: int = 0
    """No more files are taken in the place of the inputs; 0: as many as there are."""
    joined: bool = False
    """Queue segments are to be one file each. Splitters of earlier versions do not know of that, and write each as four
    files, which count as well."""
    host: str = ""
    """`host_identity()` of the node: where it is the same, the queue store's directory is that of the node."""


class AskLive(msgspec.Struct, frozen=True):
    """Asks which offsets of some queues a merge keeps; the attachment has their ids, u64, ascending."""

    merge_id: str


class LiveReply(msgspec.Struct, frozen=True):
    """The attachment has for each queue the first offset to keep, then for each the offset up to which, which is not
    kept: i64, the largest one where there is none. A queue of which nothing is kept begins there, too. Behind them are
    the gaps: the ids of their queues, u64, their first offsets, and the offsets behind them, i64."""

    crc: int
    """Of the attachment."""
    gaps: int = 0
    """Stretches between the offsets that are kept which are not, as other write groups have them."""


class RecordMerge(msgspec.Struct, frozen=True, kw_only=True):
    """Asks to put these files in the place of the inputs."""

    lease: HeldLease
    merge_id: str
    files: tuple[FileDescription, ...]


class MergeReply(msgspec.Struct, frozen=True):
    outcome: str
    """'merged', also when asked again, or 'refused: …'."""


class MergeDamage(msgspec.Struct, frozen=True, kw_only=True):
    """Reports an input whose bytes are not those that were written: the node examines and mends it."""

    merge_id: str
    name: str
    reason: str


MERGE_WORK = Method(28, "merge.work", AskMerge, MergeWork, (LeaseLost, EarlierSplitter))
MERGE_LIVE = Method(29, "merge.live", AskLive, LiveReply, (MergeGone,))
RECORD_MERGE = Method(30, "merge.commit", RecordMerge, MergeReply, (LeaseLost,))
"""Its name on the wire is that of version 0.1."""
MERGE_DAMAGED = Method(31, "merge.damaged", MergeDamage, Nothing, (MergeGone,))
