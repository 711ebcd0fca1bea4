"""The metadata leader's own duties, which no client asks for: it creates the cluster, places the write groups once
enough nodes are there, and has slots without queues go back to their class where many are kept fewer times.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from mainstem.model import NodeRole
from mainstem.nameserver.cluster.level_raising import LevelRaising
from mainstem.nameserver.errors import MetadataUnavailable, NameserverError
from mainstem.nameserver.quorum.metadata_quorum import MetadataQuorum
from mainstem.nameserver.quorum.proposer import NotLeading, Proposer, Unsettled
from mainstem.nameserver.requests import Requests
from mainstem.nameserver.state.changes import Made, new_cluster
from mainstem.nameserver.state.plans.replica_placement import crowded_machines
from mainstem.nameserver.state.replica import MetadataReplica
from mainstem.rpc.messages.metadata import WantPlacement

PAUSE_SECONDS = 0.1

log = logging.getLogger(__name__)


class LeaderDuties:
    """Carries out the duties while this node leads; `run` is a task on every member."""

    def __init__(
        self,
        group: MetadataQuorum,
        replica: MetadataReplica,
        proposer: Proposer,
        requests: Requests,
        cluster_id: Callable[[], str],
        write_groups: int,
        raising: LevelRaising,
        replicas: int,
        storage_nodes_min: int,
        member_id: Callable[[int], int],
    ) -> None:
        """A cluster that this node creates gets this id and so many write groups of so many replicas, and begins at the
        newest feature level. `storage_nodes_min`: no write group is placed before so many nodes store. `member_id`: the
        number by which the quorum knows a node."""
        self._group = group
        self._replica = replica
        self._proposer = proposer
        self._requests = requests
        self._cluster_id = cluster_id
        self._write_groups = write_groups
        self._raising = raising
        self._replicas = replicas
        self._storage_nodes_min = storage_nodes_min
        self._member_id = member_id
        self._looked_at: tuple[int, ...] = ()
        """The facts from which follows whether a slot goes back to its class, when they were looked at last."""

    async def run(self) -> None:
        """Carry out what is due after every change, until cancelled."""
        while True:
            version = self._group.version
            try:
                if self._group.serves:
                    await self._do()
            except (NotLeading, Unsettled):
                pass  # another node leads now, and has the duties
            except MetadataUnavailable as error:
                log.debug("tried again soon: %s", error)
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            await self._group.changed_since(version)

    async def _do(self) -> None:
        state = self._replica.state
        if state.cluster is None:
            await self._proposer.propose(self._make_cluster, b"")
        elif not state.placements and self._all_met():
            await self._proposer.propose(self._make_level, b"")
            if self._raising.waits_for_machines:
                raise MetadataUnavailable("a node has not said yet on which machine it runs")
            await self._proposer.propose(self._make_placement, b"")
            self._tell_crowded_machines()
        elif state.placements:
            await self._restore()

    async def _restore(self) -> None:
        """Asks for a move of each slot once. Wishes are no facts to look at: one that is taken back, as it waits for a
        node that is lost, would be asked for again at once, and be taken back again."""
        state = self._replica.state
        moving = state.moving_slots
        seen = (state.topic_table.deletions, len(moving.numbers), len(moving.others))
        if seen != self._looked_at:
            asked: set[int] = set()
            while (move := state.slot_to_restore()) is not None and move.slot not in asked:
                asked.add(move.slot)
                await self._proposer.propose(self._make_restoring, b"")
            self._looked_at = seen  # not before: a change that is not taken now is tried again

    async def _make_restoring(self) -> Made:
        """A move that was refused or taken back is tried again when topics were deleted, or slots have moved."""
        state = self._replica.state
        move = state.slot_to_restore()
        if move is None:
            return Made([], [])
        try:
            state.check(move)
        except NameserverError as error:
            log.debug("slot %d stays where it is for now: %s", move.slot, error)
            return Made([], [])
        return Made([move], [])

    def _all_met(self) -> bool:
        """Whether the nodes are there that a new cluster begins with: all voters, as many nodes that store as the
        configuration wants and, where the voters do not all store, as many as write groups have replicas."""
        table, voters = self._replica.state.node_table, self._group.membership.voters
        if len(table.with_role(NodeRole.STORAGE)) < self._storage_nodes_min:
            return False
        met = [node for node in table.nodes.values() if self._member_id(node.node_id) in voters]
        if len(met) < len(voters):
            return False
        if all(node.stores for node in met):
            return True
        return len(table.with_role(NodeRole.STORAGE)) >= self._replicas

    async def _make_cluster(self) -> Made:
        if self._replica.state.cluster is not None:
            return Made([], [])
        return Made([new_cluster(self._cluster_id(), self._write_groups)], [])

    async def _make_level(self) -> Made:
        """Before the placement, since at a low level nodes cannot say all that it goes by. Raises `MetadataUnavailable`
        while a node has not said yet which feature levels it reads."""
        return Made([] if self._replica.state.placements else [*self._raising.of_a_new_cluster()], [])

    async def _make_placement(self) -> Made:
        return await self._requests.maker(WantPlacement())()

    def _tell_crowded_machines(self) -> None:
        table = self._replica.state.node_table
        locations = {node.node_id: node.location for node in table.nodes.values()}
        for machine, groups in crowded_machines(table.placements.values(), locations).items():
            log.warning(
                "%d of %d write groups have several replicas on machine %s, as there are too few other machines: these "
                "replicas fail together",
                groups, len(table.placements), machine,
            )  # fmt: skip
