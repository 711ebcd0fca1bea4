"""Checks at a start whether logs end before what the queue store has of them, and goes on behind that where it may."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

import numpy

from mainstem.kernel import COMMITTED_END, LOG_START, NEXT_OFFSET, NO_SLOT, QueueTable
from mainstem.model import Topic
from mainstem.storage.errors import StorageError
from mainstem.storage.placement import Placement
from mainstem.storage.queue_store.reading.stored_files import StoredFiles
from mainstem.storage.write_groups.write_group import WriteGroup

log = logging.getLogger(__name__)

LOST_TERMS = 1 << 16
"""Clients refuse a leader epoch older than one they know, and a lost journal may have seen starts that left no
record in the store: more of them than anybody makes, and the epoch's 31 bits have room for 32,767 such losses."""


def check_replicas(
    groups: Sequence[WriteGroup], journal_index: Callable[[int], int], free: Callable[[int], bool]
) -> None:
    """Check the logs of write groups with other nodes against the manifest. A manifest ahead of the log remains from a
    snapshot that was not fully installed: the log goes on at its end. But blocks that were split here were in the
    journal, and promised to the others: raises `StorageError` when the journal does not have them any more.
    `journal_index`: the last block that was split and that the journal had for certain. `free`: nothing is promised to
    others, because there are none or the replica has left."""
    for group in groups:
        needed, last = journal_index(group.group), group.blocks.last_index()
        if last < needed and not free(group.group):
            raise StorageError(
                f"write group {group.group}: the journal ends at block {last}, but block {needed} was in it: blocks "
                "that this node promised to keep are lost. Put the journal back, or start a node with another node "
                "id and empty directories, and have it take the place of this one (mainstem cluster replace)"
            )


async def rejoin_store(
    groups: Sequence[WriteGroup],
    table: QueueTable,
    split_position: Callable[[int], int],
    stored: StoredFiles,
    placement: Placement,
    topics: Callable[[], Iterable[Topic]],
    alone: Callable[[int], bool],
) -> bool:
    """Go on behind what the manifest says is split, for each group that this node has `alone` and whose journal ends
    before that. Returns whether there was one. A checkpoint must follow before anything is written: no block says what
    is changed here.

    Only synced blocks are split, so this takes a lost disk 1. Block indexes continue behind the split, and
    each queue behind the last offset the store has of it, so that no offset is given out twice. Queues that
    are not in the journal at all start at their first offset in the store."""
    behind = [
        group for group in groups if alone(group.group) and group.blocks.last_index() < split_position(group.group)
    ]
    if not behind:
        return False
    for group in behind:
        log.warning(
            "write group %d: the journal ends at block %d, the queue store has blocks up to %d; going on behind "
            "them, blocks in between that were never split are lost",
            group.group,
            group.applied_index,
            split_position(group.group),
        )
        group.applied_index = split_position(group.group)
    for topic in topics():
        table.create(topic.number, 0, topic.partitions)
    epoch = 0
    async for rows in stored.all_rows(placement.groups_at, whole=True):  # else offsets would be given out twice
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
