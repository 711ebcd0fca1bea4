"""The partitions of `__share_group_state` that this node serves.

The state of a share group over a partition lies in the write group of that partition: in one of the partitions of
`__share_group_state` that are in the same write group. So it moves with the partition's leadership, and no other node
has to be asked. A write group that was added later has no such partition: then any of them has the state. A
partition of `__share_group_state` goes to a broker without storage like any queue, where there are such brokers. In
both cases the node that clients read from hands the events of a window to the one that serves its state
(`OtherWindows`).

When a queue moves to another write group, its state stays where it is: it is looked for in all partitions then. None
begins in two of them, whichever nodes have heard of the move (`_may_begin`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mainstem.broker.errors import CoordinatorRefusal
from mainstem.broker.machines.coordinator_topic import InternalTopic, coordinator_partition_of
from mainstem.broker.machines.machine_log import Gap, MachineLog
from mainstem.broker.machines.machine_partition import MachinePartition, PartitionPlace
from mainstem.broker.machines.served_topic import NO_LEADER, ServedTopic
from mainstem.broker.machines.serving_node import ServingNode
from mainstem.broker.share_groups.config import ShareGroupsConfig
from mainstem.broker.share_groups.records import ShareStateCodec, StateLogRecord, WindowKey, limits_of
from mainstem.broker.share_groups.share_statistics import ShareCounts
from mainstem.broker.share_groups.state_machine import NextRead, ShareStateMachine
from mainstem.broker.share_groups.window_events import (
    Acquire,
    Begin,
    Initialize,
    LookFor,
    OtherWindows,
    WindowEvent,
    Write,
)
from mainstem.lru import Lru
from mainstem.model import Topic
from mainstem.ports import Clock
from mainstem.protocol.error_codes import ErrorCode

logger = logging.getLogger(__name__)

STATE_TOPIC = "__share_group_state"

OWNER_CHANGES = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})
"""Refusals that end by themselves: the partition comes to another node, or is being loaded there."""

BEGINNING = (Begin, Initialize, Write)
"""The events that make a window where there is none."""

HOMES_MAX = 100_000
"""As many as five partitions of the topic hold windows by default, of a hundred bytes each. A window whose place is
forgotten is looked for again."""

STATE_TOPIC_CONFIGS = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""Updates of one key follow each other: only the snapshots may drop records."""


def state_topic(config: ShareGroupsConfig, write_groups: int, replication_factor: int) -> InternalTopic:
    partitions = config.state_partitions_per_write_group * write_groups
    return InternalTopic(STATE_TOPIC, partitions, replication_factor, "share groups", STATE_TOPIC_CONFIGS)


class StatePartition(MachinePartition[ShareStateMachine]):
    """One partition of the topic. `available` is told of windows that may have more to give out."""

    def __init__(
        self,
        log: MachineLog[StateLogRecord],
        config: ShareGroupsConfig,
        clock: Clock,
        place: PartitionPlace,
        *,
        counts: ShareCounts,
        available: Callable[[WindowKey], None],
        config_of: Callable[[str], ShareGroupsConfig] | None = None,
    ) -> None:
        super().__init__(log, clock, place, snapshot_after_bytes=config.snapshot_after_bytes)
        self._new = partial(ShareStateMachine, config, counts, available, config_of)
        self._counts = counts

    def has(self, key: WindowKey) -> bool:
        """Whether the window is there; True as well while that is not known."""
        machine = self.machine
        return machine is None or key in machine.windows

    # --- the runtime's MachineKind ----------------------------------------------------------------------

    def make(self) -> ShareStateMachine:
        return self._new()

    async def sort_out(self, machine: ShareStateMachine) -> None:
        """Windows of topics that are gone are forgotten when their deletion is told, or are never asked for again."""

    def accepts_loss(self, machine: ShareStateMachine, gaps: Sequence[Gap], missing: str, *, new: bool) -> bool:
        """Records are delivered at least once: what is lost of the state is delivered again."""
        logger.error(
            "share groups, %s: offsets %s cannot be read, and are taken for nothing: records that were acknowledged"
            " there are delivered again",
            self.name, missing,
        )  # fmt: skip
        return True

    def serve(self, machine: ShareStateMachine, records: int) -> None:
        logger.debug("share groups, %s: %d windows from %d records", self.name, len(machine.windows), records)

    def failed(self) -> None:
        self._counts.log_failures += 1


class ServedStates(ServedTopic[StatePartition]):
    """`start` before use, `close` after. `available` is told of windows that may have more to give out."""

    def __init__(
        self,
        node: ServingNode,
        config: ShareGroupsConfig,
        internal_topic: InternalTopic,
        *,
        available: Callable[[WindowKey], None],
        counts: ShareCounts,
        config_of: Callable[[str], ShareGroupsConfig] | None = None,
        others: OtherWindows | None = None,
    ) -> None:
        """`others`: None where there are no other nodes."""
        super().__init__(node, internal_topic)
        self._others = others
        self._config = config
        self._counts = counts
        self._told_available = available
        self._config_of = config_of
        self._homes: Lru[WindowKey, int] = Lru(HOMES_MAX)
        """The partitions in which windows were found after moves."""
        self._heard_moved: Lru[WindowKey, bool] = Lru(HOMES_MAX)
        """Windows after which other nodes have looked here, since they had heard of a move."""

    def has_begun(self, queue_id: int, key: WindowKey) -> bool:
        """Whether a window is there; True as well where another node would have to be asked, or all partitions."""
        topic = self._topic
        if topic is None or self._has_moved(topic, queue_id, key):
            return topic is not None
        partition = self.partitions.get(self._beside(topic, queue_id, key))
        return partition is None or partition.has(key)

    async def submit(self, queue_id: int, key: WindowKey, event: WindowEvent) -> Any:
        """The answer to an event of the window of a share group over a queue, from the node that serves it. Raises
        `CoordinatorRefusal`."""
        topic = await self.open()
        moved = self._has_moved(topic, queue_id, key)
        known = self._homes.get(key) if moved and not isinstance(event, BEGINNING) else None
        if known is not None:
            index = known
        elif moved:
            index = await self._home(topic, queue_id, key)
        else:
            index = self._beside(topic, queue_id, key)
        if self._serves(index) or self._others is None:
            follows = not moved and bool(self._in_write_group_of(queue_id)) and not self._is_apart
            return await self._submit_here(index, key, event, confirms=not follows)
        answer = await self._ask(topic, index, key, event)
        return answer._replace(here=False) if isinstance(answer, NextRead) else answer

    async def submit_here(self, index: int, key: WindowKey, event: WindowEvent) -> Any:
        """The answer to an event of a window for another node, which says where the window is. Raises
        `CoordinatorRefusal`."""
        topic = await self.open()
        if not 0 <= index < topic.partitions:
            raise CoordinatorRefusal(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return await self._submit_here(index, key, event, confirms=True)

    async def _submit_here(self, index: int, key: WindowKey, event: WindowEvent, *, confirms: bool) -> Any:
        """Records that were acquired are not in the log, which refuses an earlier owner. So the owner `confirms` that
        it still is the one before anybody gets them; where the leader of the queue is the owner, the read shows it."""
        partition = self.led(index)
        if isinstance(event, LookFor):
            self._heard_moved.put(key, True)
        elif isinstance(event, BEGINNING) and not partition.has(key) and not self._may_begin(index, key):
            raise CoordinatorRefusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)  # who asked has yet to hear of the move
        answer = await partition.submit(lambda machine, ticket, now: event.run(machine, ticket, key, now))
        if confirms and answer and isinstance(event, Acquire):
            await self.confirm(index)
        return answer

    async def _ask(self, topic: Topic, index: int, key: WindowKey, event: WindowEvent) -> Any:
        """Ask another node. Raises `CoordinatorRefusal`: while the owner changes, the window is being loaded."""
        node_id = self.leader(topic, index)
        assert self._others is not None
        if node_id in (NO_LEADER, self._node_id):
            raise CoordinatorRefusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        try:
            return await self._others.ask(node_id, index, key, event)
        except CoordinatorRefusal as refusal:
            if refusal.code in OWNER_CHANGES:
                raise CoordinatorRefusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) from refusal
            raise

    @property
    def _is_apart(self) -> bool:
        """Whether brokers without storage serve the partitions."""
        return bool(self._routing.brokers())

    def _in_write_group_of(self, queue_id: int) -> Sequence[int]:
        """The partitions in the write group of a queue. None in one that was added after the topic was made; so the
        state of its queues lies in any partition."""
        return self._indexes_in(self._leadership.group_of(queue_id))

    def _beside(self, topic: Topic, queue_id: int, key: WindowKey) -> int:
        """The partition that has a window as long as no slot has moved."""
        return _one_of(self._in_write_group_of(queue_id) or range(topic.partitions), queue_id, key)

    def _has_moved(self, topic: Topic, queue_id: int, key: WindowKey) -> bool:
        """Whether the slot of a queue or of a state has moved to another write group, as far as this node has heard: a
        window may be anywhere then."""
        has_moved = self._leadership.has_moved
        states = (topic.queue_id(index) for index in range(topic.partitions))
        return key in self._heard_moved or has_moved(queue_id) or any(map(has_moved, states))

    async def _home(self, topic: Topic, queue_id: int, key: WindowKey) -> int:
        """The partition that has a window after a move, or in which it is to begin: the same for all nodes, wherever
        the queue has been. None begins before all partitions have said that they do not have it, each of which begins
        none itself from then on. Raises `CoordinatorRefusal`."""
        known, begins = self._homes.get(key), _one_of(range(topic.partitions), queue_id, key)
        first = begins if known is None else known
        for index in (first, *(other for other in range(topic.partitions) if other != first)):
            if await self._has(topic, index, key):
                self._homes.put(key, index)
                return index
        return begins

    def _may_begin(self, index: int, key: WindowKey) -> bool:
        """Whether a window begins in a partition that this node serves: after a move only where all begin that have
        heard of it. Storage nodes hear of it by the log of the write group that the queue has left."""
        topic, of_queue = self._topic, self._metadata.topic_by_id(key.topic_id)
        if topic is None or of_queue is None:
            return True
        queue_id = of_queue.queue_id(key.partition)
        return index == _one_of(range(topic.partitions), queue_id, key) or not self._has_moved(topic, queue_id, key)

    async def _has(self, topic: Topic, index: int, key: WindowKey) -> bool:
        """Whether a partition has a window, wherever it is served. Raises `CoordinatorRefusal` while it cannot tell."""
        if not self._serves(index) and self._others is not None:
            return bool(await self._ask(topic, index, key, LookFor()))
        return bool(await self._submit_here(index, key, LookFor(), confirms=False))

    def _partition(self, topic: Topic, index: int) -> StatePartition:
        return StatePartition(
            self._log(topic, index, ShareStateCodec(), limits_of(self._config)),
            self._config,
            self._clock,
            self._place(topic, index),
            counts=self._counts,
            available=self._told_available,
            config_of=self._config_of,
        )


def _one_of(indexes: Sequence[int], queue_id: int, key: WindowKey) -> int:
    return indexes[coordinator_partition_of(f"{key.group_id}:{queue_id}", len(indexes))]
