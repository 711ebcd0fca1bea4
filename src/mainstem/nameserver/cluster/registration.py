"""A node registers in the metadata: its addresses, its roles, and the feature levels that its program reads. The
metadata leader judges what only a leader can: whether a node may bear its id, and a feature level be raised.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from mainstem.address import Address
from mainstem.model import FeatureLevel, LevelRange, Node, NodeRole
from mainstem.nameserver.cluster.heartbeats import Heartbeats
from mainstem.nameserver.cluster.level_raising import LevelRaising
from mainstem.nameserver.cluster.node_liveness import NodeState
from mainstem.nameserver.cluster_ports import Facts
from mainstem.nameserver.errors import (
    FeatureLevelNotReady,
    ForeignDirectory,
    InvalidPlacement,
    InvalidRoles,
    MetadataUnavailable,
    NameserverError,
    NodeIdTaken,
    NodeWasRemoved,
)
from mainstem.nameserver.quorum.metadata_quorum import MetadataQuorum
from mainstem.nameserver.requests import Requests
from mainstem.nameserver.state.changes import registration_of
from mainstem.nameserver.state.node_table import check_levels_of, removed_text
from mainstem.nameserver.state.replica import MetadataReplica
from mainstem.rpc.messages.metadata import Wanted, WantedListenerAddress, WantFeatureLevel, WantNode, WantNodeRemoval

RETRY_SECONDS = 1.0
"""Between two attempts: while the metadata closes, a change is refused at once."""

log = logging.getLogger(__name__)


class Registration:
    """Registers this node. `incarnation`: 16 bytes that tell its directory from any other."""

    def __init__(
        self, requests: Requests, replica: MetadataReplica, quorum: MetadataQuorum, facts: Facts, incarnation: bytes
    ) -> None:
        self._requests = requests
        self._replica = replica
        self._quorum = quorum
        self.facts = facts
        """The facts that the node registers besides its address for clients."""
        self._incarnation = incarnation
        self.node: Node | None = None
        """The registration; None: nothing yet."""

    def may_say_more_at(self, level: FeatureLevel) -> bool:
        """Whether the node is registered, and the cluster has come to that level; from `SECURED` on a registration says
        where each listener is, from `ELASTIC` on on which machine the node runs."""
        return self.node is not None and self._replica.state.feature_level >= level

    async def register(self, node: Node) -> None:
        """Note this node's addresses; if they are known already, no change is logged. Raises `NodeIdTaken`,
        `MetadataUnavailable`."""
        facts = self.facts
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
            endpoints=[WantedListenerAddress(*each) for each in node.endpoints],
            machine=node.machine or "",
        )
        state, level = self._replica.state, 0
        while state.feature_level > level:  # a higher one lets it say more
            level = state.feature_level
            if state.registered(node.node_id) == registration_of(wanted, level):
                return
            (outcome,) = (await self._requests.change(wanted)).items
            if isinstance(outcome, NameserverError):
                raise outcome

    async def check_directory(self, node_id: int, current: Callable[[], Awaitable[None]]) -> None:
        """Check that the cluster knows the node by this directory, however long the metadata has no leader. `current`
        waits until this node has applied the newest metadata. Raises `ForeignDirectory`, `NodeWasRemoved`, and
        `MetadataUnavailable` once the metadata has failed."""
        while True:
            try:
                await current()
                break
            except MetadataUnavailable as error:
                if self._quorum.failure is not None:
                    raise
                log.warning("whether the cluster knows this node's directory is not known yet: %s", error)
        table = self._replica.state.node_table
        if node_id in table.removed:
            raise NodeWasRemoved(removed_text(node_id))
        known = table.registered.get(node_id)
        if known is None or known.incarnation != self._incarnation:
            raise ForeignDirectory(
                f"the directory holds messages, and this cluster does not know it as that of node {node_id}: give the "
                "node its own directory, or an empty one"
            )

    async def register_at_last(self, node: Node) -> None:
        """Register, however long the metadata has no leader. Raises `NodeIdTaken`, and `MetadataUnavailable` once the
        metadata has failed."""
        while True:
            try:
                await self.register(node)
                self.node = node
                return
            except MetadataUnavailable as error:
                if self._quorum.failure is not None:
                    raise
                log.warning("node %d is not registered yet: %s", node.node_id, error)
                await asyncio.sleep(RETRY_SECONDS)


class Admission:
    """Checks requests on the leader, before commands are made of them."""

    def __init__(
        self,
        replica: MetadataReplica,
        raising: LevelRaising,
        heartbeats: Heartbeats | None,
        quorum: MetadataQuorum,
    ) -> None:
        """`heartbeats` None: there are no other nodes."""
        self._replica = replica
        self._quorum = quorum
        self._raising = raising
        self._heartbeats = heartbeats

    def check(self, wanted: Wanted) -> None:
        """Raises `NodeIdTaken` for a node whose id another live node bears, `UnreadableFeatureLevel` for one whose
        program is too old, `InvalidRoles` for a voter without the role of one, `InvalidPlacement` for the removal of a
        node that is needed, and `FeatureLevelNotReady` for a feature level that a node does not read."""
        if isinstance(wanted, WantFeatureLevel) and (against := self._raising.against(wanted.level)):
            raise FeatureLevelNotReady(f"feature level {wanted.level} must wait: {'; '.join(against)}")
        if isinstance(wanted, WantNode):
            self._check_node(wanted)
        if isinstance(wanted, WantNodeRemoval):
            self._check_removal(wanted.node_id)

    def _check_removal(self, node_id: int) -> None:
        """Raises `InvalidPlacement` for a node that lives, or is a member of the metadata quorum."""
        if node_id in self._quorum.membership.members:
            raise InvalidPlacement(
                f"node {node_id} is a member of the metadata quorum: have it give up its vote first (mainstem cluster "
                f"drain {node_id} --wait)"
            )
        if self._heartbeats is not None and self._replica.state.node(node_id) is not None:
            verdict = self._heartbeats.judged(node_id)
            if verdict.state is not NodeState.DEAD:
                raise InvalidPlacement(
                    f"node {node_id} is {verdict.state.value}: stop it first, and it is removed once it is dead"
                )

    def _check_node(self, wanted: WantNode) -> None:
        node_id, levels = wanted.node_id, LevelRange(wanted.level_oldest, wanted.level_newest)
        check_levels_of(node_id, levels, self._replica.state.feature_level)
        self._raising.registers(node_id, levels)
        is_member = node_id in self._quorum.membership.members
        if is_member and wanted.roles and NodeRole.NAMESERVER not in wanted.roles:
            raise InvalidRoles(
                f"node {node_id} cannot do without the role nameserver: it is a member of the metadata quorum. Start "
                f"it with the role, and have another node take its place first: mainstem cluster replace {node_id} NODE"
            )
        if self._heartbeats is None:
            return
        known = self._replica.state.registered(node_id)
        if known is not None and known.incarnation not in (b"", wanted.incarnation):
            verdict = self._heartbeats.judged(node_id)
            if verdict.state is not NodeState.DEAD:
                raise NodeIdTaken(
                    f"node {node_id} runs at {known.rpc or Address(known.host, known.port)} from another directory "
                    f"({verdict.reason or 'it is alive'}); give this node another node_id, or stop that one first"
                )
        self._heartbeats.registers(node_id, levels)
