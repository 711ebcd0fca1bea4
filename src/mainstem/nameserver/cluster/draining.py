"""The metadata leader empties the nodes that are drained: it begins moves of their replicas as `drain_plan` allows, and
last it hands on their vote on the metadata.

It keeps nothing: which nodes are drained stands in the metadata, and how far their moves are follows from placement and
the members of the write groups. So the next leader goes on where this one was.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable

from mainstem.model import Node, NodeRole
from mainstem.nameserver.errors import NameserverError
from mainstem.nameserver.quorum.metadata_quorum import MetadataQuorum
from mainstem.nameserver.quorum.proposer import NotLeading, Proposer, Unsettled
from mainstem.nameserver.requests import Requests
from mainstem.nameserver.state.drain_plan import DrainPlan, Standings, VoteMove, left_on, plan_drains, plan_vote
from mainstem.nameserver.state.replica import MetadataReplica
from mainstem.raft import RaftError
from mainstem.rpc.messages.metadata import WantMove

LOOK_SECONDS = 1.0
"""Between two looks at what moves: as often as write groups take membership steps."""

log = logging.getLogger(__name__)


class Draining:
    """Empties drained nodes while this node leads the metadata; `run` is a task on every node."""

    def __init__(
        self,
        quorum: MetadataQuorum,
        replica: MetadataReplica,
        proposer: Proposer,
        requests: Requests,
        alive: Callable[[NodeRole], Iterable[Node]],
        change_member: Callable[[int, int], Awaitable[None]],
        standings: Callable[[], Awaitable[Standings]],
        sleep: Callable[[float], Awaitable[None]],
        seats: int,
    ) -> None:
        """`standings` asks the leaders of the write groups; `seats`: how many nodes shall vote on the metadata."""
        self._quorum = quorum
        self._replica = replica
        self._proposer = proposer
        self._requests = requests
        self._alive = alive
        self._change_member = change_member
        self._standings = standings
        self._sleep = sleep
        self._seats = seats

    async def run(self) -> None:
        """Begin what may begin, again and again, until cancelled."""
        while True:
            await self._sleep(LOOK_SECONDS)
            if not self._quorum.serves or not self._replica.state.node_table.draining:
                continue
            try:
                await self._round()
            except (NotLeading, Unsettled):
                pass  # another node leads now, and goes on
            except (NameserverError, RaftError) as error:
                log.debug("drained nodes are not empty yet; tried again soon: %s", error)

    def plan(self, standings: Standings) -> DrainPlan:
        """The moves that a leader would begin now, and what stands against the rest."""
        table = self._replica.state.node_table
        racks = {node.node_id: node.rack for node in table.nodes.values()}
        takers = [it.node_id for it in self._alive(NodeRole.STORAGE) if it.node_id not in table.draining]
        return plan_drains(table.placements, standings, racks, takers, table.draining)

    def vote_to_move(self) -> VoteMove | None:
        membership = self._quorum.membership
        heirs = [node.node_id for node in self._alive(NodeRole.NAMESERVER)]
        draining = self._replica.state.node_table.draining
        return plan_vote(draining, membership.voters, membership.learners, self._seats, heirs)

    async def _round(self) -> None:
        standings = await self._standings()
        for move in self.plan(standings).moves:
            log.info(
                "write group %d: its replica moves from node %d, which is drained, to node %d",
                move.group, move.old, move.new,
            )  # fmt: skip
            await self._proposer.propose(self._requests.maker(WantMove(*move)), b"")
        vote = self.vote_to_move()
        if vote is None or left_on(vote.old, self._replica.state.placements, standings):
            return
        if vote.old == self._quorum.node_id:
            self._let_another_lead()
        else:
            log.info("node %d, which is drained, gives up its vote on the metadata", vote.old)
            await self._change_member(*vote)

    def _let_another_lead(self) -> None:
        """A leader does not take its own vote away; the next one does."""
        draining = self._replica.state.node_table.draining
        others = sorted(self._quorum.membership.voters - draining)
        alive = {node.node_id for node in self._alive(NodeRole.NAMESERVER)}
        heir = next((node_id for node_id in others if node_id in alive), 0)
        if heir:
            self._quorum.transfer_leadership(heir)
