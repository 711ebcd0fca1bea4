"""A node makes requested changes itself while it leads, and else asks the leader, until their outcome is
known.

A request keeps its id through all attempts, so that a lost answer costs time only: the leader knows which requests
were carried out, and this node learns the outcome when it applies the change itself, before it tells the caller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from mainstem.acted_for import acted_for
from mainstem.model import ForwardedClient, slot_of
from mainstem.nameserver.cluster_ports import ClusterPorts
from mainstem.nameserver.errors import MetadataUnavailable, NameserverError, kind_of, refusal_of
from mainstem.nameserver.quorum.metadata_quorum import MetadataQuorum
from mainstem.nameserver.quorum.proposer import Make, NotLeading, Proposer, Unsettled
from mainstem.nameserver.recent_moves import RecentMoves
from mainstem.nameserver.state.changes import Ids, Made, make_commands
from mainstem.nameserver.state.commands import Refusal
from mainstem.nameserver.state.replica import ChangeOutcome, MetadataReplica, refused
from mainstem.ports import ForwardedClients, UnknownClients
from mainstem.rpc.errors import RpcError
from mainstem.rpc.handlers import RpcCall
from mainstem.rpc.messages.forwarded import client_of, client_told
from mainstem.rpc.messages.loads import ToldMove, ToldSlotMove
from mainstem.rpc.messages.metadata import (
    CHANGE,
    ChangeReply,
    ChangeRequest,
    ItemRefused,
    NotAvailable,
    NotMetadataLeader,
    Wanted,
    WantMove,
    WantPreference,
    WantSlotKept,
    WantSlotMove,
)
from mainstem.rpc.wire.method import Reply

ATTEMPT_SECONDS_MAX = 3.0
"""A leader that has not answered by then may be gone; the request is sent again, to the leader of that
moment."""
PAUSE_SECONDS = 0.05
WHOLE_REQUEST = -1
"""The item number of a refusal that stands for all items of a request."""

log = logging.getLogger(__name__)


class Requests:
    def __init__(
        self,
        group: MetadataQuorum,
        proposer: Proposer,
        replica: MetadataReplica,
        ids: Ids,
        ports: ClusterPorts | None,
        wait_seconds_max: float,
        replicas: int,
        check: Callable[[Wanted], None],
        moves: RecentMoves,
    ) -> None:
        """`replicas`: how many each write group gets; `check` refuses what only the leader can judge; `moves` remembers
        the moves that this node begins."""
        self._moves = moves
        self._group = group
        self._proposer = proposer
        self._replica = replica
        self._ids = ids
        self._ports = ports
        self._wait_seconds_max = wait_seconds_max
        self._replicas = replicas
        self._check = check
        self.clients: ForwardedClients = UnknownClients()
        """Judges clients of the nodes that ask this one as the leader, and is told of their changes."""

    async def change(self, wanted: Wanted) -> ChangeOutcome:
        """Have the change made. Raises `MetadataUnavailable` when there was no leader, or no answer, for too
        long: the change may still be made later."""
        if self._ports is None:
            try:
                return await self._proposer.propose(self.maker(wanted), b"")
            except (NotLeading, Unsettled) as error:
                why = self._group.failure or error
                raise MetadataUnavailable(f"the metadata takes no more changes: {why}") from error
        request = self._ids.request()
        applied = self._replica.expect_request(request)
        reason = "no leader of the metadata quorum is known"
        try:
            async with asyncio.timeout(self._wait_seconds_max):
                while True:
                    try:
                        return await self._attempt(request, wanted, applied, self._ports)
                    except (NotLeading, Unsettled, RpcError) as error:
                        reason = str(error)
                    if applied.done():
                        return applied.result()
                    if self._group.failure is not None:
                        raise MetadataUnavailable(f"the metadata takes no more changes: {self._group.failure}")
                    await self._ports.sleep(PAUSE_SECONDS)
        except TimeoutError:
            raise MetadataUnavailable(
                f"no majority of the metadata quorum answered within {self._wait_seconds_max:g} s ({reason}); try again"
            ) from None
        finally:
            applied.cancel()
            self._replica.forget_request(request)

    async def _attempt(
        self, request: bytes, wanted: Wanted, applied: asyncio.Future[ChangeOutcome], ports: ClusterPorts
    ) -> ChangeOutcome:
        if applied.done():  # applied during the pause; the future says more than what is remembered
            return applied.result()
        if self._group.serves:
            return await self._proposer.propose(self.maker(wanted), request)
        leader = self._group.whom_to_ask()
        if leader == 0:
            raise NotLeading("no leader of the metadata quorum is known")
        client = client_told(acted_for())
        try:
            reply = await ports.calls.call(
                leader, CHANGE, ChangeRequest(request, wanted, client), timeout_seconds=ATTEMPT_SECONDS_MAX
            )
        except RpcError:
            self._group.asked_in_vain()
            raise
        if reply.message.index:
            return await asyncio.shield(applied)
        return _all_refused(reply.message)

    def maker(self, wanted: Wanted) -> Make:
        """The function with which the leader turns `wanted` into commands, against the state of that
        moment."""

        async def make() -> Made:
            self._check(wanted)
            made = await make_commands(wanted, self._replica.state, self._ids, self._replicas)
            move = self._move(wanted) if made.commands else None
            return made if move is None else made._replace(logged=partial(self._moves.note, move))

        return make

    def _move(self, wanted: Wanted) -> ToldMove | ToldSlotMove | None:
        """The move that this change begins, or takes back, and why. None: it does neither, or nobody says why a move is
        taken back."""
        state = self._replica.state
        match wanted:
            case WantMove(group=group, old=old, new=new, why=why):
                return ToldMove(group, old, new, False, why)
            case WantPreference(group=group, node_id=new, why=why):
                return ToldMove(group, state.placements[group][0], new, True, why)
            case WantSlotMove(name=name, partition=partition, group=new, why=why):
                queue_id = state.topic_table.by_name[name].queue_id(partition)
                return ToldSlotMove(
                    slot=slot_of(queue_id), topic=name, partition=partition, old=state.write_group(queue_id), new=new,
                    why=why,
                )  # fmt: skip
            case WantSlotKept(move=ToldSlotMove() as move):
                return move
        return None

    async def refusal(self, wanted: Wanted) -> str:
        """Why the change would be refused now, as far as this node knows; empty: it would be made."""
        made = await make_commands(wanted, self._replica.state, self._ids, self._replicas)
        return made.refusals[0].message if made.refusals else ""

    async def answer(self, call: RpcCall[ChangeRequest]) -> Reply[ChangeReply]:
        """Answer as the leader. Raises `NotMetadataLeader`, `NotAvailable`."""
        client = client_of(call.request.client)
        if client is not None and (refusal := self.clients.refusal(client)) is not None:
            self._tell(client, call, refusal)
            return Reply(ChangeReply(0, [ItemRefused(WHOLE_REQUEST, MetadataUnavailable.__name__, refusal)]))
        reply = await self._made_for(call)
        if client is not None:
            first = reply.message.refusals[0].message if reply.message.refusals else None
            self._tell(client, call, first)
        return reply

    def _tell(self, client: ForwardedClient, call: RpcCall[ChangeRequest], refusal: str | None) -> None:
        assert call.node is not None, "the method is for nodes only"
        what = type(call.request.wanted).__name__.removeprefix("Want")
        self.clients.changed(client, call.node.node_id, what, refusal)

    async def _made_for(self, call: RpcCall[ChangeRequest]) -> Reply[ChangeReply]:
        """Raises `NotMetadataLeader`, `NotAvailable`."""
        try:
            outcome = await self._proposer.propose(self.maker(call.request.wanted), call.request.request)
        except NotLeading as error:
            raise NotMetadataLeader(str(error)) from error
        except (Unsettled, MetadataUnavailable) as error:
            raise NotAvailable(str(error)) from error
        except NameserverError as error:
            return Reply(ChangeReply(0, [ItemRefused(WHOLE_REQUEST, kind_of(error), str(error))]))
        refusals = [
            ItemRefused(item, kind_of(outcome), str(outcome))
            for item, outcome in enumerate(outcome.items)
            if isinstance(outcome, NameserverError)
        ]
        return Reply(ChangeReply(outcome.index, refusals))


def _all_refused(reply: ChangeReply) -> ChangeOutcome:
    for refusal in reply.refusals:
        if refusal.item == WHOLE_REQUEST:
            raise refusal_of(refusal.kind, refusal.message)
    return refused([Refusal(it.item, it.kind, it.message) for it in reply.refusals])
