"""`ClusterStanding` of a node's broker: what the leaders of the metadata and of the write groups tell."""

from __future__ import annotations

from mainstem.address import AddressError, parsed
from mainstem.model import QuorumStanding
from mainstem.nameserver.nameserver import Nameserver


class NodeClusterStanding:
    """Implements `ports.ClusterStanding`."""

    def __init__(self, nameserver: Nameserver) -> None:
        self._nameserver = nameserver

    async def metadata_quorum(self) -> QuorumStanding:
        """Raises `MetadataUnavailable`."""
        return await self._nameserver.quorum_positions.told()

    def address(self, node_id: int) -> tuple[str, int] | None:
        """Port 0 of a node alone, which nobody calls, is no address."""
        registered = self._nameserver.lookups.registered(node_id)
        try:
            return None if registered is None else parsed(registered.rpc)
        except AddressError:
            return None
