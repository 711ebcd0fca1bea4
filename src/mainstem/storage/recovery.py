"""Starting: from the newest checkpoint, through the blocks behind it, to the state before the stop.

Blocks behind the checkpoint are applied. Blocks before it, in segments that have no index file yet, are only
indexed: what they changed is in the checkpoint. How long it takes depends on bytes that are neither split nor
checkpointed, never on how many queues there are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy

from mainstem.kernel import COMMITTED_END, LOG_START, NEXT_OFFSET, NO_SLOT, QueueTable
from mainstem.model import Topic
from mainstem.ports import Files
from mainstem.storage import checkpoint as checkpoints
from mainstem.storage import control, queue_image
from mainstem.storage.applied import AppliedState
from mainstem.storage.errors import CorruptJournal
from mainstem.storage.journal.format import (
    FIRST_BLOCK,
    KIND_CONTROL,
    KIND_DATA,
    BlockHeader,
    offset_of,
    position_of,
    segment_name,
    sequence_of,
)
from mainstem.storage.journal.journal import Journal
from mainstem.storage.placement import Placement
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.write_group import WriteGroup

log = logging.getLogger(__name__)

LOST_TERMS = 1 << 16
"""Clients refuse a leader epoch older than one they know, and a lost journal may have seen starts that left no
record in the store: more of them than anybody makes, and the epoch's 31 bits have room for 32,767 such losses."""


class Recovered(NamedTuple):
    """What a start found."""

    checkpoint_position: int
    blocks_applied: int
    blocks_indexed: int


class Recovery:
    """Rebuilds the state of a node's write groups."""

    def __init__(
        self, files: Files, journal: Journal, groups: Sequence[WriteGroup], state: AppliedState
    ) -> None:
        self._files = files
        self._journal = journal
        self._groups = groups
        self._state = state
        self._position = 0
        self._blocks_applied = 0
        self._blocks_indexed = 0

    async def run(self) -> Recovered:
        """Load and apply. Raises `FormatError` or `CorruptJournal`, naming file and place, when what was
        durable cannot be read."""
        checkpoint = await checkpoints.load(self._files)
        durable = 0
        if checkpoint is not None:
            queue_image.put_back(self._state.table, checkpoint.ranges, checkpoint.queues)
            self._load(checkpoint.state)
            durable = checkpoint.state.durable
        await self._journal.recover(self._start(), self._visit, durable=durable)
        segments = self._journal.segments()
        if segments:  # those before were recycled, perhaps after the checkpoint
            self._state.journal_map.drop(segments[0].sequence)
        return Recovered(self._position, self._blocks_applied, self._blocks_indexed)

    def _load(self, saved: checkpoints.State) -> None:
        self._position = self._state.end = saved.position
        self._state.journal_map.load(saved.journal_map)
        self._state.manifest.load(saved.splits)
        for group, state in saved.groups.items():
            self._groups[group].load(state)

    def _start(self) -> int:
        """Where to walk the journal from: the first segment without an index, or the checkpoint's."""
        for segment in self._journal.segments():
            if not segment.index_ready or segment.sequence >= sequence_of(self._position):
                return position_of(segment.sequence, FIRST_BLOCK)
        return 0

    def _visit(self, header: BlockHeader, directory: bytes, payload: bytes) -> None:
        if header.end <= self._position:
            if header.kind == KIND_DATA:
                self._state.index.add(header, directory, None)
                self._blocks_indexed += 1
            return
        where = f"{segment_name(sequence_of(header.position))} at byte {offset_of(header.position)}"
        group = self._groups[header.group] if header.group < len(self._groups) else None
        if group is None or header.index != group.applied_index + 1:
            expected = "no such group" if group is None else f"block {group.applied_index + 1} was expected"
            raise CorruptJournal(
                f"{where}: block {header.index} of write group {header.group}, but {expected}; "
                "the journal does not continue the checkpoint"
            )
        commands = control.decode(payload, where) if header.kind == KIND_CONTROL else ()
        group.recovered(header, directory, commands)
        self._blocks_applied += 1


async def rejoin_store(
    groups: Sequence[WriteGroup],
    table: QueueTable,
    store: QueueStore,
    placement: Placement,
    topics: Callable[[], Iterable[Topic]],
) -> bool:
    """When the journal ends before what the manifest says is split, go on from there; whether that was so. A
    checkpoint must follow before anything is written: no block says what is changed here.

    Only synced blocks are split, so this takes a lost disk 1. Block indexes continue behind the split, and
    each queue behind the last offset the store has of it, so that no offset is given out twice. Queues that
    are not in the journal at all start at their first offset in the store."""
    behind = [group for group in groups if group.applied_index < store.split_position(group.group)]
    if not behind:
        return False
    for group in behind:
        log.warning(
            "write group %d: the journal ends at block %d, the queue store has blocks up to %d; going on behind "
            "them, blocks in between that were never split are lost",
            group.group,
            group.applied_index,
            store.split_position(group.group),
        )
        group.applied_index = group.last_index = store.split_position(group.group)
    for topic in topics():
        table.create(topic.number, 0, topic.partitions)
    epoch = 0
    async for rows in store.all_rows(placement.groups_of):
        epoch = max(epoch, int(rows["leader_epoch"].max(initial=0)))
        queue_ids, firsts = numpy.unique(rows["queue_id"], return_index=True)
        lasts = numpy.append(firsts[1:], len(rows)) - 1
        for queue_id, start, last_offset in zip(
            queue_ids.tolist(),
            rows["base_offset"][firsts].tolist(),
            rows["last_offset"][lasts].tolist(),
            strict=True,
        ):
            slot = table.find(queue_id)
            if slot == NO_SLOT:
                continue
            if not table.get(slot, COMMITTED_END):
                table.set(slot, LOG_START, start)
            for cell in (NEXT_OFFSET, COMMITTED_END):
                table.set(slot, cell, max(last_offset + 1, table.get(slot, cell)))
    for group in behind:
        group.term = max(group.term, epoch + LOST_TERMS)
    return True
