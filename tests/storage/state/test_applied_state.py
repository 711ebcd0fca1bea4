"""Blocks from elsewhere may be about queues whose creation stands in another group's log, further on."""

from __future__ import annotations

from typing import cast

import numpy
import pytest

from mainstem.kernel import NO_SLOT
from mainstem.model import PARTITION_BITS, SLOTS
from mainstem.storage.journal.encoding.format import DIRECTORY_ROW
from mainstem.storage.journal.journal_map import JournalMap
from mainstem.storage.placement import Placement
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.remote.decided.remote_tier import RemoteTier
from mainstem.storage.state.applied import FEW_ROWS, AppliedState
from mainstem.storage.write_groups.control import QueuesCreated

KNOWN, NEW, DELETED = 1, 2, 3


class NothingSplit:
    """The queue store as far as this asks for it: the part of it that knows the positions."""

    def __init__(self) -> None:
        self.splits = self

    def split_position(self, group: int) -> int:
        return 0


def applied_state() -> AppliedState:
    state = AppliedState(
        cast(QueueStore, NothingSplit()),
        cast(RemoteTier, None),
        JournalMap(1),
        lambda topic_number: topic_number == DELETED,
        Placement([0] * SLOTS),
        cache_bytes_max=1 << 20,
    )
    state.table.create(KNOWN, 0, 4)
    return state


def directory(*queues: tuple[int, int]) -> memoryview:
    rows = numpy.zeros(len(queues), DIRECTORY_ROW)
    rows["queue_id"] = [topic << PARTITION_BITS | partition for topic, partition in queues]
    return memoryview(rows.tobytes())


@pytest.mark.parametrize("known_rows", [1, FEW_ROWS - 2, FEW_ROWS, 5 * FEW_ROWS])
def test_queues_that_are_seen_exist(known_rows: int) -> None:
    state = applied_state()
    known = [(KNOWN, at % 4) for at in range(known_rows)]
    state.queues_seen(directory(*known))
    assert state.table.find(NEW << PARTITION_BITS) == NO_SLOT
    state.queues_seen(directory(*known, (NEW, 2), (NEW, 2)))
    for partition in range(3):
        assert state.table.find(NEW << PARTITION_BITS | partition) != NO_SLOT
    state.queues_seen(directory((DELETED, 0), *known))
    assert state.table.find(DELETED << PARTITION_BITS) == NO_SLOT


def test_queues_of_a_deleted_topic_do_not_come_back_with_a_group_that_is_behind() -> None:
    state = applied_state()
    for topic in (NEW, DELETED):
        state.command_applied(0, 1, QueuesCreated(topic, 0, 1))
    assert state.table.find(NEW << PARTITION_BITS) != NO_SLOT
    assert state.table.find(DELETED << PARTITION_BITS) == NO_SLOT
