"""`ClusterStanding` of a node's broker: what the leaders of the metadata and of the write groups tell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from mainstem.address import AddressError, parsed
from mainstem.model import MoveUnderWay, QuorumStanding
from mainstem.nameserver.nameserver import Nameserver
from mainstem.nameserver.state.plans.drain_plan import moves_under_way
from mainstem.node.node_reports import NodeReports


class NodeClusterStanding:
    """Implements `ports.ClusterStanding`."""

    def __init__(
        self,
        nameserver: Nameserver,
        reports: NodeReports,
        leader_of: Callable[[int], int],
        monotonic: Callable[[], float],
    ) -> None:
        """`leader_of`: the node that leads a write group, as far as this one knows; -1: none."""
        self._leader_of = leader_of
        self._nameserver = nameserver
        self._reports = reports
        self._monotonic = monotonic
        self._looking = asyncio.Lock()
        self._looked_at = float("-inf")
        """When the last look at the moves began."""
        self._moves: Sequence[MoveUnderWay] = ()

    async def metadata_quorum(self) -> QuorumStanding:
        """Raises `MetadataUnavailable`."""
        return await self._nameserver.quorum_positions.told()

    async def moves(self) -> Sequence[MoveUnderWay]:
        """All who ask during one look at the nodes share the next."""
        if self._nameserver.others is None:
            return ()
        asked_at = self._monotonic()
        async with self._looking:
            if self._looked_at < asked_at:
                self._looked_at = self._monotonic()
                lookups = self._nameserver.lookups
                standings = await self._reports.standings([node.node_id for node in lookups.nodes() if node.stores])
                self._moves = moves_under_way(lookups.placements(), standings)
            return self._moves

    def placed(self, group: int) -> tuple[int, ...]:
        return self._nameserver.lookups.placements().get(group, ())

    async def lead(self, group: int, node_id: int) -> None:
        """Raises `WriteGroupsNotLed`, `TransferRefused`, `RpcError`."""
        groups = self._nameserver.lookups.write_groups()
        await self._reports.transfer_leader(group, node_id, self._leader_of, groups, close_behind=True)

    def address(self, node_id: int) -> tuple[str, int] | None:
        """Port 0 of a node alone, which nobody calls, is no address."""
        registered = self._nameserver.lookups.registered(node_id)
        try:
            return None if registered is None else parsed(registered.rpc)
        except AddressError:
            return None
