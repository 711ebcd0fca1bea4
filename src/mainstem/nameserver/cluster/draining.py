"""The metadata leader empties the nodes that are drained, and rebuilds elsewhere what lost nodes held: it begins moves
of their replicas as `drain_plan` allows, and last it hands on the vote on the metadata of those that are drained.

It keeps next to nothing: which nodes are drained stands in the metadata, and how far their moves are follows from
placement and the members of the write groups. So the next leader goes on where this one was. Which moves have begun for
lost nodes is remembered by the leader alone, to turn them back when such a node returns first; those of an earlier
leader go on to their end.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Protocol

from mainstem.model import Node, NodeRole
from mainstem.nameserver.cluster.lost_nodes import LostNodes
from mainstem.nameserver.cluster.node_liveness import LivenessVerdict, NodeState, Report
from mainstem.nameserver.errors import NameserverError
from mainstem.nameserver.quorum.metadata_quorum import MetadataQuorum
from mainstem.nameserver.quorum.proposer import NotLeading, Proposer, Unsettled
from mainstem.nameserver.requests import Requests
from mainstem.nameserver.state.plans.drain_plan import (
    DrainPlan,
    PlannedMove,
    Standings,
    VoteMove,
    left_on,
    may_turn_back,
    plan_drains,
    plan_vote,
)
from mainstem.nameserver.state.replica import MetadataReplica
from mainstem.raft import RaftError
from mainstem.rpc.messages.metadata import WantMove, WantSlotKept

LOOK_SECONDS = 1.0
"""Between two looks at what moves: as often as write groups take membership steps."""

log = logging.getLogger(__name__)


class Lookups(Protocol):
    """As `nameserver.lookups`."""

    @property
    def metadata_leader(self) -> int: ...

    def alive(self, role: NodeRole) -> Sequence[Node]: ...

    def verdict(self, node_id: int) -> LivenessVerdict: ...

    def report(self, node_id: int) -> Report | None: ...


class Draining:
    """Empties drained and lost nodes while this node leads the metadata; `run` is a task on every node. `lost_nodes`
    may be read on any."""

    def __init__(
        self,
        quorum: MetadataQuorum,
        replica: MetadataReplica,
        proposer: Proposer,
        requests: Requests,
        lookups: Lookups,
        change_member: Callable[[int, int], Awaitable[None]],
        standings: Callable[[], Awaitable[Standings]],
        sleep: Callable[[float], Awaitable[None]],
        monotonic: Callable[[], float],
        seats: int,
        rebuild_after_seconds: float,
    ) -> None:
        """`standings` asks the leaders of the write groups; `seats`: how many nodes shall vote on the metadata."""
        self._quorum = quorum
        self._replica = replica
        self._proposer = proposer
        self._requests = requests
        self._lookups = lookups
        self._change_member = change_member
        self._standings = standings
        self._sleep = sleep
        self._monotonic = monotonic
        self._seats = seats
        self.lost_nodes = LostNodes(rebuild_after_seconds)
        self._rebuilding: dict[int, PlannedMove] = {}
        """By write group: moves for lost nodes, which this leader began."""

    async def run(self) -> None:
        """Begin what may begin, again and again, until cancelled."""
        while True:
            await self._sleep(LOOK_SECONDS)
            self._look()
            if not self._quorum.serves:
                self._rebuilding.clear()
                continue
            if not self._replica.state.node_table.draining and not self.lost_nodes.lost and not self._rebuilding:
                continue
            try:
                await self._round()
            except (NotLeading, Unsettled):
                pass  # another node leads now, and goes on
            except (NameserverError, RaftError) as error:
                log.debug("drained nodes are not empty yet; tried again soon: %s", error)

    def plan(self, standings: Standings) -> DrainPlan:
        """The moves that a leader would begin now, and what stands against the rest."""
        state, lost = self._replica.state, self.lost_nodes.lost
        table, locations = state.node_table, {node.node_id: node.location for node in state.node_table.nodes.values()}
        return plan_drains(table.placements, standings, locations, self.takers(), table.draining, lost, state.staying())

    def takers(self) -> list[int]:
        """The nodes that live, store and are not drained, and have not told this one of a disk that is full or fails;
        they tell the metadata leader."""
        alive = [node.node_id for node in self._lookups.alive(NodeRole.STORAGE)]
        reports = {node_id: self._lookups.report(node_id) for node_id in alive}
        troubled = {node_id for node_id, report in reports.items() if report is not None and report.disk}
        return sorted(set(alive) - troubled - self._replica.state.node_table.draining)

    def _look(self) -> None:
        storing = [node.node_id for node in self._replica.state.node_table.with_role(NodeRole.STORAGE)]
        dead = [node_id for node_id in storing if self._lookups.verdict(node_id).state is NodeState.DEAD]
        self.lost_nodes.look(self._monotonic(), self._lookups.metadata_leader, storing, dead)

    def vote_to_move(self) -> VoteMove | None:
        membership = self._quorum.membership
        heirs = [node.node_id for node in self._lookups.alive(NodeRole.NAMESERVER)]
        draining = self._replica.state.node_table.draining
        return plan_vote(draining, membership.voters, membership.learners, self._seats, heirs)

    async def _round(self) -> None:
        standings = await self._standings()
        await self._turn_back(standings)
        lost = self.lost_nodes.lost
        await self._take_back_moves(lost)
        for move in self.plan(standings).moves:
            why = "has been dead for too long" if move.old in lost else "is drained"
            log.info(
                "write group %d: its replica moves from node %d, which %s, to node %d",
                move.group, move.old, why, move.new,
            )  # fmt: skip
            want = WantMove(*move, f"node {move.old} {why}")
            await self._proposer.propose(self._requests.maker(want), b"")
            if move.old in lost:
                self._rebuilding[move.group] = move
        vote = self.vote_to_move()
        if vote is None or left_on(vote.old, self._replica.state.placements, standings):
            return
        if vote.old == self._quorum.node_id:
            self._let_another_lead()
        else:
            log.info("node %d, which is drained, gives up its vote on the metadata", vote.old)
            await self._change_member(*vote)

    async def _take_back_moves(self, lost: Collection[int]) -> None:
        """A slot does not move to a write group on a node that is lost, and was to copy what the one before has: it
        would wait for good, and the replicas of both would stay where they are meanwhile."""
        for slot in self._replica.state.moves_waiting_for(lost):
            log.warning(
                "slot %d stays where it is: its move waits for a node that has been dead for too long, and whose "
                "replicas are rebuilt; ask for it again when that is done", slot,
            )  # fmt: skip
            await self._proposer.propose(self._requests.maker(WantSlotKept(slot)), b"")

    async def _turn_back(self, standings: Standings) -> None:
        """A node that returns before its replica is rebuilt keeps it."""
        for move in list(self._rebuilding.values()):
            may = may_turn_back(move, self._replica.state.placements, standings)
            if may is None:
                del self._rebuilding[move.group]
            elif may and self._is_back(move.old):
                log.info(
                    "write group %d: node %d is back and keeps its replica, which node %d had begun to copy",
                    move.group, move.old, move.new,
                )  # fmt: skip
                del self._rebuilding[move.group]
                want = WantMove(move.group, move.new, move.old, f"node {move.old} is back, and keeps its replica")
                await self._proposer.propose(self._requests.maker(want), b"")

    def _is_back(self, node_id: int) -> bool:
        drained = node_id in self._replica.state.node_table.draining
        return not drained and self._lookups.verdict(node_id).state is NodeState.ALIVE

    def _let_another_lead(self) -> None:
        """A leader does not take its own vote away; the next one does."""
        draining = self._replica.state.node_table.draining
        others = sorted(self._quorum.membership.voters - draining)
        alive = {node.node_id for node in self._lookups.alive(NodeRole.NAMESERVER)}
        heir = next((node_id for node_id in others if node_id in alive), 0)
        if heir:
            self._quorum.transfer_leadership(heir)
