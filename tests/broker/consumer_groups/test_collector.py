"""A full collection of garbage holds up the event loop while it visits what groups hold: it visits none of it."""

from __future__ import annotations

import gc

import pytest

from mainstem.broker.consumer_groups.logged_state import LoggedState
from mainstem.broker.consumer_groups.members.holdings import Holdings
from mainstem.broker.consumer_groups.step import OffsetRecord
from mainstem.kernel import KERNEL
from mainstem.protocol.messages.consumer_offsets import OffsetCommitKey, OffsetCommitValue

GROUPS = 2_000
VALUE = OffsetCommitValue(offset=7, metadata="", commit_timestamp=1)


@pytest.mark.skipif(KERNEL == "python", reason="only the compiled kernel can tell the collector what to leave out")
def test_a_full_collection_visits_no_groups_and_no_offsets() -> None:
    state = LoggedState(Holdings())
    gc.collect()
    before = {id(one) for one in gc.get_objects()}
    for partition in range(2):
        for number in range(GROUPS):
            key = OffsetCommitKey(group=f"group-{number}", topic="orders", partition=partition)
            state.replay(OffsetRecord(key, VALUE))
    gc.collect()
    visited = gc.get_objects()
    assert state.offsets.count == 2 * GROUPS
    assert state.group_count == GROUPS
    assert sum(id(one) not in before for one in visited) < GROUPS / 10, "objects of groups"
    by_group = [one for one in visited if isinstance(one, dict) and len(one) == GROUPS]
    assert not by_group, "each entry of a dictionary of groups"
