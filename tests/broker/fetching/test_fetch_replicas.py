"""Fetch of consumers that name their rack: the answers of a leader elsewhere, and of a node there that follows."""

from __future__ import annotations

import asyncio
from array import array
from dataclasses import replace
from typing import NamedTuple

import pytest
from tests.broker.fetching.test_fetch import Ask, ask, parts, request_for
from tests.broker.harness import Fakes, make_broker
from tests.fakes.clock import LoopClock
from tests.fakes.memory_store import MemoryStore

from mainstem.broker.fetching.nearer_replicas import NearerReplicas
from mainstem.kernel import (
    COMMITTED_END,
    NEXT_OFFSET,
    FetchPlan,
    FollowedLog,
    FollowersRead,
    QueueTable,
    RecentIndex,
)
from mainstem.model import SLOTS_OF_ALL, Topic, slot_of
from mainstem.ports import ReadPlan
from mainstem.prompt_future import PromptFuture
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.fetch import FetchRequest

LED, FOLLOWED = range(2)
EPOCH = 3
HERE, NEAR, FAR = "here", "near", "far"
ANOTHER_NODE, PATIENT_NODE, SHARING_NODE = 5, 6, 7
WAIT_MS = 30


class LedLog(NamedTuple):
    term: int


class ReplicaStore(MemoryStore):
    """Two write groups, of which another node leads one: partition 0 is led here, partition 1 is followed. Nothing is
    in the queues but offsets, three each."""

    def __init__(self) -> None:
        super().__init__(LoopClock())
        self._table = QueueTable()
        self._index = RecentIndex(self._table, 0)
        self._groups = [LED] * SLOTS_OF_ALL
        self.waits = 0

    def place(self, topic: Topic) -> None:
        self._table.create(topic.number, 0, 2)
        for partition in (LED, FOLLOWED):
            slot = self._table.find(topic.queue_id(partition))
            self._table.set(slot, COMMITTED_END, 3)
            self._table.set(slot, NEXT_OFFSET, 3)
        followed = topic.queue_id(FOLLOWED)
        self._groups[slot_of(followed)] = FOLLOWED

    def read_at_once(self, plan: ReadPlan) -> None:
        assert isinstance(plan, FetchPlan)
        followed = FollowedLog(EPOCH) if plan.from_followers else None
        plan.read_cached(self._table, self._index, [LedLog(EPOCH), followed], array("H", self._groups).tobytes())  # type: ignore[list-item]

    def wait(self, queues: object, bytes_min: int, timeout_seconds: float) -> PromptFuture[None]:
        self.waits += 1
        future: PromptFuture[None] = PromptFuture()
        asyncio.get_running_loop().call_later(timeout_seconds, future.set_result, None)
        return future


class Choice(NearerReplicas):
    def __init__(self) -> None:
        pass

    def are_here(self, rack: str, *, spread: bool) -> FollowersRead:
        if rack == HERE:
            return FollowersRead.ALL
        return FollowersRead.SPREAD if rack == NEAR and spread else FollowersRead.NEVER

    def of(self, rack: str, listener: str) -> dict[int, int] | None:
        return {LED: ANOTHER_NODE} if rack == NEAR else None

    def for_history(self, rack: str, listener: str, reader: int) -> dict[int, int] | None:
        return {LED: PATIENT_NODE} if rack == FAR else None

    def share(self, rack: str, listener: str, reader: int) -> dict[int, int] | None:
        return {LED: SHARING_NODE} if rack in (FAR, HERE) else None

    def broker_near(self, rack: str, listener: str, reader: int) -> int:
        return -1

    def broker_for(self, rack: str, listener: str, reader: int) -> int:
        return -1


async def world(**configs: str) -> tuple[Fakes, Topic]:
    fakes = make_broker(LoopClock())
    store = ReplicaStore()
    fakes.broker.store, fakes.broker.nearer_replicas = store, Choice()
    topic = await fakes.topic(partitions=2, **configs)
    store.place(topic)
    return fakes, topic


def of_rack(rack: str, topic: Topic, *asks: Ask, max_wait_ms: int = 0) -> FetchRequest:
    return replace(request_for(topic, *asks, min_bytes=1, max_wait_ms=max_wait_ms), rack_id=rack)


@pytest.mark.parametrize("rack", [HERE, NEAR, FAR, ""])
def test_a_leader_names_the_node_in_the_consumers_rack_and_answers_without_records(rack: str) -> None:
    async def story() -> None:
        fakes, topic = await world()
        part = parts(await ask(fakes, of_rack(rack, topic, Ask(LED, 3, leader_epoch=EPOCH))))[LED]
        assert part.error_code == ErrorCode.NONE
        assert part.preferred_read_replica == (ANOTHER_NODE if rack == NEAR else -1)
        assert (part.high_watermark, part.log_start_offset, part.records or b"") == (3, 0, b"")

    asyncio.run(story())


def test_a_consumer_that_is_sent_away_does_not_wait() -> None:
    async def story() -> None:
        fakes, topic = await world()
        await ask(fakes, of_rack(NEAR, topic, Ask(LED, 3), max_wait_ms=600_000))
        assert isinstance(fakes.broker.store, ReplicaStore)
        assert not fakes.broker.store.waits

    asyncio.run(story())


def test_what_is_wrong_with_a_request_is_told_by_the_leader_itself() -> None:
    async def story() -> None:
        fakes, topic = await world()
        for wrong, error in (
            (Ask(LED, 9), ErrorCode.OFFSET_OUT_OF_RANGE),
            (Ask(LED, 3, leader_epoch=EPOCH - 1), ErrorCode.FENCED_LEADER_EPOCH),
        ):
            part = parts(await ask(fakes, of_rack(NEAR, topic, wrong)))[LED]
            assert (part.error_code, part.preferred_read_replica) == (error, -1)

    asyncio.run(story())


def test_versions_that_know_no_racks_are_served_by_leaders() -> None:
    async def story() -> None:
        fakes, topic = await world()
        part = parts(await ask(fakes, of_rack(NEAR, topic, Ask(LED, 3)), version=10))[LED]
        assert (part.error_code, part.preferred_read_replica) == (ErrorCode.NONE, -1)

    asyncio.run(story())


@pytest.mark.parametrize("rack", [NEAR, FAR, ""])
def test_consumers_of_other_racks_are_refused_by_a_follower(rack: str) -> None:
    async def story() -> None:
        fakes, topic = await world()
        part = parts(await ask(fakes, of_rack(rack, topic, Ask(FOLLOWED, 3))))[FOLLOWED]
        assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    asyncio.run(story())


def test_a_follower_serves_its_rack_and_refuses_what_it_has_not_when_the_wait_is_over() -> None:
    async def story() -> None:
        fakes, topic = await world()
        end = parts(await ask(fakes, of_rack(HERE, topic, Ask(FOLLOWED, 3), max_wait_ms=WAIT_MS)))[FOLLOWED]
        assert (end.error_code, end.high_watermark) == (ErrorCode.NONE, 3)
        assert isinstance(fakes.broker.store, ReplicaStore)
        assert fakes.broker.store.waits == 1
        ahead = parts(await ask(fakes, of_rack(HERE, topic, Ask(FOLLOWED, 4), max_wait_ms=WAIT_MS)))[FOLLOWED]
        assert fakes.broker.store.waits == 2, "it may come"
        assert (ahead.error_code, ahead.high_watermark) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)

    asyncio.run(story())


@pytest.mark.parametrize(("rack", "told"), [(FAR, 6), (HERE, -1), ("", -1)])
def test_a_reader_of_what_memory_has_no_more_is_sent_away(rack: str, told: int) -> None:
    async def story() -> None:
        fakes, topic = await world()
        old, new = [parts(await ask(fakes, of_rack(rack, topic, Ask(LED, offset))))[LED] for offset in (1, 3)]
        assert (old.preferred_read_replica, new.preferred_read_replica) == (told, -1)
        if rack == FAR:  # for others this store has no disk that it could read
            assert (old.high_watermark, old.log_start_offset, old.records or b"") == (3, 0, b"")

    asyncio.run(story())


def test_readers_of_a_spread_topic_are_told_of_its_replicas_and_served_by_them() -> None:
    async def story() -> None:
        fakes, topic = await world(read_spread_enable="true")
        for rack, told in ((FAR, SHARING_NODE), (HERE, SHARING_NODE), (NEAR, ANOTHER_NODE), ("", -1)):
            led = parts(await ask(fakes, of_rack(rack, topic, Ask(LED, 3))))[LED]
            assert led.preferred_read_replica == told
        for rack, error in ((NEAR, ErrorCode.NONE), (FAR, ErrorCode.NOT_LEADER_OR_FOLLOWER)):
            followed = parts(await ask(fakes, of_rack(rack, topic, Ask(FOLLOWED, 3))))[FOLLOWED]
            assert followed.error_code == error

    asyncio.run(story())
