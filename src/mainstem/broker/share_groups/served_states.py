"""The partitions of `__share_group_state` that this node serves.

The state of a share group over a partition lies in the write group of that partition: in one of the partitions of
`__share_group_state` that are in the same write group. So it moves with the partition's leadership, and no other node
has to be asked. When a queue moves to another write group of its node, its state stays where it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from mainstem.broker.errors import CoordinatorRefusal
from mainstem.broker.machines.coordinator_topic import InternalTopic, coordinator_partition_of
from mainstem.broker.machines.machine_log import Gap, MachineLog
from mainstem.broker.machines.machine_partition import MachinePartition, PartitionPlace
from mainstem.broker.machines.served_topic import ServedTopic
from mainstem.broker.machines.serving_node import ServingNode
from mainstem.broker.share_groups.config import ShareGroupsConfig
from mainstem.broker.share_groups.records import ShareStateCodec, StateLogRecord, WindowKey, limits_of
from mainstem.broker.share_groups.share_statistics import ShareCounts
from mainstem.broker.share_groups.state_machine import ShareStateMachine
from mainstem.model import Topic
from mainstem.ports import Clock
from mainstem.protocol.error_codes import ErrorCode

logger = logging.getLogger(__name__)

STATE_TOPIC = "__share_group_state"

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
    ) -> None:
        super().__init__(node, internal_topic)
        self._config = config
        self._counts = counts
        self._told_available = available
        self._config_of = config_of
        self._told_missing: set[int] = set()

    async def beside(self, queue_id: int, key: WindowKey) -> StatePartition:
        """The partition that holds a share group's state over a queue: one beside the queue, or the one that had it
        before the queue moved. Raises `CoordinatorRefusal`."""
        topic = await self.open()
        if self._leadership.has_moved(queue_id) and (kept := self._kept(topic, key)) is not None:
            return kept
        write_group = self._leadership.group_of(queue_id)
        indexes = self._by_write_group.get(write_group)
        if not indexes:
            if write_group not in self._told_missing:
                self._told_missing.add(write_group)
                logger.error(
                    "share groups: no partition of %s lies in write group %d, so that its queues cannot be read by"
                    " share groups: delete the topic, and restart with more shares.state_partitions_per_write_group",
                    STATE_TOPIC, write_group,
                )  # fmt: skip
            raise CoordinatorRefusal(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return self.led(indexes[coordinator_partition_of(f"{key.group_id}:{queue_id}", len(indexes))])

    def _kept(self, topic: Topic, key: WindowKey) -> StatePartition | None:
        """The partition that has a window already. A queue moves between write groups that have their only replica on
        one node, so that all the partitions that may have it are here. Raises `CoordinatorRefusal` while one of them is
        being loaded."""
        for index in range(topic.partitions):
            partition = self.partitions.get(index)
            if partition is None or partition.machine is None:
                group = self._leadership.group_of(topic.queue_id(index))
                if self._leadership.replicas(group).replicas == (self._node_id,):
                    raise CoordinatorRefusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            elif key in partition.machine.windows:
                return partition
        return None

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
