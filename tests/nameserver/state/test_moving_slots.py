"""Wishes that slots move: which are refused, what follows from the others, and that a snapshot tells the same."""

from __future__ import annotations

import pytest
from tests.nameserver.state.test_state import CLUSTER, new_topic, replayed

from mainstem.model import FeatureLevel, slot_of
from mainstem.nameserver.errors import (
    FeatureLevelTooLow,
    InconsistentCommand,
    InvalidConfig,
    InvalidPlacement,
    MoveBegun,
    NotMoving,
)
from mainstem.nameserver.state.commands import (
    ChangeTopicConfigs,
    Command,
    KeepSlot,
    MoveReplica,
    MoveSlot,
    PlaceWriteGroups,
    RaiseFeatureLevel,
    RegisterNode,
    SetDraining,
    SettleSlot,
    SlotMoveBegins,
    SlotMoved,
    SlotWished,
    WriteGroupsAdded,
)
from mainstem.nameserver.state.moving_slots import WishedMove
from mainstem.nameserver.state.replica import differences
from mainstem.nameserver.state.resource_configs.topic_defaults import TopicDefaults
from mainstem.nameserver.state.state import MetadataState

SLOT = 7


def cluster(*, level: FeatureLevel = FeatureLevel.MOVABLE, apart: bool = False) -> MetadataState:
    """Two write groups on one node, or each on one of its own."""
    state = replayed([CLUSTER])
    state.apply(RaiseFeatureLevel(level))
    for node_id in (1, 2):
        state.apply(RegisterNode(node_id, "host", 9092))
    groups = CLUSTER.write_groups
    state.apply(PlaceWriteGroups([[1 + (apart and group == 1)] for group in range(groups)]))
    return state


def slots(state: MetadataState) -> list[int]:
    assert state.cluster is not None
    return state.cluster.slots


def wished(state: MetadataState, slot: int = SLOT) -> MoveSlot:
    """A wish that can be logged, for another write group than the slot's."""
    group = next(
        group for group in (0, 1, 2) if group not in {slots(state)[slot], *state.moving_slots.others.get(slot, ())}
    )
    return MoveSlot(slot, group, state.moving_slots.next_number(slot))


def moved(state: MetadataState, slot: int = SLOT) -> SlotMoved:
    """Wish for a move and carry it out."""
    wish, before = wished(state, slot), slots(state)[slot]
    state.check(wish)
    assert state.apply(wish) == SlotWished(slot)
    done = SlotMoved(slot, wish.group, wish.number, [before])
    state.check(done)
    event = state.apply(done)
    assert isinstance(event, WriteGroupsAdded)
    assert event.slots[slot] == wish.group
    assert event.numbers == state.moving_slots.numbers
    return done


def test_a_slot_moves_as_it_is_wished_and_told() -> None:
    state = cluster()
    done = moved(state)
    assert slots(state)[SLOT] == done.group
    assert state.moving_slots.others == {SLOT: tuple(done.others)}
    assert state.apply(SettleSlot(SLOT, 99)) is None
    assert state.moving_slots.others, "of another move"
    event = state.apply(SettleSlot(SLOT, 1))
    assert event == WriteGroupsAdded(state.placements, slots(state), {SLOT: 1}), "storage hears what it may remove"
    assert not state.moving_slots.others
    assert state.apply(SettleSlot(SLOT, 1)) is None
    assert SLOT in state.used_slots(), "new write groups take no slot that has moved"
    with pytest.raises(InconsistentCommand):
        state.apply(done)


def test_a_snapshot_tells_the_same() -> None:
    state = cluster()
    moved(state)
    moved(state, SLOT + 1)
    state.apply(SettleSlot(SLOT + 1, 1))
    state.apply(wished(state, SLOT + 2))
    late = replayed(list(state.commands()))
    assert slots(late) == slots(state)
    for known in ("wishes", "numbers", "others"):
        assert getattr(late.moving_slots, known) == getattr(state.moving_slots, known)
    assert late.moving_slots.wishes == {SLOT + 2: WishedMove(wished(state, SLOT + 2).group, 1, begun=True)}
    settled = replayed(list(state.commands()))
    event = settled.apply(SettleSlot(SLOT, 1))
    assert event in differences(late, settled)
    there_and_back = cluster()
    before = replayed(list(there_and_back.commands()))
    home = slots(before)[SLOT]
    for group, number in ((0, 1), (home, 2)):
        there_and_back.apply(SlotMoved(SLOT, group, number, [slots(there_and_back)[SLOT]]))
        there_and_back.apply(SettleSlot(SLOT, number))
    assert slots(before) == slots(there_and_back)
    assert [it.numbers for it in differences(before, there_and_back) if isinstance(it, WriteGroupsAdded)] == [{SLOT: 2}]
    events = differences(cluster(), late)
    assert SlotWished(SLOT + 2) in events
    assert WriteGroupsAdded(late.placements, slots(late), late.moving_slots.numbers, late.moving_slots.others) in events


def test_a_move_is_taken_back_until_it_begins() -> None:
    state = cluster(level=FeatureLevel.RECALLABLE)
    first = wished(state)
    with pytest.raises(NotMoving):
        state.check(KeepSlot(SLOT, first.group, 1))
    state.apply(first)
    kept = KeepSlot(SLOT, first.group, first.number)
    state.check(kept)
    state.apply(kept)
    assert not state.moving_slots.wishes
    begins = SlotMoveBegins(SLOT, first.group, first.number)
    with pytest.raises(InvalidPlacement, match="any more"):
        state.check(begins)  # a leader of the write group that has not heard of it
    state.apply(begins)  # it was proposed before
    assert not state.moving_slots.wishes
    other = next(group for group in range(4) if group not in (slots(state)[SLOT], first.group))
    second = MoveSlot(SLOT, other, 1)
    state.check(second)
    state.apply(second)
    with pytest.raises(InvalidPlacement, match="any more"):
        state.check(begins)  # of the move before, which has the same number
    state.apply(kept)
    assert state.moving_slots.wishes == {SLOT: WishedMove(other, 1)}, "the other move goes on"
    begins = SlotMoveBegins(SLOT, other, 1)
    for _ in range(2):
        state.check(begins)
        state.apply(begins)
    late = replayed(list(state.commands()))
    for known in (state, late):
        assert known.moving_slots.wishes == {SLOT: WishedMove(other, 1, begun=True)}
        with pytest.raises(MoveBegun):
            known.check(KeepSlot(SLOT, other, 1))
    state.apply(KeepSlot(SLOT, other, 1))
    assert state.moving_slots.wishes, "proposed before it began"
    state.check(SlotMoved(SLOT, other, 1, []))


def test_moves_that_were_wished_for_at_a_lower_level_are_not_taken_back() -> None:
    """The leader of the write group may have fenced the slot without a word."""
    state = cluster()
    state.apply(wished(state))
    with pytest.raises(FeatureLevelTooLow):
        state.check(KeepSlot(SLOT, wished(state).group, 1))
    assert replayed(list(state.commands())).moving_slots.wishes == state.moving_slots.wishes
    assert not any(isinstance(it, SlotMoveBegins) for it in state.commands()), "other programs would not know it"
    state.apply(RaiseFeatureLevel(FeatureLevel.RECALLABLE))
    for known in (state, replayed(list(state.commands()))):
        with pytest.raises(MoveBegun):
            known.check(KeepSlot(SLOT, wished(state).group, 1))


def test_wishes_that_cannot_be_are_refused() -> None:
    state = cluster()
    here = slots(state)[SLOT]
    with pytest.raises(InvalidPlacement, match="already"):
        state.check(MoveSlot(SLOT, here, 1))
    with pytest.raises(InvalidPlacement, match="there is no write group 99"):
        state.check(MoveSlot(SLOT, 99, 1))
    with pytest.raises(InvalidPlacement, match="has moved meanwhile"):
        state.check(MoveSlot(SLOT, 0, 2))
    with pytest.raises(FeatureLevelTooLow):
        cluster(level=FeatureLevel.CONFIGURED).check(MoveSlot(SLOT, 0, 1))
    apart = cluster(level=FeatureLevel.RETURNING, apart=True)
    with pytest.raises(FeatureLevelTooLow, match=f"takes level {FeatureLevel.HOSTING.value}"):
        apart.check(MoveSlot(SLOT, 1, 1))
    stored = MetadataState(TopicDefaults(), has_remote_store=True)
    for command in cluster(level=FeatureLevel.REDUCED).commands():
        stored.apply(command)
    with pytest.raises(FeatureLevelTooLow, match=f"takes level {FeatureLevel.STORED.value}"):
        stored.check(MoveSlot(SLOT, 0, 1))
    stored.apply(RaiseFeatureLevel(FeatureLevel.STORED))
    stored.check(MoveSlot(SLOT, 0, 1))
    state.apply(wished(state))
    with pytest.raises(InvalidPlacement, match="on its way"):
        state.check(wished(state))
    with pytest.raises(InvalidPlacement, match="any more"):
        state.check(SlotMoved(SLOT, 0, 2, []))
    other = cluster()
    moved(other)
    with pytest.raises(FeatureLevelTooLow, match=f"takes level {FeatureLevel.RETURNING.value}"):
        other.check(MoveSlot(SLOT, here, 2))
    other.apply(SettleSlot(SLOT, 1))
    other.check(MoveSlot(SLOT, here, 2))


def test_a_slot_returns_to_where_its_queues_have_records() -> None:
    state = cluster(level=FeatureLevel.RETURNING)
    here = slots(state)[SLOT]
    away = moved(state).group
    state.check(back := MoveSlot(SLOT, here, 2))
    state.apply(back)
    state.check(done := SlotMoved(SLOT, here, 2, [here, away]))
    state.apply(done)
    assert slots(state)[SLOT] == here
    assert state.moving_slots.others == {SLOT: (here, away)}
    with pytest.raises(InvalidPlacement, match=f"write group {here}: its replica stays"):
        state.check(MoveReplica(here, 1, 2))


def test_queues_of_internal_topics_move_from_a_level_on() -> None:
    state = cluster(level=FeatureLevel.KEPT)
    state.apply(new_topic(state, "here", partitions=1, internal=True, configs={"cleanup.policy": "compact"}))
    slot = slot_of(state.topics["here"].queue_id(0))
    with pytest.raises(FeatureLevelTooLow, match=f"takes level {FeatureLevel.COORDINATED.value}"):
        state.check(wished(state, slot))
    state.apply(RaiseFeatureLevel(FeatureLevel.COORDINATED))
    state.check(wished(state, slot))
    assert not state.moving_slots.kept_in(slot, state.topics.values()), "its writer drops what was before"


def test_compacted_queues_move_whose_records_go_with_retention() -> None:
    configs = {"cleanup.policy": "compact,delete"}
    early = cluster(level=FeatureLevel.UNPINNED)
    early.apply(new_topic(early, "here", partitions=1, configs=configs))
    slot = slot_of(early.topics["here"].queue_id(0))
    with pytest.raises(FeatureLevelTooLow, match=f"takes level {FeatureLevel.COMPACTED.value}"):
        early.check(wished(early, slot))
    state = cluster(level=FeatureLevel.COMPACTED)
    state.apply(new_topic(state, "here", partitions=1, configs=configs))
    to_keep = ChangeTopicConfigs(state.topics["here"].number, {"cleanup.policy": "compact"})
    state.check(to_keep)
    moved(state, slot)
    with pytest.raises(InvalidConfig, match="cannot be compacted without delete while partition 0 moves"):
        state.check(to_keep)
    state.check(ChangeTopicConfigs(to_keep.number, {"cleanup.policy": "delete"}))
    state.apply(RaiseFeatureLevel(FeatureLevel.KEPT))
    state.check(to_keep)


def test_queues_that_are_compacted_alone_move_from_a_level_on_and_back() -> None:
    state = cluster(level=FeatureLevel.COMPACTED)
    state.apply(new_topic(state, "here", partitions=1, configs={"cleanup.policy": "compact"}))
    slot = slot_of(state.topics["here"].queue_id(0))
    with pytest.raises(FeatureLevelTooLow, match=f"takes level {FeatureLevel.KEPT.value}"):
        state.check(wished(state, slot))
    state.apply(RaiseFeatureLevel(FeatureLevel.KEPT))
    before = slots(state)[slot]
    moved(state, slot)
    away = slots(state)[slot]
    assert away != before
    state.check(MoveSlot(slot, before, 2))
    assert state.moving_slots.kept_in(slot, state.topics.values()) == "here"


def test_what_would_tear_a_history_apart_is_refused_until_it_has_ended() -> None:
    state = cluster()
    state.apply(new_topic(state, "here", partitions=1))
    topic = state.topics["here"]
    slot = slot_of(topic.queue_id(0))
    moved(state, slot)
    changes: list[Command] = [
        MoveReplica(0, 1, 2),
        SetDraining(1, draining=True),
        ChangeTopicConfigs(topic.number, {"cleanup.policy": "compact,delete"}),
    ]
    for change in changes:
        with pytest.raises((InvalidPlacement, InvalidConfig), match=r"several"):
            state.check(change)
    state.check(ChangeTopicConfigs(topic.number, {"retention.ms": "1000"}))
    state.apply(SettleSlot(slot, 1))
    for change in changes:
        state.check(change)


def test_nodes_of_the_next_write_group_are_guests_of_those_that_have_records() -> None:
    state = cluster(level=FeatureLevel.HOSTING, apart=True)

    def guests() -> dict[int, set[int]]:
        return {group: set(nodes) for group, nodes in state.moving_slots.guests(slots(state), state.placements).items()}

    slot = next(slot for slot in range(SLOT, 4096) if slots(state)[slot] == 0)
    wish = MoveSlot(slot, 1, 1)
    state.check(wish)
    state.apply(wish)
    assert guests() == {0: {2}}
    state.apply(SlotMoved(slot, 1, 1, [0]))
    assert guests() == {0: {2}}, "node 2 keeps what the queues had before"
    state.apply(RegisterNode(3, "host", 9092))
    state.apply(MoveReplica(2, 1, 3))
    with pytest.raises(InvalidPlacement, match="in write group 0, which has no replica on nodes 3"):
        state.check(MoveSlot(slot, 2, 2))
    state.check(MoveSlot(slot, 0, 2))
    state.apply(MoveSlot(slot, 0, 2))
    assert guests() == {0: {2}, 1: {1}}
    state.apply(SlotMoved(slot, 0, 2, [0, 1]))
    assert guests() == {1: {1}}
    state.apply(SettleSlot(slot, 2))
    assert not guests()


def test_replicas_stay_only_until_a_slot_has_moved_once_nodes_keep_what_they_read() -> None:
    state = cluster(level=FeatureLevel.UNPINNED)
    before = slots(state)[SLOT]
    wish = wished(state)
    state.check(wish)
    state.apply(wish)
    for group in (before, wish.group):
        with pytest.raises(InvalidPlacement, match=f"slot {SLOT} is on its way to write group {wish.group}"):
            state.check(MoveReplica(group, 1, 2))
    with pytest.raises(InvalidPlacement, match="is on its way"):
        state.check(SetDraining(1, draining=True))
    state.apply(SlotMoved(SLOT, wish.group, 1, [before]))
    for group in (before, wish.group):
        state.check(MoveReplica(group, 1, 2))
    state.check(SetDraining(1, draining=True))
