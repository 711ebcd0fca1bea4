"""The parts of a snapshot are told over many turns, while blocks go on being applied."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import numpy

from mainstem.kernel import COMMITTED_END, QueueTable
from mainstem.model import SLOTS, queue_id_of, slot_of
from mainstem.raft import Membership, Snapshot
from mainstem.rpc.messages.snapshots import QUEUES
from mainstem.storage.placement import Placement
from mainstem.storage.remote.decided.remote_state import Notes, RemotePosition
from mainstem.storage.state.producers.producer_rows import STATE, States
from mainstem.storage.state.slot_moves import SlotMoves
from mainstem.storage.state.snapshot_image import parts
from mainstem.storage.write_groups.control import QueuesArrived

GROUP, BEFORE, SPLIT_UPTO = 0, 1, 10
HERE, COMES = queue_id_of(1, 0), queue_id_of(1, 1)


def test_a_snapshot_tells_nothing_of_the_queues_of_a_slot_that_comes_while_it_is_told() -> None:
    """The member that gets it would take their records for its own, before it has applied that they came."""
    table = QueueTable()
    table.create(1, 0, 2)
    for queue_id in (HERE, COMES):
        table.set(table.find(queue_id), COMMITTED_END, 20)
    slots = [GROUP] * SLOTS
    slots[slot_of(COMES)] = BEFORE
    moves = SlotMoves(table, Placement(slots))

    async def all_states(group: int) -> AsyncIterator[States]:
        arrival = QueuesArrived(slot_of(COMES), BEFORE, 1, ((COMES, 20),))
        assert moves.arrived(GROUP, SPLIT_UPTO + 5, arrival) == "done"
        yield numpy.zeros(0, STATE)

    async def no_remote(group: int) -> tuple[RemotePosition, Notes, None]:
        return RemotePosition(0, 0, 0), Notes({}, {}), None

    name = Snapshot(SPLIT_UPTO, 1, Membership.of([1], []))
    spans = SimpleNamespace(file_count=0, described=lambda: ())
    group: Any = SimpleNamespace(
        group=GROUP,
        term=1,
        blocks=SimpleNamespace(snapshot=lambda: name),
        transactions=SimpleNamespace(image=lambda as_of: b""),
        applied_index=SPLIT_UPTO,
        consensus=SimpleNamespace(leads=True),
    )
    store: Any = SimpleNamespace(manifest=SimpleNamespace(spans=lambda group: spans))
    producers: Any = SimpleNamespace(all_states=all_states)
    remote: Any = SimpleNamespace(image=no_remote)

    async def told() -> list[list[int]]:
        rows = b""
        async for part in parts(group, store, table, producers, remote, moves, with_state=True):
            if part.message.holds == QUEUES and isinstance(part.attachment, bytes):
                rows += part.attachment
        return numpy.frombuffer(rows, numpy.int64).reshape(-1, 3).tolist()

    assert asyncio.run(told()) == [[HERE, 20, 0]]
