"""The knowledge that a broker without storage has of the write groups' leaders: what the metadata's leader told it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from mainstem.model import WriteGroupNodes
from mainstem.rpc.messages.cluster import WRITE_GROUP_MEMBERS, MembersOf
from mainstem.storage_link.leader_calls import LeaderCalls

if TYPE_CHECKING:
    from numpy import int64, uint64
    from numpy.typing import NDArray


class QueuePlacement(Protocol):
    """The places of queues; `storage.placement.Placement` implements it."""

    @property
    def groups(self) -> int: ...

    def group_of(self, queue_id: int) -> int: ...

    def has_moved(self, queue_id: int) -> bool: ...

    def groups_of(self, queue_ids: NDArray[uint64]) -> NDArray[int64]: ...


class RemoteLeadership:
    """Implements `ports.BrokerLeadership`."""

    def __init__(
        self, placement: QueuePlacement, leaders: LeaderCalls, placements: Callable[[], Mapping[int, Sequence[int]]]
    ) -> None:
        """`placements` names the nodes of each write group."""
        self._placement = placement
        self._leaders = leaders
        self._placements = placements

    def group_of(self, queue_id: int) -> int:
        return self._placement.group_of(queue_id)

    def has_moved(self, queue_id: int) -> bool:
        return self._placement.has_moved(queue_id)

    def groups_of(self, queue_ids: NDArray[uint64]) -> NDArray[int64]:
        return self._placement.groups_of(queue_ids)

    def leader(self, group: int) -> int:
        return self._leaders.now(group).node_id

    def replicas(self, group: int) -> WriteGroupNodes:
        """All replicas count as in sync: only their leader knows better."""
        leader, placed = self._leaders.now(group), tuple(self._placements().get(group, ()))
        return WriteGroupNodes(leader.node_id, leader.term, placed, placed)

    def leads(self, group: int) -> bool:
        return False

    def serves_here(self, queue_id: int) -> bool:
        """Any queue: which broker clients are told of is a matter of balance alone."""
        return True

    async def confirm(self, group: int) -> None:
        """Return once the leader of a write group was confirmed as such by a majority. Raises `NoLeader`,
        `StorageUnreached`."""
        await self._leaders.call(group, WRITE_GROUP_MEMBERS, MembersOf(group))

    def abreast(self) -> Mapping[int, Sequence[int]]:
        """None: this node leads nothing."""
        return {}

    @property
    def leaderless(self) -> bool:
        return not any(self._leaders.now(group).node_id != -1 for group in range(self._placement.groups))

    def in_sync_fewest(self, classes: Collection[int]) -> int:
        """Unknown here: what a topic demands is checked where its queues are led."""
        return 0
