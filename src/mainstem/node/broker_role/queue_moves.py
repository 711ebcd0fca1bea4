"""`QueueMoves` of a node: moves of queues between write groups, as Kafka's tools and the console ask for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from mainstem.model import FeatureLevel, WriteGroupBurdens
from mainstem.nameserver.errors import FeatureLevelTooLow, InvalidPlacement
from mainstem.nameserver.nameserver import Nameserver
from mainstem.nameserver.state.plans.load_plan import REQUEST_BYTES
from mainstem.node.node_reports import NodeReports, loads_among

GROUPS_MADE_UPTO = 64
"""Write groups of a cluster up to which one is made for nodes that a client asks for. They never go away, and each
costs every node that has it ten heartbeats a second and an open block: with 64 that is some hundredths of a core."""


class NodeQueueMoves:
    """Implements `ports.QueueMoves`."""

    def __init__(self, nameserver: Nameserver, reports: NodeReports, *, has_objects: bool) -> None:
        """`has_objects`: whether files of the queue store lie in an object store, or may."""
        self._nameserver = nameserver
        self._lookups = nameserver.lookups
        self._reports = reports
        self._has_objects = has_objects

    def placements(self) -> Mapping[int, tuple[int, ...]]:
        return self._lookups.placements()

    def under_way(self) -> Mapping[int, int]:
        return {slot: wish.group for slot, wish in self._lookups.moving_slots.wishes.items()}

    def left(self, slot: int) -> Collection[int]:
        return self._lookups.moving_slots.others.get(slot, ())

    async def burdens(self) -> WriteGroupBurdens:
        """By the loads that the metadata leader knows."""
        reports = await self._reports.of([node.node_id for node in self._lookups.nodes()])
        loads = loads_among(reports.values())
        return WriteGroupBurdens(
            {it.group: it.bytes_in + it.bytes_out + REQUEST_BYTES * it.requests for it in loads.write_groups},
            Counter(self._lookups.slots()),
            self._lookups.totals()[1],
        )

    async def move(self, topic: str, partition: int, group: int, beside: Sequence[tuple[str, int]] = ()) -> None:
        """Raises `InvalidPlacement`, `UnknownTopic`, `FeatureLevelTooLow`, `MetadataUnavailable`."""
        level = self._lookups.feature_level
        if self._has_objects and level < FeatureLevel.STORED:  # of a shared store the metadata knows nothing
            raise FeatureLevelTooLow.of(level, FeatureLevel.STORED)
        await self._nameserver.operations.move_slot_of(topic, partition, group, beside)

    async def make_group(self, node_ids: Sequence[int]) -> None:
        """Raises `InvalidPlacement`, `FeatureLevelTooLow`, `MetadataUnavailable`."""
        level = self._lookups.feature_level
        needed = FeatureLevel.STORED if self._has_objects else FeatureLevel.REDUCED
        if level < needed:  # queues could not move there, be it to other nodes or to fewer, and it would stay for good
            raise FeatureLevelTooLow.of(level, needed)
        if (count := self._lookups.write_groups()) >= GROUPS_MADE_UPTO:
            raise InvalidPlacement(
                f"the cluster has {count} write groups: for nodes that a client asks for none is made beyond "
                f"{GROUPS_MADE_UPTO}, mainstem cluster write-groups adds some up to 256"
            )
        await self._nameserver.operations.add_write_group_on(node_ids)

    async def take_back(self, slot: int) -> None:
        """Raises `NotMoving`, `MoveBegun`, `FeatureLevelTooLow`, `MetadataUnavailable`."""
        await self._nameserver.operations.keep_slot(slot)
