"""The partitions of `__share_group_state` that this node serves.

The state of a share group over a partition lies in the write group of that partition: in one of the partitions of
`__share_group_state` that are in the same write group. So it moves with the partition's leadership, and no other node
has to be asked. A write group that was added later has no such partition: then any of them has the state. A
partition of `__share_group_state` goes to a broker without storage like any queue, where there are such brokers. In
both cases the node that clients read from hands the events of a window to the one that serves its state
(`OtherWindows`).

When a queue moves to another write group of its node, its state stays where it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
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
from mainstem.broker.share_groups.window_events import Acquire, OtherWindows, Read, WindowEvent
from mainstem.model import Topic
from mainstem.ports import Clock
from mainstem.protocol.error_codes import ErrorCode

logger = logging.getLogger(__name__)

STATE_TOPIC = "__share_group_state"

OWNER_CHANGES = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})
"""Refusals that end by themselves: the partition comes to another node, or is being loaded there."""

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

    async def submit(self, queue_id: int, key: WindowKey, event: WindowEvent) -> Any:
        """The answer to an event of the window of a share group over a queue, from the node that serves it. Raises
        `CoordinatorRefusal`."""
        topic = await self.open()
        beside = self._beside(queue_id)
        index = _one_of(beside or range(topic.partitions), queue_id, key)
        for other in self._may_have(topic, queue_id, key):
            if await self._has(topic, other, key):
                index = other
                break
        if self._serves(index) or self._others is None:
            return await self._submit_here(index, key, event, confirms=index not in beside or self._is_apart)
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
        answer = await self.led(index).submit(lambda machine, ticket, now: event.run(machine, ticket, key, now))
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

    def _beside(self, queue_id: int) -> Sequence[int]:
        """The partitions in the write group of a queue. None in one that was added after the topic was made; so the
        state of its queues lies in any partition."""
        return self._by_write_group.get(self._leadership.group_of(queue_id), ())

    def _may_have(self, topic: Topic, queue_id: int, key: WindowKey) -> Iterable[int]:
        """The partitions that may have a window already. Slots move between write groups that have their only replica
        on one node: once one has moved, be it of the queue or of a state, a window may be in all partitions there, and
        where it went for want of one in its write group."""
        leadership = self._leadership
        states = [topic.queue_id(index) for index in range(topic.partitions)]
        if not any(map(leadership.has_moved, (queue_id, *states))):
            return ()
        nodes = leadership.replicas(leadership.group_of(queue_id)).replicas
        if len(nodes) != 1:
            return ()
        groups = list(map(leadership.group_of, states))
        there = {group for group in set(groups) if leadership.replicas(group).replicas == nodes}
        return {_one_of(range(topic.partitions), queue_id, key)} | {
            index for index, group in enumerate(groups) if group in there
        }

    async def _has(self, topic: Topic, index: int, key: WindowKey) -> bool:
        """Whether a partition has a window, wherever it is served. Raises `CoordinatorRefusal` while it cannot tell."""
        if not self._serves(index) and self._others is not None:
            [state] = await self._ask(topic, index, key, Read())
            return state is not None
        machine = self.led(index).machine
        if machine is None:
            raise CoordinatorRefusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return key in machine.windows

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
