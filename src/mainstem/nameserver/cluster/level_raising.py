"""Raising the cluster's feature level: by the operator, or by the leader on its own once all nodes can.

The command that raises the level stops every program that knows of no levels; what may be written from then on stops
every other program that does not read it. So the leader, which alone makes changes, checks the nodes at the moment it
makes that command: each node must live and have told this leader, in a heartbeat, that it reads the level. Nodes that
are away count, since they come back to this log. Only a dead node that holds no replica and is no member of the
metadata quorum does not count: it takes over the others' state when it returns.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from mainstem.model import FeatureLevel, LevelRange
from mainstem.nameserver.cluster.heartbeats import Heartbeats
from mainstem.nameserver.cluster.node_liveness import NodeState
from mainstem.nameserver.errors import MetadataUnavailable, NameserverError
from mainstem.nameserver.quorum.metadata_quorum import MetadataQuorum
from mainstem.nameserver.quorum.proposer import NotLeading, Proposer, Unsettled
from mainstem.nameserver.state.changes import Made
from mainstem.nameserver.state.commands import RaiseFeatureLevel
from mainstem.nameserver.state.node_table import span
from mainstem.nameserver.state.replica import MetadataReplica

LOOK_SECONDS = 1.0
"""Between two checks whether all nodes can: no client waits for it."""

log = logging.getLogger(__name__)


class LevelRaising:
    """Raises the level while this node leads; `run` is a task on every member where raising is automatic."""

    def __init__(
        self,
        group: MetadataQuorum,
        replica: MetadataReplica,
        proposer: Proposer,
        node_id: int,
        heartbeats: Heartbeats | None,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        """`heartbeats` None: there are no other nodes."""
        self._group = group
        self._replica = replica
        self._proposer = proposer
        self._node_id = node_id
        self._heartbeats = heartbeats
        self._sleep = sleep
        self._registered: dict[int, LevelRange] = {}
        self._registered_term = 0

    def registers(self, node_id: int, levels: LevelRange) -> None:
        """A node says at which levels it can work as it registers, which is before its first heartbeat."""
        if self._registered_term != self._group.term:
            self._registered.clear()
            self._registered_term = self._group.term
        self._registered[node_id] = levels

    def against(self, level: int) -> list[str]:
        """Node by node, why the cluster cannot be raised to this level now; only the leader knows."""
        own = self._replica.levels
        if level > own.newest:
            return [f"node {self._node_id}, which leads the metadata, reads {span(own)}"]
        heartbeats = self._heartbeats
        if heartbeats is None:
            return []
        found = (self._against(node_id, level, heartbeats) for node_id in sorted(self._nodes()))
        return [reason for reason in found if reason is not None]

    def _against(self, node_id: int, level: int, heartbeats: Heartbeats) -> str | None:
        if node_id == self._node_id:
            return None
        verdict, levels = heartbeats.judged(node_id), self._levels_of(node_id, heartbeats)
        if verdict.state is NodeState.DEAD and not self._holds_anything(node_id):
            return None
        if verdict.state is not NodeState.ALIVE:
            return f"node {node_id} is {verdict.state.value} ({verdict.reason}): start it, or replace it"
        if levels is None:
            return f"node {node_id} was not heard of yet: try again in a moment"
        if levels.newest < level:
            return f"node {node_id} reads {span(levels)}: start it with a newer version"
        return None

    def _levels_of(self, node_id: int, heartbeats: Heartbeats) -> LevelRange | None:
        """The levels that the node told this leader last; None: it told none."""
        if (report := heartbeats.liveness().report(node_id)) is not None:
            return report.levels
        return self._registered.get(node_id) if self._registered_term == self._group.term else None

    def _nodes(self) -> set[int]:
        registered = self._replica.state.node_table.registered.keys()
        return set(self._group.membership.members | registered)

    def _holds_anything(self, node_id: int) -> bool:
        placed = self._replica.state.placements.values()
        return node_id in self._group.membership.members or any(node_id in replicas for replicas in placed)

    @property
    def unheard(self) -> bool:
        """Whether a node that may be alive has not said yet which levels it reads."""
        heartbeats = self._heartbeats
        return heartbeats is not None and any(
            heartbeats.judged(node_id).state is NodeState.ALIVE and self._levels_of(node_id, heartbeats) is None
            for node_id in self._nodes() - {self._node_id}
        )

    @property
    def waits_for_machines(self) -> bool:
        """Whether a node that lives has not registered again since it may say on which machine it runs."""
        heartbeats = self._heartbeats
        if heartbeats is None or self._replica.state.feature_level < FeatureLevel.ELASTIC:
            return False
        return any(
            command.machine is None
            and (node_id == self._node_id or heartbeats.judged(node_id).state is NodeState.ALIVE)
            for node_id, command in self._replica.state.node_table.registered.items()
        )

    def of_a_new_cluster(self) -> list[RaiseFeatureLevel]:
        """The commands that go before the first placement: a cluster without data starts at the newest level
        that all its nodes read. Raises `MetadataUnavailable` while a node has not said which levels it
        reads."""
        state = self._replica.state
        if state.feature_level > FeatureLevel.FIRST:
            return []
        if self.unheard:
            raise MetadataUnavailable("a node has registered and did not say yet which feature levels it reads")
        for level in sorted(FeatureLevel, reverse=True):
            if level > state.feature_level and not self.against(level):
                return [RaiseFeatureLevel(level)]
        return []

    async def run(self) -> None:
        """Raise the level whenever all nodes can, until cancelled."""
        while True:
            try:
                if self._group.serves and self._replica.state.placements and self._highest() is not None:
                    await self._proposer.propose(self._make, b"")
            except (NotLeading, Unsettled):
                pass  # another node leads now, and has this work
            except NameserverError as error:
                log.debug("tried again soon: %s", error)
            await self._sleep(LOOK_SECONDS)

    async def _make(self) -> Made:
        level = self._highest()
        return Made([RaiseFeatureLevel(level)] if level is not None else [], [])

    def _highest(self) -> FeatureLevel | None:
        """The highest level above the present one that every node can read."""
        present = self._replica.state.feature_level
        return next((it for it in sorted(FeatureLevel, reverse=True) if it > present and not self.against(it)), None)
