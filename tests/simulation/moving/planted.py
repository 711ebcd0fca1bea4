"""Bugs of moves to plant, each a small change to a storage role that begins a life."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy
from tests.simulation.cluster.planted import Plant

from mainstem.nameserver.state.moving_slots import MovingSlots
from mainstem.storage.cluster.slot_mover import SlotMover
from mainstem.storage.extents.extent_index import QueueIds
from mainstem.storage.extents.offset_gaps import NO_GAPS
from mainstem.storage.placement import Placement, WriteGroups
from mainstem.storage.reading.remote_reads import RemoteReads
from mainstem.storage.role import Storage


def _epochs_go_back(storage: Storage) -> None:
    """A queue goes on in a write group whatever its term is."""
    storage.mover.is_late_enough = lambda fence, slot: True  # type: ignore[method-assign]
    storage.mover._keep_terms = lambda wishes: None  # type: ignore[method-assign]


def _fence_ignored(storage: Storage) -> None:
    """Batches are taken behind a fence, in the write group before."""
    spread = storage.messages.spread

    def unfenced(routes: WriteGroups, fenced: Collection[int] = ()) -> None:
        spread(routes)

    storage.messages.spread = unfenced  # type: ignore[method-assign]


def _chain_cut_early(storage: Storage) -> None:
    """A history forgets a stay before all that the queue had there is gone."""
    place = storage.placement.place

    def forgetful(slot: int, group: int, number: int) -> None:
        place(slot, group, number)
        for queue_id, stays in list(storage.placement.moved.items()):
            storage.placement.cut(queue_id, stays[1].first_offset)

    storage.placement.place = forgetful  # type: ignore[method-assign]


def _producers_left_behind(storage: Storage) -> None:
    """A queue leaves behind what is known of its producers."""

    async def none(group: int, queue_ids: Sequence[int]) -> list[bytes]:
        return []

    storage.mover._producers_of = none  # type: ignore[method-assign]


def _fence_not_awaited(storage: Storage) -> None:
    """A replica takes a queue's first batches in the next write group before its last ones in the one before."""
    storage.state.moves.awaits = lambda group, command: False  # type: ignore[method-assign]


def _return_forgotten(storage: Storage) -> None:
    """A queue that comes back to a write group is taken for one that has never left the one before."""
    arrive = storage.placement.arrive

    def forgetful(queue_id: int, before: int, group: int, first_offset: int) -> None:
        if all(stay.group != group for stay in storage.placement.history(queue_id)):
            arrive(queue_id, before, group, first_offset)

    storage.placement.arrive = forgetful  # type: ignore[method-assign]


def _gaps_untold(storage: Storage) -> None:
    """A merge takes for a write group's what a queue had elsewhere between two stays in it."""
    storage.merge_log._gaps_in = lambda group, queue_ids: NO_GAPS


PLANTS: Mapping[str, Callable[[Storage], None]] = {
    "epochs-go-back": _epochs_go_back,
    "fence-ignored": _fence_ignored,
    "chain-cut-early": _chain_cut_early,
    "producers-left-behind": _producers_left_behind,
    "return-forgotten": _return_forgotten,
    "gaps-untold": _gaps_untold,
}


CLUSTER_PLANTS: Mapping[str, Callable[[Storage], None]] = {
    "fence-not-awaited": _fence_not_awaited,
    "epochs-go-back": _epochs_go_back,
    "fence-ignored": _fence_ignored,
    "chain-cut-early": _chain_cut_early,
    "producers-left-behind": _producers_left_behind,
    "return-forgotten": _return_forgotten,
    "gaps-untold": _gaps_untold,
}


def _guests_leave_early() -> tuple[type, str, Any]:
    """A guest removes what queues had before, once they are in their next write group."""
    guests = MovingSlots.guests

    def of_wishes(
        moving: MovingSlots, slots: Sequence[int], placements: Mapping[int, Sequence[int]]
    ) -> Mapping[int, frozenset[int]]:
        others, moving.others = moving.others, {}
        try:
            return guests(moving, slots, placements)
        finally:
            moving.others = others

    return MovingSlots, "guests", of_wishes


def _guests_not_awaited() -> tuple[type, str, Any]:
    """A slot is fenced whatever the nodes of its next write group have of the one before."""
    return SlotMover, "_lacking", lambda mover, before, wish: ""


def _old_copies_go_early() -> tuple[type, str, Any]:
    """A node that the queues of a slot have left removes them at once, whatever others have of it."""
    gone_elsewhere = Placement.gone_elsewhere

    def at_once(placement: Placement, queue_ids: QueueIds, is_here: Callable[[int], bool]) -> Any:
        placement._settled = numpy.array(sorted(placement._numbers), numpy.int64)
        return gone_elsewhere(placement, queue_ids, is_here)

    return Placement, "gone_elsewhere", at_once


def _earlier_objects_passed_over() -> tuple[type, str, Any]:
    """A read of the object store looks for a queue's records where the queue is now, and nowhere else."""
    in_tier = RemoteReads._in_tier

    async def of_last_stay(reads: RemoteReads, queue_id: int, offset: int, bytes_max: int) -> Any:
        (*_earlier, last) = reads._placement.history(queue_id)
        return await in_tier(reads, queue_id, max(offset, last.first_offset), bytes_max)

    return RemoteReads, "_in_tier", of_last_stay


APART_PLANTS: Mapping[str, Plant] = {
    "old-copies-go-early": _old_copies_go_early,
    "guests-leave-early": _guests_leave_early,
    "guests-not-awaited": _guests_not_awaited,
}
"""Bugs to plant in clusters with write groups on other nodes, by `cluster.planted`."""

APART_BREAKS = {"old-copies-go-early": "A", "guests-leave-early": "B", "guests-not-awaited": "S"}
"""As `cluster.planted.BREAKS`."""

STORE_PLANTS: Mapping[str, Plant] = {"earlier-objects-passed-over": _earlier_objects_passed_over}
"""The same where all files lie in one store besides."""

STORE_BREAKS = {"earlier-objects-passed-over": "A"}
