"""The metadata leader judges what only a leader can: whether a node may bear its id, and a feature level be raised."""

from __future__ import annotations

from mainstem.address import Address
from mainstem.model import LevelRange
from mainstem.nameserver.cluster.heartbeats import Heartbeats
from mainstem.nameserver.cluster.level_raising import LevelRaising
from mainstem.nameserver.cluster.node_liveness import NodeState
from mainstem.nameserver.errors import FeatureLevelNotReady, NodeIdTaken
from mainstem.nameserver.state.feature_level import check_levels_of
from mainstem.nameserver.state.replica import MetadataReplica
from mainstem.rpc.messages.metadata import Wanted, WantFeatureLevel, WantNode


class Admission:
    """Checks requests on the leader, before commands are made of them."""

    def __init__(self, replica: MetadataReplica, raising: LevelRaising, heartbeats: Heartbeats | None) -> None:
        """`heartbeats` None: there are no other nodes."""
        self._replica = replica
        self._raising = raising
        self._heartbeats = heartbeats

    def check(self, wanted: Wanted) -> None:
        """Raises `NodeIdTaken` for a node whose id another live node bears, `UnreadableFeatureLevel` for one whose
        program is too old, and `FeatureLevelNotReady` for a feature level that a node does not read."""
        if isinstance(wanted, WantFeatureLevel) and (against := self._raising.against(wanted.level)):
            raise FeatureLevelNotReady(f"feature level {wanted.level} must wait: {'; '.join(against)}")
        if isinstance(wanted, WantNode):
            levels = LevelRange(wanted.level_oldest, wanted.level_newest)
            check_levels_of(wanted.node_id, levels, self._replica.state.feature_level)
            self._raising.registers(wanted.node_id, levels)
        if not isinstance(wanted, WantNode) or self._heartbeats is None:
            return
        known = self._replica.state.registered(wanted.node_id)
        if known is None or known.incarnation in (b"", wanted.incarnation):
            return
        verdict = self._heartbeats.judged(wanted.node_id)
        if verdict.state is not NodeState.DEAD:
            raise NodeIdTaken(
                f"node {wanted.node_id} runs at {known.rpc or Address(known.host, known.port)} from another directory "
                f"({verdict.reason or 'it is alive'}); give this node another node_id, or stop that one first"
            )
