"""Slots that are kept fewer times than their class promises: no topic has fewer copies than it was promised, unless
somebody asked for that; planted bugs break this."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence

import pytest
from tests.nameserver.state.test_replica_classes import create, grow, made
from tests.nameserver.state.test_state import replayed
from tests.nameserver.state.test_write_group_growth import cluster

from mainstem.model import CLASSED, SLOTS, FeatureLevel, Topic, class_of, slot_of
from mainstem.nameserver.errors import (
    FeatureLevelTooLow,
    InvalidPartitions,
    InvalidPlacement,
    InvalidReplicationFactor,
    kind_of,
)
from mainstem.nameserver.state import changes, state
from mainstem.nameserver.state.commands import ChangeTopicConfigs, DeleteTopic, MoveSlot, SettleSlot, SlotMoved
from mainstem.nameserver.state.plans import reduced_slots
from mainstem.nameserver.state.plans.reduced_slots import first_in, number_beside
from mainstem.nameserver.state.state import MetadataState
from mainstem.rpc.messages.metadata import WantedTopic, WantPartitions, WantSlotMove, WantTopics

THRICE, ONCE = 0, 4
"""Write groups with three replicas and with one."""


def classes() -> MetadataState:
    """Four write groups with three replicas, and three with one each."""
    metadata = cluster(level=FeatureLevel.newest())
    grow(metadata, 7, 1)
    assert metadata.factors == (3, 1)
    return metadata


def topic(name: str, factor: int = 3, partitions: int = 4) -> WantedTopic:
    return WantedTopic(name=name, partitions=partitions, replication_factor=factor, configs={})


def slot_in(metadata: MetadataState, name: str, partition: int = 0) -> int:
    return slot_of(metadata.topics[name].queue_id(partition))


def ask(metadata: MetadataState, wanted: WantSlotMove) -> str:
    """Carry a move out. Returns why it cannot be."""
    commands, refusals, _ = made(wanted, metadata)
    if refusals:
        return refusals[0].message
    (move,) = commands
    assert isinstance(move, MoveSlot)
    assert metadata.cluster is not None
    before = metadata.cluster.slots[move.slot]
    metadata.apply(move)
    metadata.apply(SlotMoved(move.slot, move.group, move.number, [before]))
    metadata.apply(SettleSlot(move.slot, move.number))
    return ""


def test_a_slot_whose_queues_are_all_named_goes_to_fewer_replicas() -> None:
    metadata = classes()
    create(metadata, topic("a"))
    slot = slot_in(metadata, "a")
    move = MoveSlot(slot, ONCE, 1)
    metadata.check(move)
    metadata.apply(move)
    assert metadata.reduced_slots == {slot}, "from the wish on"
    metadata.apply(SlotMoved(slot, ONCE, 1, [THRICE]))
    assert metadata.reduced_slots == replayed(metadata.commands()).reduced_slots == {slot}
    assert metadata.factors == (3, 1)
    assert ask(metadata, WantSlotMove("a", 0, THRICE + 1)) == ""
    assert metadata.reduced_slots == frozenset()


def test_it_takes_a_feature_level() -> None:
    metadata = cluster(level=FeatureLevel.HOSTING)
    grow(metadata, 7, 1)
    create(metadata, topic("a"))
    with pytest.raises(FeatureLevelTooLow, match=f"takes level {FeatureLevel.REDUCED.value}"):
        metadata.check(MoveSlot(slot_in(metadata, "a"), ONCE, 1))


def test_queues_that_nobody_named_lose_no_copies() -> None:
    metadata = classes()
    create(metadata, topic("many", partitions=3_000))
    slots = [slot_in(metadata, "many", partition) for partition in range(3_000)]
    twin = next(number for number, slot in enumerate(slots) if slots.index(slot) < number)
    first = slots.index(slots[twin])
    why = ask(metadata, WantSlotMove("many", first, ONCE))
    assert f"partition {twin} of topic 'many' as well" in why
    assert ask(metadata, WantSlotMove("many", first, THRICE if slots[first] % 4 else 1)) == "", "none is lost there"
    assert ask(metadata, WantSlotMove("many", first, ONCE, [("many", twin)])) == ""
    assert ask(metadata, WantSlotMove("many", first, ONCE + 1)) == "", "they have one copy each already"


def test_a_topic_keeps_the_copies_that_its_producers_wait_for() -> None:
    metadata = classes()
    create(metadata, topic("a"))
    number = metadata.topics["a"].number
    metadata.apply(ChangeTopicConfigs(number, {"min.insync.replicas": "2"}))
    assert "min.insync.replicas = 2, and would be kept 1 times" in ask(metadata, WantSlotMove("a", 0, ONCE))
    metadata.apply(ChangeTopicConfigs(number, {"min.insync.replicas": "1"}))
    assert ask(metadata, WantSlotMove("a", 0, ONCE)) == ""


def test_topics_that_come_later_have_no_queue_there() -> None:
    metadata = classes()
    create(metadata, topic("a", partitions=40))
    for partition in range(40):
        assert ask(metadata, WantSlotMove("a", partition, ONCE)) == ""
    reduced = metadata.reduced_slots
    assert len(reduced) == 40
    later = create(metadata, *(topic(f"t{number}", partitions=60) for number in range(20)), topic("one", 1))
    assert [it.number for it in later] == sorted({it.number for it in later})
    for it in later[:-1]:
        assert first_in(reduced, it.number, range(60)) is None
        assert class_of(it.number) == 0
    with pytest.raises(InvalidReplicationFactor, match=r"40 slots that are kept fewer times .*fewer partitions"):
        create(metadata, topic("wide", partitions=50_000))
    (wide,) = create(metadata, topic("wide", 1, partitions=20_000))
    assert class_of(wide.number) == 1


def test_no_topic_gets_partitions_there() -> None:
    metadata = classes()
    create(metadata, topic("a", partitions=1), topic("b", partitions=1))
    slot = slot_in(metadata, "a")
    assert ask(metadata, WantSlotMove("a", 0, ONCE)) == ""
    for name in ("a", "b"):
        found = metadata.topics[name]
        meets = first_in({slot}, found.number, range(1, 50_000))
        assert meets is not None
        refusals = made(WantPartitions(name, meets + 1), metadata).refusals
        if name == "a":
            assert not refusals, "its own slot"
        else:
            (refusal,) = refusals
            assert refusal.kind == kind_of(InvalidPartitions(""))
            assert f"partition {meets} of topic 'b' would be in slot {slot}" in refusal.message
            assert not made(WantPartitions(name, meets), metadata).refusals


def test_a_bounded_number_of_slots_is_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduced_slots, "REDUCED_MAX", 2)
    metadata = classes()
    create(metadata, topic("a", partitions=4))
    assert [bool(ask(metadata, WantSlotMove("a", number, ONCE))) for number in range(4)] == [False, False, True, True]
    assert "no more can be" in ask(metadata, WantSlotMove("a", 2, ONCE))
    assert ask(metadata, WantSlotMove("a", 1, ONCE + 1)) == "", "it is one of them"


def test_a_slot_without_queues_goes_back_to_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = classes()
    create(metadata, topic("a", partitions=1), topic("b", partitions=1))
    slot = slot_in(metadata, "a")
    assert ask(metadata, WantSlotMove("a", 0, ONCE)) == ""
    assert metadata.slot_to_restore() is None
    metadata.apply(DeleteTopic(metadata.topics["a"].number))
    metadata.moving_slots.others[slot] = (THRICE,)
    assert metadata.slot_to_restore() is None, "its records are not gone yet"
    metadata.apply(SettleSlot(slot, 1))
    assert metadata.slot_to_restore() is None, "there are few of them"
    monkeypatch.setattr(reduced_slots, "RESTORED_FROM", 1)
    move = metadata.slot_to_restore()
    assert move is not None
    assert (move.slot, move.number, len(metadata.placements[move.group])) == (slot, 2, 3)
    metadata.check(move)
    metadata.apply(move)
    assert metadata.slot_to_restore() is None, "it is on its way"
    metadata.apply(SlotMoved(slot, move.group, 2, []))
    assert metadata.reduced_slots == frozenset()


def test_a_class_whose_slots_have_all_moved_promises_no_less() -> None:
    metadata = classes()
    for slot in range(SLOTS):
        metadata.apply(SlotMoved(slot, ONCE if slot < reduced_slots.REDUCED_MAX else (slot + 1) % 4, 1, []))
    assert metadata.factors == (3, 1)
    assert len(metadata.reduced_slots) == reduced_slots.REDUCED_MAX


def test_numbers_go_by_the_hash_of_each_queue() -> None:
    for number in (5, CLASSED + 8 * 11 + 1):
        for first in (0, 3):
            hashed = [slot_of((number << 32) + partition) for partition in range(first, 40)]
            assert first_in({hashed[20]}, number, range(first, 40)) == first + hashed.index(hashed[20])
            assert first_in({hashed[0] + SLOTS}, number, range(first, 40)) is None
    assert number_beside(set(range(SLOTS)), 7, 3, queues_max=5) == (7, 5)


def test_a_request_of_many_wide_topics_is_refused_without_looking_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = classes()
    create(metadata, topic("a", partitions=1))
    assert ask(metadata, WantSlotMove("a", 0, ONCE)) == ""
    hashed: list[int] = []

    def counted(reduced: Collection[int], number: int, partitions: int, queues_max: int) -> tuple[int, int]:
        found, tried = number_beside(reduced, number, partitions, queues_max)
        hashed.append(tried)
        return found, tried

    monkeypatch.setattr(changes, "QUEUES_TRIED_MAX", 2_000)
    monkeypatch.setattr(changes, "QUEUES_TRIED_FOR_ALL_MAX", 20_000)
    monkeypatch.setattr(changes, "number_beside", counted)
    partitions = 16 * SLOTS
    change = made(WantTopics([*(topic(f"w{it}", partitions=partitions) for it in range(100)), topic("n")]), metadata)
    assert [refusal.kind for refusal in change.refusals] == [kind_of(InvalidReplicationFactor(""))] * 100
    assert len(change.commands) == 1, "the narrow one has a number at once"
    assert sum(hashed) <= 20_000 + partitions, "but for the last number that was looked at"


class Story:
    """Random topics, moves, deletions and more partitions; what each queue was promised is known."""

    def __init__(self, seed: int) -> None:
        self.restores = seed % 2 == 1
        self.rng = random.Random(seed)
        self.metadata = classes()
        self.asked: set[tuple[str, int]] = set()
        """Partitions that were named for fewer copies."""
        self.names = 0

    def play(self) -> None:
        for _ in range(60):
            self.rng.choice([self.create, self.reduce, self.reduce, self.widen, self.delete, self.restore])()
            self.check()

    def create(self) -> None:
        self.names += 1
        wanted = topic(f"t{self.names}", self.rng.choice([1, 3, 3]), self.rng.choice([1, 30, 300]))
        for command in made(WantTopics([wanted]), self.metadata).commands:
            self.metadata.apply(command)

    def reduce(self) -> None:
        if self.metadata.topics:
            it = self.metadata.topics[self.rng.choice(sorted(self.metadata.topics))]
            for partition in range(min(it.partitions, self.rng.choice([1, 20]))):
                moved = ask(self.metadata, WantSlotMove(it.name, partition, self.rng.randrange(7))) == ""
                if moved and len(self.metadata.placements[self.metadata.write_group(it.queue_id(partition))]) < 3:
                    self.asked.add((it.name, partition))

    def widen(self) -> None:
        if self.metadata.topics:
            it = self.metadata.topics[self.rng.choice(sorted(self.metadata.topics))]
            for command in made(WantPartitions(it.name, it.partitions + 100), self.metadata).commands:
                self.metadata.apply(command)

    def delete(self) -> None:
        if self.metadata.topics and self.rng.random() < 0.3:
            name = self.rng.choice(sorted(self.metadata.topics))
            self.metadata.apply(DeleteTopic(self.metadata.topics[name].number))

    def restore(self) -> None:
        while self.restores and (move := self.metadata.slot_to_restore()) is not None:
            self.metadata.check(move)
            self.metadata.apply(move)
            self.metadata.apply(SlotMoved(move.slot, move.group, move.number, []))

    def check(self) -> None:
        of_class = {0: 3, 1: 1}
        for it in self.metadata.topics.values():
            for partition in range(it.partitions):
                copies = len(self.metadata.placements[self.metadata.write_group(it.queue_id(partition))])
                promised = of_class[class_of(it.number)]
                asked = copies >= promised or self.shares(it, slot_of(it.queue_id(partition)))
                assert asked, f"{it.name}:{partition} lost copies for which nobody asked that"

    def shares(self, it: Topic, slot: int) -> bool:
        """Whether somebody asked for fewer copies of a topic's queue in a slot: other partitions may come to it."""
        return any(name == it.name and slot_of(it.queue_id(partition)) == slot for name, partition in self.asked)


@pytest.mark.parametrize("seed", range(6))
def test_no_queue_loses_copies_that_somebody_did_not_ask_for(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduced_slots, "RESTORED_FROM", 1)
    Story(seed).play()


def play(stories: Sequence[Story]) -> None:
    for story in stories:
        story.play()


PLANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "topics come anywhere": lambda patch: (
        patch.setattr(changes, "number_beside", lambda reduced, number, partitions, queues_max: (number, 0)),
        patch.setattr(state, "check_new_topic", lambda *_: None),
    )[0],
    "partitions come anywhere": lambda patch: patch.setattr(state, "check_more_partitions", lambda *_: None),
    "nobody need be named": lambda patch: patch.setattr(changes, "check_named", lambda *_: None),
}


@pytest.mark.parametrize("plant", PLANTS)
def test_planted_bugs_take_copies_away(plant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTS[plant](monkeypatch)
    stories = [Story(seed) for seed in range(12)]
    with pytest.raises(AssertionError, match="lost copies for which nobody asked that"):
        play(stories)


def test_the_refusals_are_of_kinds_that_clients_are_told() -> None:
    metadata = classes()
    create(metadata, topic("a", partitions=1))
    (refusal,) = made(WantSlotMove("a", 1, ONCE), metadata).refusals
    assert refusal.kind == kind_of(InvalidPlacement(""))
