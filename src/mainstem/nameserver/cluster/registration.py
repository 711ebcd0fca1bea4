"""A node registers in the metadata: its addresses, its roles, and the feature levels that its program reads."""

from __future__ import annotations

import logging

from mainstem.model import Node
from mainstem.nameserver.cluster_ports import Facts
from mainstem.nameserver.errors import MetadataUnavailable, NameserverError
from mainstem.nameserver.quorum.metadata_group import MetadataGroup
from mainstem.nameserver.requests import Requests
from mainstem.nameserver.state.changes import registration_of
from mainstem.nameserver.state.replica import MetadataReplica
from mainstem.rpc.messages.metadata import WantNode

log = logging.getLogger(__name__)


class Registration:
    """Registers this node. `incarnation`: 16 bytes that tell its directory from any other."""

    def __init__(
        self, requests: Requests, replica: MetadataReplica, quorum: MetadataGroup, facts: Facts, incarnation: bytes
    ) -> None:
        self._requests = requests
        self._replica = replica
        self._quorum = quorum
        self._facts = facts
        self._incarnation = incarnation

    async def register(self, node: Node) -> None:
        """Note this node's addresses; if they are known already, no change is logged. Raises `NodeIdTaken`,
        `MetadataUnavailable`."""
        facts = self._facts
        wanted = WantNode(
            node_id=node.node_id,
            host=node.host,
            port=node.port,
            rack=node.rack,
            rpc=facts.rpc,
            incarnation=self._incarnation,
            roles=list(facts.roles),
            version=facts.version,
            level_oldest=facts.levels.oldest,
            level_newest=facts.levels.newest,
        )
        if self._replica.state.registered(node.node_id) == registration_of(wanted):
            return
        (outcome,) = (await self._requests.change(wanted)).items
        if isinstance(outcome, NameserverError):
            raise outcome

    async def register_at_last(self, node: Node) -> None:
        """Register, however long the metadata has no leader. Raises `NodeIdTaken`, and `MetadataUnavailable` once the
        metadata has failed."""
        while True:
            try:
                return await self.register(node)
            except MetadataUnavailable as error:
                if self._quorum.failure is not None:
                    raise
                log.warning("node %d is not registered yet: %s", node.node_id, error)
