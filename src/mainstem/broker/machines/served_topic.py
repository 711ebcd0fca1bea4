"""The partitions of an internal topic that this node serves, each by a machine.

The internal topic is made on first need. One task drives each of its partitions that this node serves, and one more
task advances the machines when their timers run out.

The partitions follow leadership: when this node begins to serve a write group, that write group's partitions are loaded
anew; when the node stops, they are forgotten within the same turn (`serving_changed`). Only the log passes from one
reign to the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any, Generic, TypeVar

from mainstem.broker.errors import CoordinatorRefusal
from mainstem.broker.machines.coordinator_topic import InternalTopic, coordinator_partition_of, make_topic
from mainstem.broker.machines.load_turns import LoadTurns
from mainstem.broker.machines.load_waits import LoadWaits
from mainstem.broker.machines.machine_log import LogLimits, MachineLog, RecordCodec
from mainstem.broker.machines.machine_partition import MachinePartition, PartitionPlace
from mainstem.broker.machines.serving_node import ServingNode
from mainstem.errors import LeaderMissing, MainstemError
from mainstem.model import QueueRange, Topic
from mainstem.protocol.error_codes import ErrorCode
from mainstem.supervised import Supervision

logger = logging.getLogger(__name__)

NO_LEADER = -1
NO_PARTITION = -1


R = TypeVar("R")
P = TypeVar("P", bound=MachinePartition[Any])


class ServedTopic(ABC, Generic[P]):
    """`start` before use, `close` after. Partitions go by their number in the internal topic."""

    def __init__(self, node: ServingNode, internal_topic: InternalTopic) -> None:
        self._internal_topic = internal_topic
        self._node = node
        self._node_id = node.node_id
        self._metadata = node.metadata
        self._leadership = node.leadership
        self._routing = node.routing
        self._clock = node.clock
        self._load_turns = LoadTurns()
        self._load_waits = LoadWaits()
        self._supervision = node.supervision or Supervision(node.clock.monotonic)
        self._topic: Topic | None = None
        self._partitions: dict[int, P] = {}
        """The topic's partitions that this node serves."""
        self._tasks: dict[int, asyncio.Task[None]] = {}
        """One task for each partition served."""
        self._ending: set[asyncio.Task[None]] = set()
        self._timers: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._rearm = asyncio.Event()
        self._running = False

    @abstractmethod
    def _partition(self, topic: Topic, index: int) -> P:
        """A partition whose reign begins."""

    def _log(self, topic: Topic, index: int, codec: RecordCodec[R], limits: LogLimits) -> MachineLog[R]:
        """The log of a partition."""
        node = self._node
        queue_id = topic.queue_id(index)
        return MachineLog(queue_id, codec, limits, node.store, node.queue_admin, node.clock, node.feature_level)

    def _place(self, topic: Topic, index: int) -> PartitionPlace:
        name = f"{topic.name}-{index}"
        return PartitionPlace(
            self._internal_topic.keeper,
            name,
            make_queue=self._make_queues,
            wake=self._rearm.set,
            load_turns=self._load_turns,
            loaded=partial(self._load_waits.changed, index),
        )

    def _first_served(self, partitions: int) -> None:
        """This node knows of the topic, and begins to load so many of its partitions."""

    def start(self) -> None:
        """Begin to load the partitions that this node serves; until a partition is loaded, its requests are
        refused as such."""
        self._running = True
        self._timers = self._supervision.start(self._keep_time, f"{self._internal_topic.keeper}: timers")
        self.look()

    async def close(self) -> None:
        """Stop; waiting requests are refused, so that their clients look for another coordinator."""
        self._running = False
        for index in list(self._partitions):
            self._resign(index)
        self._load_waits.end()
        if self._timers is not None:
            self._timers.cancel()
            self._ending.add(self._timers)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def serving_changed(self, group: int, serving: bool) -> None:
        """This node begins or stops to serve a write group: called in the turn in which that happens, before any append
        to the write group is answered. It must be brief."""
        if not self._running:
            return
        self.look()
        for index in self._indexes_in(group):
            if index in self._partitions:
                self._resign(index)
            if serving and not self._is_elsewhere(index):
                self._lead(index)
            self._load_waits.changed(index)

    def routing_changed(self) -> None:
        """Brokers came or went, or queues moved between write groups: serve what comes to this node now, and nothing
        else."""
        if self._running and self.look() and self._topic is not None:
            for index in range(self._topic.partitions):
                self._settle(index)

    @property
    def partitions(self) -> Mapping[int, P]:
        return self._partitions

    def led(self, index: int) -> P:
        """The partition, if this node serves it. Raises `CoordinatorRefusal`."""
        if self._topic is None or index == NO_PARTITION:
            raise CoordinatorRefusal(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._settle(index)
        partition = self._partitions.get(index)
        if partition is not None:
            return partition
        leader = self.leader(self._topic, index)
        if leader == self._node_id:  # this node has yet to apply entries that earlier leaders committed
            raise CoordinatorRefusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        elsewhere = leader != NO_LEADER
        raise CoordinatorRefusal(ErrorCode.NOT_COORDINATOR if elsewhere else ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def index_of(self, key: str) -> int:
        """The partition that a key belongs to; -1 while this node knows of no topic."""
        return NO_PARTITION if self._topic is None else coordinator_partition_of(key, self._topic.partitions)

    async def led_for(self, key: str) -> P:
        """The partition that a key belongs to, if this node serves it. Raises `CoordinatorRefusal`."""
        topic = await self.open()
        return self.led(coordinator_partition_of(key, topic.partitions))

    async def loaded_for(self, key: str, seconds_max: float) -> P:
        """The same, but a load that is under way is waited for, no longer than so many seconds."""
        topic = await self.open()
        index = coordinator_partition_of(key, topic.partitions)
        await self._loaded(index, seconds_max)
        return await self.led_for(key)

    async def all_loaded(self, seconds_max: float) -> None:
        """Return as soon as no partition is being loaded here, or after so many seconds, or when the topic cannot be
        had."""
        with contextlib.suppress(CoordinatorRefusal, TimeoutError):
            topic = await self.open()
            async with asyncio.timeout(seconds_max):
                for index in range(topic.partitions):
                    await self._loaded(index, seconds_max)

    async def _loaded(self, index: int, seconds_max: float) -> None:
        await self._load_waits.wait(index, partial(self._asked_while_loading, index), seconds_max)

    def _asked_while_loading(self, index: int) -> bool:
        if not self._running:
            return False
        try:
            return self.led(index).runtime.asked_while_loading()
        except CoordinatorRefusal as refusal:
            return refusal.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    async def leader_of(self, key: str) -> int:
        """The node that coordinates what a key names; -1 when there is none now."""
        try:
            topic = await self.open()
        except CoordinatorRefusal:
            return NO_LEADER
        return self.leader(topic, coordinator_partition_of(key, topic.partitions))

    async def confirm(self, index: int) -> None:
        """Return if this node coordinates what belongs to the partition beyond doubt: its write group's leader is
        confirmed, and knows no newer owner of the log. A partition that has lost its log is loaded anew. Raises
        `CoordinatorRefusal`."""
        partition = self.led(index)
        assert self._topic is not None
        try:
            await self._leadership.confirm(self._leadership.group_of(self._topic.queue_id(index)))
        except LeaderMissing as missing:
            raise CoordinatorRefusal(ErrorCode.NOT_COORDINATOR) from missing
        except MainstemError as failure:
            raise CoordinatorRefusal(ErrorCode.COORDINATOR_NOT_AVAILABLE) from failure
        try:
            await partition.confirm_owner()
        except LeaderMissing as lost:
            if self._partitions.get(index) is partition:
                self._resign(index)
                self._settle(index)
            raise CoordinatorRefusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) from lost
        except MainstemError as failure:
            raise CoordinatorRefusal(ErrorCode.COORDINATOR_NOT_AVAILABLE) from failure

    def leader(self, topic: Topic, index: int) -> int:
        """The node that serves a partition; -1 when there is none now."""
        return self._routing.broker_of(topic.queue_id(index))

    def leader_at(self, index: int) -> int:
        """The node that serves a partition; -1 when there is none now, or this node knows of no topic."""
        if not self.look() or self._topic is None:
            return NO_LEADER
        return self.leader(self._topic, index)

    async def open(self) -> Topic:
        """The internal topic, made if need be, with this node's partitions of it being served. Raises
        `CoordinatorRefusal`."""
        if self._topic is not None and self._running:
            return self._topic
        async with self._opening:
            if self._running and not self.look():
                await make_topic(
                    self._internal_topic, self._metadata, self._node.metadata_admin, self._node.queue_admin
                )
                self.look()
            if not self._running or self._topic is None:
                raise CoordinatorRefusal(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return self._topic

    def look(self) -> bool:
        """Serve the internal topic as soon as this node knows of it; returns whether it does."""
        if self._topic is not None or not self._running:
            return self._topic is not None
        topic = self._topic = self._metadata.topic(self._internal_topic.name)
        if topic is None:
            return False
        for index in range(topic.partitions):
            self._settle(index)
        self._first_served(len(self._partitions))
        return True

    def _indexes_in(self, group: int) -> list[int]:
        """The partitions in a write group now: queues move between these."""
        if (topic := self._topic) is None:
            return []
        group_of = self._leadership.group_of
        return [index for index in range(topic.partitions) if group_of(topic.queue_id(index)) == group]

    def _settle(self, index: int) -> None:
        """Serve a partition if this node serves its write group, and stop if not."""
        assert self._topic is not None
        served = self._serves(index)
        if served and index not in self._partitions:
            self._lead(index)
        elif not served and index in self._partitions:
            self._resign(index)

    def _serves(self, index: int) -> bool:
        """Whether this node is to coordinate what belongs to a partition. A node that leads the write group
        serves its queues as well as the brokers that clients are sent to, but one node at a time coordinates."""
        assert self._topic is not None
        return self._leadership.serves_here(self._topic.queue_id(index)) and not self._is_elsewhere(index)

    def _is_elsewhere(self, index: int) -> bool:
        assert self._topic is not None
        return self._routing.sends_elsewhere(self._topic.queue_id(index))

    def _lead(self, index: int) -> None:
        assert self._topic is not None
        partition = self._partition(self._topic, index)
        self._partitions[index] = partition
        self._tasks[index] = self._supervision.start(
            partition.runtime.run, f"{self._internal_topic.keeper}: {partition.name}"
        )

    def _resign(self, index: int) -> None:
        self._partitions.pop(index).runtime.resign()
        self._end(self._tasks.pop(index))
        self._load_waits.changed(index)

    def _end(self, task: asyncio.Task[None]) -> None:
        """`close` waits for it."""
        task.cancel()
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _make_queues(self) -> None:
        """Make the topic's queues: the node that made the topic may have stopped before it made them."""
        async with self._opening:
            topic = self._topic
            assert topic is not None
            queue_ids = [topic.queue_id(index) for index in self._partitions]
            if None not in await self._node.store.offsets(queue_ids):
                return
            try:
                await self._node.queue_admin.create([QueueRange(topic.number, 0, topic.partitions)])
            except (MainstemError, OSError) as error:  # perhaps in other write groups only
                logger.warning("%s: queues of %s: %s", self._internal_topic.keeper, topic.name, error)

    async def _keep_time(self) -> None:
        """Advance machines when their timers run out."""
        while True:
            self._rearm.clear()
            deadlines = [partition.runtime.wake_at_ms for partition in self._partitions.values()]
            next_ms = min((deadline for deadline in deadlines if deadline is not None), default=None)
            wait_seconds = None
            if next_ms is not None:
                wait_seconds = max(next_ms / 1000 - self._clock.monotonic(), 0.001)
            try:
                async with asyncio.timeout(wait_seconds):
                    await self._rearm.wait()
            except TimeoutError:
                pass
            for partition in list(self._partitions.values()):
                partition.runtime.advance()
