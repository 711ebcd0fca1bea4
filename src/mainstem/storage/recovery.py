"""Starting: from the newest checkpoint, through the blocks behind it, to the logs before the stop.

Blocks behind the checkpoint become the tail of their group's log, and are applied as soon as the group knows that they
are committed: a single voter at once, others when a leader says so. Blocks before it, in segments that have no index
file yet, are only indexed: what they changed is in the checkpoint. How long it takes depends on bytes that are neither
split nor checkpointed, never on how many queues there are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy

from mainstem.kernel import COMMITTED_END, LOG_START, NEXT_OFFSET, NO_SLOT, QueueTable
from mainstem.model import Topic
from mainstem.ports import Files
from mainstem.raft import Unavailable
from mainstem.storage import checkpoint as checkpoints
from mainstem.storage import queue_image
from mainstem.storage.applied import AppliedState
from mainstem.storage.cold_producers import ColdProducers
from mainstem.storage.errors import CorruptJournal, StorageError
from mainstem.storage.journal.format import (
    FIRST_BLOCK,
    KIND_DATA,
    BlockHeader,
    offset_of,
    position_of,
    segment_name,
    sequence_of,
)
from mainstem.storage.journal.journal import Journal
from mainstem.storage.log_block import LogBlock, recovered_block
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
    blocks_logged: int
    """Behind what the checkpoint had applied; they are applied again once their group knows them to be committed."""
    blocks_indexed: int
    end: int
    """Journal position behind the last block."""


class Recovery:
    """Rebuilds the logs and the state of a node's write groups."""

    def __init__(
        self,
        files: Files,
        journal: Journal,
        groups: Sequence[WriteGroup],
        state: AppliedState,
        producers: ColdProducers,
        node_id: int = 0,
    ) -> None:
        """`node_id`: whose checkpoint it has to be; 0: whoever's."""
        self._files = files
        self._node_id = node_id
        self._journal = journal
        self._groups = groups
        self._state = state
        self._producers = producers
        self._position = 0
        self._mapped = 0
        """Journal position up to which the checkpoint's map knows the journal."""
        self._walked: list[tuple[BlockHeader, bytes]] = []
        """Data blocks that the checkpoint had applied, in the journal's order."""
        self._logged = 0
        self._run: list[LogBlock] = []
        """Blocks of one log that were written again, one after the other: they count once the log's last is there."""

        self._moved_from: set[int] = set()
        """Segments that had blocks of which a copy counts now."""

    async def run(self) -> Recovered:
        """Load, walk, and index. Raises `FormatError` or `CorruptJournal`, naming file and place, when what was
        durable cannot be read."""
        checkpoint = await checkpoints.load(self._files, self._node_id)
        durable = 0
        if checkpoint is not None:
            queue_image.put_back(self._state.table, checkpoint.ranges, checkpoint.queues)
            self._load(checkpoint.state)
            durable = checkpoint.state.durable
        await self._producers.load(checkpoint.state.producer_files if checkpoint is not None else {})
        report = await self._journal.recover(self._start(), self._visit, durable=durable)
        self._give_up_run()
        await self._journal.index_anew(self._moved_from)
        indexed = self._index()
        segments = self._journal.segments()
        if segments:  # those before were recycled, perhaps after the checkpoint
            self._state.journal_map.drop(segments[0].sequence)
            for group in self._groups:
                group.blocks.forget_to(min(self._state.journal_map.pruned(group.group), group.applied_index))
        return Recovered(self._position, self._logged, indexed, report.end)

    def _load(self, saved: checkpoints.State) -> None:
        self._position = saved.position
        self._state.journal_map.load(saved.journal_map)
        self._mapped = self._state.journal_map.end
        self._state.manifest.load(saved.splits)
        for number, state in saved.groups.items():
            group = self._groups[number]
            group.load(state)
            if number in saved.logs:
                group.blocks.load(saved.logs[number])
            else:  # saved before logs were replicated: everything in the journal was applied
                group.blocks.begin_behind(state.applied_index, state.term)

    def _start(self) -> int:
        """Where to walk the journal from: the first segment without an index, or the checkpoint's."""
        for segment in self._journal.segments():
            if not segment.index_ready or segment.sequence >= sequence_of(self._position):
                return position_of(segment.sequence, FIRST_BLOCK)
        return 0

    def _visit(self, header: BlockHeader, directory: bytes, payload: bytes) -> None:
        where = f"{segment_name(sequence_of(header.position))} at byte {offset_of(header.position)}"
        group = self._groups[header.group] if header.group < len(self._groups) else None
        if group is None:
            raise CorruptJournal(
                f"{where}: block {header.index} of write group {header.group}: no such group"
            )
        is_dead = header.position in self._state.journal_map.dead
        if not is_dead and header.index > group.applied_index and group.blocks.is_copy(header):
            self._copy_found(group, recovered_block(header, directory, payload, where))
            return
        self._give_up_run()
        if is_dead:
            pass
        elif header.index <= group.applied_index:
            if not self._counts(group, header):
                self._state.journal_map.dead.add(header.position)
            elif header.kind == KIND_DATA:
                self._walked.append((header, directory))
        else:
            journal_map = self._state.journal_map
            try:
                dead = group.blocks.read_back(recovered_block(header, directory, payload, where))
            except Unavailable as error:
                if not journal_map.dead or header.position < self._mapped:
                    raise CorruptJournal(
                        f"{where}: write group {header.group}: {error}; the journal does not continue the checkpoint. "
                        "Nothing was changed: restore write_dir as a whole, or replace the node"
                    ) from error
                # It was being written when the log dropped it, and the block before it, which the checkpoint knows to
                # be dead. Nothing that lives can get here: the block before it was written before it, so it is in the
                # checkpoint's log or was walked, and the chain of checksums vouches for it that none of those that
                # were written since is missing.
                dead = [header.position]
            self._logged += 1
            if header.position in dead:
                journal_map.dead.add(header.position)
            elif dead:
                journal_map.superseded(header.group, header.index, dead)
        if header.end > self._mapped:
            self._state.journal_map.add(header, live=header.position not in self._state.journal_map.dead)

    def _counts(self, group: WriteGroup, header: BlockHeader) -> bool:
        """Whether an applied block is where the log has it, and no copy that came too late. Of what the log does not
        reach back to, the checkpoint's map has seen all there was."""
        place = group.blocks.position_of(header.index)
        return place == header.position if place else header.position < self._mapped

    def _copy_found(self, group: WriteGroup, block: LogBlock) -> None:
        """A block of the log lies here once more. Copies were written in one go, up to the log's last block, so a run
        that ends before it was cut off: then all of the log is where it was."""
        header, journal_map = block.header, self._state.journal_map
        assert header is not None
        newest = self._run[-1].header if self._run else None
        if newest is not None and (newest.group, newest.index + 1) != (header.group, header.index):
            self._give_up_run()
        self._run.append(block)
        if header.index < group.blocks.last_index():
            return
        run, self._run = self._run, []
        before = [group.blocks.read_again(copy) for copy in run]
        self._moved_from.update(map(sequence_of, before))
        journal_map.superseded(header.group, run[0].index, before)
        self._logged += len(run)
        for copy in run:
            self._mapped_block(copy, live=True)

    def _give_up_run(self) -> None:
        """The copies found last are not all there are in their log."""
        run, self._run = self._run, []
        for copy in run:
            self._mapped_block(copy, live=False)

    def _mapped_block(self, block: LogBlock, *, live: bool) -> None:
        header = block.header
        assert header is not None
        if header.end > self._mapped:
            self._state.journal_map.add(header, live=live)

    def _index(self) -> int:
        """Index the blocks that were walked and are part of the checkpoint's state."""
        for header, directory in self._walked:
            self._state.index.add(header, directory, None)
        indexed = len(self._walked)
        self._walked.clear()
        return indexed


def check_replicas(groups: Sequence[WriteGroup], store: QueueStore, free: Callable[[int], bool]) -> None:
    """A manifest that is ahead of the log of a group with other nodes is what is left of a snapshot that was not
    installed to its end: the log goes on where it ends. But what was split here was in the journal, and promised to
    the others: raises `StorageError` when it is not there any more. `free`: nothing is promised to others, because
    there are none or the replica has left."""
    for group in groups:
        needed, last = store.journal_index(group.group), group.blocks.last_index()
        if last < needed and not free(group.group):
            raise StorageError(
                f"write group {group.group}: the journal ends at block {last}, but block {needed} was in it: blocks "
                "that this node promised to keep are lost. Put the journal back, or start a node with another node "
                "id and empty directories, and have it take the place of this one (mainstem cluster replace)"
            )


async def rejoin_store(
    groups: Sequence[WriteGroup],
    table: QueueTable,
    store: QueueStore,
    placement: Placement,
    topics: Callable[[], Iterable[Topic]],
    alone: Callable[[int], bool],
) -> bool:
    """When the journal of a group that this node has `alone` ends before what the manifest says is split, go on from
    there; whether that was so. A checkpoint must follow before anything is written: no block says what is changed here.

    Only synced blocks are split, so this takes a lost disk 1. Block indexes continue behind the split, and
    each queue behind the last offset the store has of it, so that no offset is given out twice. Queues that
    are not in the journal at all start at their first offset in the store."""
    behind = [
        group
        for group in groups
        if alone(group.group) and group.blocks.last_index() < store.split_position(group.group)
    ]
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
        group.applied_index = store.split_position(group.group)
    for topic in topics():
        table.create(topic.number, 0, topic.partitions)
    epoch = 0
    async for rows in store.all_rows(placement.groups_of, whole=True):  # else offsets would be given out twice
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
        group.blocks.begin_behind(group.applied_index, max(group.applied_term, epoch + LOST_TERMS))
    return True
