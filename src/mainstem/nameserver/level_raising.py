"""Raising the cluster's feature level: by the operator, or by the leader on its own once all nodes can.

The command that raises it stops every program that knows of no levels, and what may be written from then on every
other program that does not read it. So the leader, which alone makes changes, looks at the nodes in the moment in which
it makes that command: each of them must live and have told this leader, in a heartbeat, that it reads the level. Nodes
that are away count, since they come back to this log; only one that is dead, holds no replica and is no member of the
metadata group stands in nobody's way, as it begins anew from others' state when it returns.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from mainstem.model import FeatureLevel, LevelRange
from mainstem.nameserver.changes import Made
from mainstem.nameserver.commands import RaiseFeatureLevel
from mainstem.nameserver.errors import MetadataUnavailable, NameserverError
from mainstem.nameserver.feature_level import span
from mainstem.nameserver.heartbeats import Heartbeats
from mainstem.nameserver.liveness import State
from mainstem.nameserver.metadata_group import MetadataGroup
from mainstem.nameserver.proposer import NotLeading, Proposer, Unsettled
from mainstem.nameserver.replica import Replica

LOOK_SECONDS = 1.0
"""Between two looks at whether all nodes can: nobody waits for it."""

log = logging.getLogger(__name__)


class LevelRaising:
    """Of whichever node leads; `run` is a task on every member where raising is automatic."""

    def __init__(
        self,
        group: MetadataGroup,
        replica: Replica,
        proposer: Proposer,
        node_id: int,
        heartbeats: Callable[[], Heartbeats | None],
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
        """A node says what it can work at as it registers, which is before its first heartbeat."""
        if self._registered_term != self._group.term:
            self._registered.clear()
            self._registered_term = self._group.term
        self._registered[node_id] = levels

    def against(self, level: int) -> list[str]:
        """Why the cluster cannot be raised to this level now, node by node; only the leader knows."""
        own = self._replica.levels
        if level > own.newest:
            return [f"node {self._node_id}, which leads the metadata, reads {span(own)}"]
        heartbeats = self._heartbeats()
        if heartbeats is None:
            return []
        found = (self._against(node_id, level, heartbeats) for node_id in sorted(self._nodes()))
        return [reason for reason in found if reason is not None]

    def _against(self, node_id: int, level: int, heartbeats: Heartbeats) -> str | None:
        if node_id == self._node_id:
            return None
        verdict, levels = heartbeats.judged(node_id), self._levels_of(node_id, heartbeats)
        if verdict.state is State.DEAD and not self._holds_anything(node_id):
            return None
        if verdict.state is not State.ALIVE:
            return f"node {node_id} is {verdict.state.value} ({verdict.reason}): start it, or replace it"
        if levels is None:
            return f"node {node_id} was not heard of yet: try again in a moment"
        if levels.newest < level:
            return f"node {node_id} reads {span(levels)}: start it with a newer version"
        return None

    def _levels_of(self, node_id: int, heartbeats: Heartbeats) -> LevelRange | None:
        """By what the node told this leader last; None: nothing."""
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
        """Whether a node that may well live has not said yet what it reads."""
        heartbeats = self._heartbeats()
        return heartbeats is not None and any(
            heartbeats.judged(node_id).state is State.ALIVE and self._levels_of(node_id, heartbeats) is None
            for node_id in self._nodes() - {self._node_id}
        )

    def of_a_new_cluster(self) -> list[RaiseFeatureLevel]:
        """What goes before the first placement: a cluster in which nothing was written yet starts at the newest level
        that all its nodes read. Raises `MetadataUnavailable` while one of them has not said which."""
        state = self._replica.state
        if state.feature_level > FeatureLevel.FIRST:
            return []
        if self.unheard:
            raise MetadataUnavailable(
                "a node has registered and did not say yet which feature levels it reads"
            )
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
                pass  # somebody else's work now
            except NameserverError as error:
                log.debug("tried again soon: %s", error)
            await self._sleep(LOOK_SECONDS)

    async def _make(self) -> Made:
        level = self._highest()
        return Made([RaiseFeatureLevel(level)] if level is not None else [], [])

    def _highest(self) -> FeatureLevel | None:
        """The highest level above the present one that nothing stands against."""
        present = self._replica.state.feature_level
        return next(
            (it for it in sorted(FeatureLevel, reverse=True) if it > present and not self.against(it)), None
        )
