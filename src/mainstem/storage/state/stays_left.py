"""Takes from moved queues what they had in a write group that leaves this node, and leaves them the stays before that,
if those are here.

A node that was a guest of the write group to which a queue has moved on may still be a member of the one before, and
has to give the batches that were acknowledged with its copy there. So the queue ends where that stay ends, and its
batches of later stays are not found any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy

from mainstem.kernel import (
    COMMITTED_END,
    FIRST_UNSTABLE,
    LOG_START,
    NEXT_OFFSET,
    NO_SLOT,
    SKIP_LINK,
    TAIL_LINK,
    QueueTable,
    RecentIndex,
)
from mainstem.kernel.layout import ROW_BITS
from mainstem.storage.journal.encoding.format import DIRECTORY_ROW
from mainstem.storage.placement import Placement

QUEUES_PER_TURN = 1024
"""Queues that are given back between two turns: some microseconds each."""


class StayLeft(NamedTuple):
    """A queue whose newest stay here leaves this node, and the end of what remains of it."""

    queue_id: int
    end: int
    """That of the newest stay that remains here; 0: none does."""


def stays_left(placement: Placement, group: int, is_here: Callable[[int], bool]) -> Iterator[StayLeft]:
    """The moved queues whose newest stay on this node is in a write group that leaves it."""
    for queue_id, stays in list(placement.moved.items()):
        newest, end = -1, 0
        for place in range(len(stays) - 1, -1, -1):
            if newest < 0 and stays[place].group == group:
                newest = place
            elif stays[place].group != group and is_here(stays[place].group):
                end = stays[place + 1].first_offset if place + 1 < len(stays) else -1
                break
        if newest >= 0 and end >= 0:
            yield StayLeft(queue_id, end)


async def give_back(
    table: QueueTable, index: RecentIndex, left: Iterator[StayLeft], goes_on: Callable[[int], bool]
) -> None:
    """Give these queues the ends of what remains. Of queues that go on in another write group only the batches are
    forgotten: nothing else here may know where they begin and end."""
    for number, (queue_id, end) in enumerate(left, 1):
        slot = table.find(queue_id)
        if slot == NO_SLOT:
            continue
        table.set(slot, TAIL_LINK, _link_before(index, slot, queue_id, end))
        table.set(slot, SKIP_LINK, 0)  # the next entries bring others
        table.set(slot, FIRST_UNSTABLE, 0)  # no transaction is open where a queue moves on
        if not goes_on(queue_id):
            for cell in (COMMITTED_END, NEXT_OFFSET, LOG_START):
                table.set(slot, cell, min(table.get(slot, cell), end))
        if number % QUEUES_PER_TURN == 0:
            await asyncio.sleep(0)


def _link_before(index: RecentIndex, slot: int, queue_id: int, end: int) -> int:
    """The link to a queue's last entry in the index before an offset; 0: the index has none right before it."""
    entries = index.window(slot, end - 1) if end else []
    if not entries or entries[0].base_offset >= end:
        return 0
    block = entries[0].block
    rows = numpy.frombuffer(block.rows_copied(), DIRECTORY_ROW)
    found = numpy.flatnonzero((rows["queue_id"] == queue_id) & (rows["base_offset"] == entries[0].base_offset))
    return block.serial << ROW_BITS | int(found[0])
