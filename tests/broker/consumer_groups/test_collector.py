"""A full collection of garbage holds up the event loop while it visits what groups hold: it visits none of it."""

from __future__ import annotations

import gc
from uuid import UUID

import pytest

from mainstem.broker.consumer_groups.logged_state import LoggedState
from mainstem.broker.consumer_groups.members.holdings import Holdings
from mainstem.broker.consumer_groups.step import ConsumerGroupRecord, ModernRecord, OffsetRecord
from mainstem.broker.consumer_groups.timers import TimerKey, TimerKind, Timers
from mainstem.kernel import KERNEL
from mainstem.protocol.messages.consumer_group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    RecordedTopicPartitions,
)
from mainstem.protocol.messages.consumer_offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)

GROUPS = 2_000
MEMBERS = 2_000
TOPIC_ID = UUID(int=7)
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


@pytest.mark.skipif(KERNEL == "python", reason="only the compiled kernel can tell the collector what to leave out")
@pytest.mark.parametrize("joined", ["classic", "consumer"])
def test_a_full_collection_visits_no_members_and_no_timers_of_theirs(joined: str) -> None:
    state, timers = LoggedState(Holdings()), Timers()
    names = [f"member-{number}" for number in range(MEMBERS)]
    gc.collect()
    before = {id(one) for one in gc.get_objects()}
    if joined == "classic":
        state.replay(classic_group(names))
    else:
        state.replay(
            ModernRecord(ConsumerGroupMetadataKey(group="g"), ConsumerGroupMetadataValue(epoch=1, metadata_hash=0))
        )
        for number, name in enumerate(names):
            for record in consumer_member(name, number):
                state.replay(record)
    for number, name in enumerate(names):
        timers.set(TimerKey(TimerKind.SESSION, "g", name), 45_000 + number)
        timers.set(TimerKey(TimerKind.SESSION, "g", name), 90_000 + number)
    assert timers.next_deadline_ms() == 90_000, "entries were put back"
    gc.collect()
    visited = [one for one in gc.get_objects() if id(one) not in before]
    assert len((state.classic if joined == "classic" else state.modern)["g"].members) == len(timers) == MEMBERS
    assert len(visited) < MEMBERS / 10, "objects of members"


def classic_group(names: list[str]) -> ConsumerGroupRecord:
    rows = [
        MemberMetadata(
            member_id=name, client_id="c", client_host="/h", rebalance_timeout=1, session_timeout=1,
            subscription=b"s", assignment=b"a",
        )
        for name in names
    ]  # fmt: skip
    value = GroupMetadataValue(
        protocol_type="consumer", generation=1, protocol="range", leader=names[0], members=tuple(rows)
    )
    return ConsumerGroupRecord(GroupMetadataKey(group="g"), value)


def consumer_member(name: str, number: int) -> list[ModernRecord]:
    rows = (RecordedTopicPartitions(topic_id=TOPIC_ID, partitions=(number,)),)
    metadata = ConsumerGroupMemberMetadataValue(client_id="c", client_host="/h", subscribed_topic_names=("orders",))
    target = ConsumerGroupTargetAssignmentMemberValue(topic_partitions=rows)
    current = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=1, previous_member_epoch=1, state=1, assigned_partitions=rows, partitions_pending_revocation=()
    )
    return [
        ModernRecord(ConsumerGroupMemberMetadataKey(group="g", member_id=name), metadata),
        ModernRecord(ConsumerGroupTargetAssignmentMemberKey(group="g", member_id=name), target),
        ModernRecord(ConsumerGroupCurrentMemberAssignmentKey(group="g", member_id=name), current),
    ]
