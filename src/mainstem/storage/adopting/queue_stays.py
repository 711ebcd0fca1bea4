"""Finds which write groups have had the queues of a lost cluster, by the indexes of its files: those of queues that
have moved lie in the folders of several.

The list of topics says where each slot is, as of when it was written: maybe before the last moves. Queues
go on there, behind what other write groups have of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.model import slot_of
from mainstem.storage.extents.extent_index import ExtentIndex
from mainstem.storage.state.arrival_log import Arrival
from mainstem.storage.state.slot_moves import MovesImage
from mainstem.storage.store_files.object_names import write_group_of

Stretches = numpy.typing.NDArray[numpy.int64]
"""A row each: queue id, write group, first offset, the one behind the last."""

Stays = Sequence[tuple[int, int]]
"""The write groups of a queue, one after the other, and the first offset in each."""

Histories = Mapping[int, Stays]

FIRST_MOVE = 1
"""The number of the move of each slot whose queues have been elsewhere: nothing is left that knows of others."""


class MovedSlot(NamedTuple):
    """A slot of which queues have been elsewhere before."""

    slot: int
    group: int
    others: Sequence[int]
    """The write groups that have records of its queues from before."""


class QueueStays:
    """Collects stretches of queues, file by file."""

    def __init__(self) -> None:
        self._stretches: list[Stretches] = []

    def add(self, name: str, index: ExtentIndex) -> None:
        """Add what lies in an object, in the cluster's folder."""
        rows = index.rows
        if not len(rows):
            return
        queues, firsts, ends = (rows[name].astype(numpy.int64) for name in ("queue_id", "base_offset", "last_offset"))
        ends += 1
        begins = numpy.ones(len(rows), numpy.bool_)
        begins[1:] = (queues[1:] != queues[:-1]) | (firsts[1:] != ends[:-1])
        at = numpy.flatnonzero(begins)
        groups = numpy.full(len(at), write_group_of(name), numpy.int64)
        lasts = numpy.append(at[1:], len(rows)) - 1
        self._stretches.append(numpy.stack([queues[at], groups, firsts[at], ends[lasts]], axis=1))

    def histories(self, slots: Sequence[int]) -> dict[int, Stays]:
        """The stays of all queues that have been elsewhere than where their slot is. `slots`: the write group of each
        slot."""
        if not self._stretches:
            return {}
        rows = numpy.concatenate(self._stretches)
        rows = rows[numpy.lexsort((rows[:, 2], rows[:, 0]))]
        begins = numpy.flatnonzero(numpy.diff(rows[:, 0], prepend=rows[0, 0] - 1))
        found: dict[int, Stays] = {}
        for of_queue in numpy.split(rows, begins[1:]):
            queue_id = int(of_queue[0, 0])
            slot = slot_of(queue_id)
            if slot < len(slots) and (of_queue[:, 1] != slots[slot]).any():
                found[queue_id] = _stays(of_queue, slots[slot])
        return found


def moves_of(histories: Histories) -> MovesImage:
    """The moves that logs would have told of these histories."""
    placed = {slot_of(queue_id): stays[-1][0] for queue_id, stays in histories.items()}
    return MovesImage(
        placed={slot: (group, FIRST_MOVE) for slot, group in placed.items()},
        histories={queue_id: list(stays) for queue_id, stays in histories.items()},
        arrivals={slot: Arrival(group, FIRST_MOVE) for slot, group in placed.items()},
    )


def moved_slots(histories: Histories) -> list[MovedSlot]:
    """The slots of these histories, as metadata tells of them."""
    homes: dict[int, int] = {}
    others: dict[int, dict[int, None]] = {}
    for queue_id, stays in sorted(histories.items()):
        slot = slot_of(queue_id)
        homes[slot] = stays[-1][0]
        others.setdefault(slot, {}).update((group, None) for group, _first in stays[:-1])
    return [MovedSlot(slot, group, list(others[slot])) for slot, group in sorted(homes.items())]


def _stays(rows: Stretches, home: int) -> Stays:
    """Of one queue, by its stretches in the order of their offsets. The first stay begins at 0, whatever is left of
    it."""
    stays: list[tuple[int, int]] = []
    for _queue_id, group, first, _end in rows.tolist():
        if not stays or stays[-1][0] != group:
            stays.append((group, first if stays else 0))
    if stays[-1][0] != home:
        stays.append((home, int(rows[:, 3].max())))
    return stays
