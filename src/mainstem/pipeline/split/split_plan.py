"""Plans what a trigger splits next, without Spark: offsets in, offsets and slices out.

The manifest alone says where the split stands. Spark's offsets only name triggers: a trigger always covers
the blocks behind the *manifest's* positions, whatever its start says. So a lost checkpoint loses nothing,
one older than the manifest repeats nothing, and one newer (a node restored from a backup) skips nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from mainstem.rpc.messages.split import PlannedSlices, PositionsReply, WriteGroupPositions
from mainstem.rpc.wire.tls import RpcTlsConfig
from mainstem.storage.shared_store.shared_store import SharedStore

GATHER_SECONDS = 1.5
"""A trigger that has `start_bytes` waits until its oldest byte is this old, or until it is full. Spark plans each
trigger for about 60 ms of processor time, whatever is in it: at 100 MB/s, and one a second, as much as the bytes
themselves cost it. At 40 MB/s and less nothing waits."""

Offsets = dict[str, int]
"""Write group (as text, for JSON) → block index: a position in the journal, as Spark sees it."""


class SplitSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the planner and the tasks; travels as a data source option."""

    rpc: str
    runs_dir: str
    bytes_per_trigger: int
    slice_bytes: int
    bytes_per_second: int = 0
    """Bytes per second and task; 0 is unpaced."""
    start_bytes: int = 0
    """A trigger waits for this many unsplit bytes, and then for `GATHER_SECONDS` for a full one…"""
    start_age_seconds: float = 0.0
    """…or for the oldest to be this old."""
    tls: RpcTlsConfig = RpcTlsConfig()
    """TLS files that lie at the same path on every host of a task."""
    shared_store: SharedStore | None = None
    """The place where runs are written, without how it is reached; None: `runs_dir`."""


class JournalView(Protocol):
    """The part of `NodeLink` that planning needs."""

    def positions(self) -> PositionsReply: ...

    def limit(self, after: Mapping[int, int], bytes_max: int) -> dict[int, int]: ...

    def slices(self, after: Mapping[int, int], upto: Mapping[int, int], bytes_max: int) -> PlannedSlices: ...


def split_offsets(node: JournalView) -> Offsets:
    """The positions of the split, by the manifest."""
    return {str(group.group): group.split for group in node.positions().groups}


def target_offsets(node: JournalView) -> Offsets:
    """The positions up to which everything can be split now."""
    return {str(group.group): min(group.committed, group.durable) for group in node.positions().groups}


def next_offsets(
    node: JournalView, start: Offsets, settings: SplitSettings, *, bytes_max: int, target: Offsets | None
) -> Offsets:
    """Decide where the next trigger ends: at `start` itself when there is nothing to do.

    With a target (a run that ends), everything up to it is work. Without one only data is, and enough of it:
    retention writes control blocks, and a splitter that took those for work would never rest. Write groups of
    `start` that the node does not name are carried over: Spark takes offsets that vanish for progress."""
    found = node.positions()
    if target is None and not worth_a_trigger(found.groups, found.now_ms, settings):
        return start
    after = {group.group: group.split for group in found.groups}
    upto = node.limit(after, bytes_max)
    if target is not None:
        upto = {group: min(last, target.get(str(group), 0)) for group, last in upto.items()}
    if not any(last > after.get(group, 0) for group, last in upto.items()):
        return start
    ends = {str(group): max(upto.get(group, 0), split) for group, split in after.items()}
    return {**start, **ends}


def worth_a_trigger(groups: list[WriteGroupPositions], now_ms: int, settings: SplitSettings) -> bool:
    waiting = [group for group in groups if group.unsplit_bytes > 0]
    if not waiting:
        return False
    age_seconds = (now_ms - min(group.oldest_unsplit_ms for group in waiting)) / 1000
    size = sum(group.unsplit_bytes for group in waiting)
    is_full = size >= settings.bytes_per_trigger
    enough = size >= settings.start_bytes and (is_full or age_seconds >= GATHER_SECONDS)
    return enough or age_seconds >= settings.start_age_seconds


def plan(node: JournalView, end: Offsets, slice_bytes: int) -> PlannedSlices:
    """The slices between the manifest's positions and `end`, in journal order."""
    after = {group.group: group.split for group in node.positions().groups}
    upto = {int(group): last for group, last in end.items() if last > after.get(int(group), 0)}
    return node.slices({group: after.get(group, 0) for group in after}, upto, slice_bytes)
