"""The longest turn of the event loop, in the loop's own processor time, at each event of a large group: one coordinator
of one partition in this process, on a log in memory, with its answers encoded and nothing else. No garbage is collected
meanwhile: in a node that may make a turn longer. A full collection is a row of its own, among very many groups.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple, cast
from uuid import UUID

from bench.errors import BenchError
from bench.groups.log_in_memory import QUEUE_ID, LogInMemory
from bench.stalls.turns import MeasuredLoop
from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.consumer_groups.epochs.subscribed_topics import CurrentTopics
from mainstem.broker.consumer_groups.events.event_frame import WORK
from mainstem.broker.consumer_groups.machine import ConsumerGroupMachine
from mainstem.broker.consumer_groups.members.holdings import Holdings
from mainstem.broker.consumer_groups.modern.heartbeat import HeartbeatCaller
from mainstem.broker.consumer_groups.offsets_topic import OffsetsTopicCodec, limits_of
from mainstem.broker.consumer_groups.partition import CoordinatorPartition, TopicsNow
from mainstem.broker.consumer_groups.step import Caller, Counts
from mainstem.broker.machines.load_turns import LoadTurns
from mainstem.broker.machines.machine_log import MachineLog
from mainstem.broker.machines.machine_partition import PartitionPlace
from mainstem.broker.machines.result import Moment, Result, Ticket
from mainstem.kernel import untrack
from mainstem.model import Topic
from mainstem.protocol.codec import write
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatTopicPartitions,
)
from mainstem.protocol.messages.consumer_protocol import ConsumerProtocolSubscription, write_subscription
from mainstem.protocol.messages.group_membership import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from mainstem.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

Event = Callable[[ConsumerGroupMachine, Ticket, Moment], Result]

TOPIC = Topic(name="flights", number=2, topic_id=UUID(int=2), partitions=2_000)
GROUP = "large"
CONFIG = ConsumerGroupsConfig(
    rebalance_delay_ms=0, group_metadata_bytes_max=8_000_000, members_bytes_max=1 << 30, offsets_topic_partitions=1
)
REBALANCE_MS = 60_000
INTERVAL_MS = 6_000
"""A little more than ten thousand members wait for their next assignment."""
ROUNDS_MAX = 3
"""Of heartbeats: every member has its partitions then."""
ASSIGNMENT_BYTES = 40
JOIN_VERSION, SYNC_VERSION, HEARTBEAT_VERSION, COMMIT_VERSION = 3, 3, 1, 8
OFFSETS_PER_GROUP = 10
WAIT_SECONDS_MAX = 60.0


class Turn(NamedTuple):
    protocol: str
    members: int
    event: str
    longest_ms: float
    turns: int


class ShiftedClock:
    """Time passes as usual, and at once where a bench would wait."""

    def __init__(self) -> None:
        self.shift_ms = 0

    def now_ms(self) -> int:
        return int(time.time() * 1000) + self.shift_ms

    def monotonic(self) -> float:
        return time.monotonic() + self.shift_ms / 1000


class Coordinator:
    """One partition, served; `loaded` serves it anew from its log."""

    def __init__(self, loop: MeasuredLoop) -> None:
        self.clock = ShiftedClock()
        self.log = LogInMemory()
        self.answered = 0
        self._loop = loop
        self._rearm = asyncio.Event()
        self._ids = iter(range(1 << 60))
        self.partition = self._partition()

    def _partition(self) -> CoordinatorPartition:
        async def nothing() -> None:
            """The queue is there, and all topics are known."""

        store = cast(Any, self.log)
        topics = CurrentTopics({TOPIC.name: TOPIC}.get, {TOPIC.topic_id: TOPIC}.get, lambda: (TOPIC,))
        log: MachineLog[Any] = MachineLog(QUEUE_ID, OffsetsTopicCodec(), limits_of(CONFIG), store, store, self.clock)
        place = PartitionPlace("bench", "log", nothing, self._rearm.set, LoadTurns(), lambda: None)
        return CoordinatorPartition(
            log, CONFIG, self.clock, place, new_id=lambda: f"{next(self._ids):036}", counts=Counts(),
            holdings=Holdings(CONFIG.members_bytes_max), topics=TopicsNow(lambda name: TOPIC.topic_id, topics, nothing),
        )  # fmt: skip

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self.partition.runtime.run()), asyncio.create_task(self._keep_time())]
        try:
            await self.until(lambda: self.partition.machine is not None)
            yield
        finally:
            self.partition.runtime.resign()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_time(self) -> None:
        while True:
            self._rearm.clear()
            runtime = self.partition.runtime
            seconds = None
            if runtime.wake_at_ms is not None:
                seconds = max(runtime.wake_at_ms / 1000 - self.clock.monotonic(), 0.001)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._rearm.wait()
            runtime.advance()

    async def until(self, there: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while not there():  # noqa: ASYNC110 - what is waited for is the machine's own, and tells nobody
                await asyncio.sleep(0)

    @property
    def machine(self) -> ConsumerGroupMachine:
        assert self.partition.machine is not None
        return self.partition.machine

    def ask(self, version: int, event: Event) -> asyncio.Future[Any]:
        """A request; its answer is encoded as soon as it is there, as a connection does."""
        future = self.partition.submit(event)
        future.add_done_callback(lambda done: self._encode(done, version))
        return future

    async def answer(self, event: Event) -> Any:
        """Of a request of administrators, not encoded."""
        return await self.partition.submit(event)

    def _encode(self, done: asyncio.Future[Any], version: int) -> None:
        self.answered += 1
        if not done.cancelled() and done.exception() is None:
            write(done.result(), version)

    async def answers(self, count: int) -> None:
        """Return when there have been so many more answers."""
        there = self.answered + count
        await self.until(lambda: self.answered >= there)

    def pass_time(self, ms: int) -> None:
        self.clock.shift_ms += ms
        self._rearm.set()

    async def measured(self, work: Awaitable[Any]) -> tuple[float, int]:
        gc.collect()
        gc.disable()
        try:
            longest, turns = await self._loop.measured(work)
        finally:
            gc.enable()
        return 1000 * longest, turns

    async def loaded(self) -> None:
        """Another node takes over: it reads the log, and starts the members' sessions."""
        self.partition = self._partition()
        async with self.served():
            await self.until(lambda: WORK not in self.machine.timers)


class Member:
    """Of the new protocol."""

    def __init__(self, coordinator: Coordinator, number: int) -> None:
        self._coordinator = coordinator
        self._member_id = f"member-{number:06}-{number:029}"
        self.epoch = 0
        self.has: tuple[HeartbeatTopicPartitions, ...] = ()
        untrack(self)

    async def beat(self) -> None:
        said: dict[str, Any] = {"topic_partitions": self.has}
        if self.epoch == 0:
            said |= {"rebalance_timeout_ms": REBALANCE_MS, "subscribed_topic_names": (TOPIC.name,)}
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP, member_id=self._member_id, member_epoch=self.epoch, **said
        )
        sender = HeartbeatCaller(Caller(HEARTBEAT_VERSION, "bench", f"/{self._member_id}"), lambda name: True)
        response = await self._coordinator.ask(
            HEARTBEAT_VERSION,
            lambda machine, ticket, now: machine.membership.consumer_heartbeat(ticket, request, sender, now),
        )
        if response.error_code != ErrorCode.NONE:
            raise BenchError(f"{self._member_id}: {response.error_message}")
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self.has = response.assignment.topic_partitions


def _described_modern(machine: ConsumerGroupMachine, ticket: Ticket, now: Moment) -> Result:
    return machine.administration.describe_modern(ticket, [GROUP], now)


def _described_classic(machine: ConsumerGroupMachine, ticket: Ticket, now: Moment) -> Result:
    return machine.administration.describe(ticket, [GROUP], now)


async def consumer_turns(loop: MeasuredLoop, count: int) -> list[Turn]:
    coordinator = Coordinator(loop)
    members = [Member(coordinator, number) for number in range(count)]
    found: list[Turn] = []

    async def measure(event: str, work: Awaitable[Any]) -> None:
        found.append(Turn("consumer", count, event, *await coordinator.measured(work)))

    async def beat(some: Sequence[Member]) -> None:
        for member in some:
            await member.beat()
            await asyncio.sleep(0)  # an answer that waits for no append is there at once

    async def assigned() -> None:
        await members[0].beat()
        group = coordinator.machine.state.modern[GROUP]
        await coordinator.until(lambda: group.assignment_epoch == group.epoch)

    async def settled() -> None:
        for _ in range(ROUNDS_MAX):
            await beat(members)

    async with coordinator.served():
        await measure("all join", beat(members))
        coordinator.pass_time(INTERVAL_MS)
        await measure("assignment", assigned())
        await measure("all hear of it", settled())
        if sum(len(row.partitions) for member in members for row in member.has) != TOPIC.partitions:
            raise BenchError(f"{count} members of the new protocol do not settle")
        members.append(Member(coordinator, count))
        await beat(members[-1:])
        coordinator.pass_time(INTERVAL_MS)
        await measure("assignment with one more", assigned())
        await measure("described", coordinator.answer(_described_modern))
    await measure("loaded", coordinator.loaded())
    return found


class ClassicGroup:
    def __init__(self, coordinator: Coordinator, count: int) -> None:
        self._coordinator = coordinator
        self.ids = [""] * count
        self.generation = 0
        self.leader = ""
        subscription = write_subscription(ConsumerProtocolSubscription(topics=(TOPIC.name,)))
        names = ("range", "cooperative-sticky")
        self._protocols = tuple(JoinGroupRequestProtocol(name=name, metadata=subscription) for name in names)

    def join(self, number: int) -> asyncio.Future[Any]:
        request = JoinGroupRequest(
            group_id=GROUP, session_timeout_ms=45_000, rebalance_timeout_ms=REBALANCE_MS, member_id=self.ids[number],
            protocol_type="consumer", protocols=self._protocols,
        )  # fmt: skip
        caller = Caller(JOIN_VERSION, "bench", f"/10.0.{number // 256}.{number % 256}")
        return self._coordinator.ask(
            JOIN_VERSION, lambda machine, ticket, now: machine.membership.join(ticket, request, caller, now)
        )

    def joined(self, answers: Sequence[asyncio.Future[Any]]) -> None:
        for number, response in enumerate(answer.result() for answer in answers):
            if response.error_code != ErrorCode.NONE:
                raise BenchError(f"a classic member cannot join: {ErrorCode(response.error_code).name}")
            self.ids[number], self.generation, self.leader = response.member_id, response.generation_id, response.leader

    def sync(self, number: int) -> asyncio.Future[Any]:
        return self._coordinator.ask(SYNC_VERSION, self.sync_event(number, ()))

    def sync_event(self, number: int, assigned: Sequence[str]) -> Event:
        request = SyncGroupRequest(
            group_id=GROUP, generation_id=self.generation, member_id=self.ids[number],
            assignments=tuple(
                SyncGroupRequestAssignment(member_id=member_id, assignment=bytes(ASSIGNMENT_BYTES))
                for member_id in assigned
            ),
        )  # fmt: skip
        return lambda machine, ticket, now: machine.membership.sync(ticket, request, now)


async def classic_turns(loop: MeasuredLoop, count: int) -> list[Turn]:
    coordinator = Coordinator(loop)
    group = ClassicGroup(coordinator, count)
    found: list[Turn] = []

    async def measure(event: str, work: Awaitable[Any]) -> None:
        found.append(Turn("classic", count, event, *await coordinator.measured(work)))

    async def join(numbers: Sequence[int]) -> list[asyncio.Future[Any]]:
        answers = []
        for number in numbers:
            answers.append(group.join(number))
            await asyncio.sleep(0)
        return answers

    async with coordinator.served():
        first = group.join(0)  # alone, at once
        await first
        group.joined([first])
        joins = await join(range(1, count))

        async def all_joined() -> None:
            joins.insert(0, group.join(0))
            await coordinator.answers(count)

        await measure("end of joining", all_joined())
        group.joined(joins)
        leads = group.ids.index(group.leader)
        syncs = [group.sync(number) for number in range(count) if number != leads]
        event = group.sync_event(leads, group.ids)

        async def assigned() -> None:
            syncs.append(coordinator.ask(SYNC_VERSION, event))
            await coordinator.answers(count)

        await measure("assignment", assigned())
        if any(answer.result().error_code != ErrorCode.NONE for answer in syncs):
            raise BenchError("a classic member gets no partitions")
        await measure("described", coordinator.answer(_described_classic))
    await measure("loaded", coordinator.loaded())
    async with coordinator.served():
        back = await join(range(count // 2))

        async def without_silent() -> None:
            coordinator.pass_time(REBALANCE_MS + 1)
            await coordinator.answers(len(back))

        await measure("half of them is silent", without_silent())
        group.joined(back)
        left = len(coordinator.machine.state.classic[GROUP].members)
        if left != len(back):
            raise BenchError(f"{left} members are left where {len(back)} joined again")
    return found


async def group_turns(loop: MeasuredLoop, count: int) -> list[Turn]:
    """Very many groups, each with some committed offsets."""
    coordinator = Coordinator(loop)
    partitions = tuple(
        OffsetCommitRequestPartition(partition_index=index, committed_offset=7, committed_metadata="")
        for index in range(OFFSETS_PER_GROUP)
    )
    topics = (OffsetCommitRequestTopic(name=TOPIC.name, topic_id=TOPIC.topic_id, partitions=partitions),)
    caller = Caller(COMMIT_VERSION, "bench", "/10.0.0.1")

    def committed(group_id: str) -> Event:
        request = OffsetCommitRequest(group_id=group_id, topics=topics)
        return lambda machine, ticket, now: machine.offsets.commit(ticket, request, caller, now)

    async def commit() -> None:
        for number in range(count):
            await coordinator.ask(COMMIT_VERSION, committed(f"many-{number:06}"))

    async def collected() -> None:
        gc.collect()

    found: list[Turn] = []
    async with coordinator.served():
        for event, work in (("commits of ten offsets each", commit()), ("a full collection", collected())):
            found.append(Turn("groups", count, event, *await coordinator.measured(work)))
    found.append(Turn("groups", count, "loaded", *await coordinator.measured(coordinator.loaded())))
    return found


KINDS = {"consumer": consumer_turns, "classic": classic_turns, "groups": group_turns}


def event_turns(kinds: Sequence[str], sizes: Sequence[int], groups: int) -> list[Turn]:
    found: list[Turn] = []
    for kind in kinds:
        for size in [groups] if kind == "groups" else sizes:
            loop = MeasuredLoop()
            asyncio.set_event_loop(loop)
            gc.collect()
            gc.freeze()  # as a node does after its start
            try:
                some = loop.run_until_complete(KINDS[kind](loop, size))
            finally:
                loop.close()
            print("\n".join(map(turn_line, some)), flush=True)
            found += some
    return found


def turn_line(turn: Turn) -> str:
    return f"{turn.protocol:<10}{turn.members:>8}  {turn.event:<30}{turn.longest_ms:>8.1f} ms in {turn.turns} turns"
