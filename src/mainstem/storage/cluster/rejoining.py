"""Brings back replicas of this node that have forgotten votes or blocks.

A node that runs on an older copy of its directories has forgotten votes and blocks it acknowledged; one that lost its
power under `async` durability may lack the end of its logs; and one to which a replica returns that was moved away has
removed what it acknowledged before, while members that were away meanwhile still count on it. If it were an ordinary
voter, it could help to elect a leader, or to commit, without blocks that a majority had acknowledged. So its replica

    is silent    it takes and sends no messages, while it looks for the write group's leader: among the members that it
                 remembers, and, as an older copy remembers those of then, those of today
    abstains     a leader has logged a block since then, and a majority without this node has it; a node with that block
                 has everything this node ever acknowledged, and no candidate that it voted for before can win any more.
                 The replica follows as any other, acknowledges what it really has, and neither votes nor stands
    is back      it has that block

If so many nodes have lost their power that the others make no majority, no node knows more. Then the longest log that a
majority has decides: its node stands first, the others wait for it. (Votes are always synced, and not lost.) A node
that takes part again by that agreement still counts among those that lost blocks until there is a leader: otherwise the
others would wait for a leader elected by members that are not there. So does one that abstains and has heard no leader
for as long as others are waited for; and it takes part in the decision, as it would after a start, if it knows its
votes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from mainstem.raft import HardState
from mainstem.rpc.errors import RpcError
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.messages.starts import (
    MEMBER_FORGOT,
    MEMBER_LOG,
    AskMember,
    CannotTell,
    MemberForgot,
    MemberLog,
    Remembered,
)
from mainstem.rpc.other_nodes import Calls
from mainstem.rpc.wire.method import Reply
from mainstem.storage.cluster.write_group_replication import Forgotten, WriteGroupReplication
from mainstem.storage.errors import StorageError
from mainstem.storage.write_groups.hard_states import HardStates
from mainstem.storage.write_groups.write_group import WriteGroup

ROUND_SECONDS = 0.2
COME_BACK_SECONDS_MAX = 3.0
"""The leader commits a block before it answers."""
ASK_SECONDS_MAX = 1.0
MISSED_SECONDS_MAX = 10.0
"""How long nodes that lost their power wait for members that do not answer: one of these may have the longest log; or
for the leader of one that abstains, which may come back."""
TELL_SECONDS = 30.0
"""Seconds between two log lines about a replica that is not back."""

log = logging.getLogger(__name__)


class Rejoining:
    """Brings this node's replicas back, and answers other nodes that have forgotten votes or blocks."""

    def __init__(
        self,
        node_id: int,
        groups: Sequence[WriteGroup],
        replication: WriteGroupReplication,
        hard_states: HardStates,
        calls: Calls | None,
        forgotten: Forgotten | None,
        placements: Callable[[], Mapping[int, Sequence[int]]],
        leader_heard: Callable[[int], int],
        wake: Callable[[], None],
    ) -> None:
        self._node_id = node_id
        self._groups = groups
        self._replication = replication
        self._hard_states = hard_states
        self._calls = calls
        self._forgotten = forgotten
        self._placements = placements
        self._leader_heard = leader_heard
        self._wake = wake
        self._agreed: set[int] = set()
        """Write groups that this node takes part in again by agreement, before it heard a leader."""
        self._leaderless: dict[int, int] = {}
        """Write groups in which this node abstains and hears no leader, with the rounds for which that is so."""

    def register(self, handlers: Handlers) -> None:
        handlers.unary(MEMBER_FORGOT, self._member_forgot)
        handlers.unary(MEMBER_LOG, self._member_log)

    def not_back(self) -> dict[int, str]:
        """Write groups whose replica here has forgotten votes or blocks and is not back, each with its state; not those
        that are new here, or returned."""
        lost = self._forgotten.has_lost if self._forgotten is not None else lambda _number: False
        return {number: state for number, state in self._awaited().items() if lost(number)}

    def _awaited(self) -> dict[int, str]:
        states = dict.fromkeys(self._replication.silent, "silent until a leader is found")
        for group in self._groups:
            core = group.consensus.core
            if core is not None and (core.abstains or self._hard_states.returned(group.group)):
                states[group.group] = "catching up"
        return dict(sorted(states.items()))

    @property
    def why(self) -> str:
        return self._forgotten.why if self._forgotten is not None else ""

    async def run(self) -> None:
        """Bring replicas back until cancelled; a node alone has none to bring back. Raises `StorageError`."""
        while self._calls is not None:
            await self._bring_back()
            await self._replication.silenced.wait()
            self._replication.silenced.clear()

    async def _bring_back(self) -> None:
        rounds = 0
        while self.why or self._awaited():
            if rounds % round(TELL_SECONDS / ROUND_SECONDS) == 0 and (waiting := self.not_back()):
                log.warning(
                    "this node forgot votes or blocks (%s): its replicas of write groups %s do not vote or count "
                    "until they have caught up with their leaders",
                    self.why,
                    ", ".join(map(str, waiting)),
                )
            silent = sorted(self._replication.silent)
            await asyncio.gather(*(self._come_back(self._groups[number], rounds) for number in silent))
            await self._note_those_back()
            abandoned = sorted(filter(self._is_abandoned, self._leaderless))
            await asyncio.gather(*(self._agree_with_others_that_lost(self._groups[it], rounds) for it in abandoned))
            rounds += 1
            await asyncio.sleep(ROUND_SECONDS)

    async def _note_those_back(self) -> None:
        forgotten = self._forgotten
        for group in self._groups:
            core = group.consensus.core
            if core is not None and core.abstains and not core.leader_id:
                self._leaderless[group.group] = self._leaderless.get(group.group, 0) + 1
            else:
                self._leaderless.pop(group.group, None)
            if core is not None and not core.abstains and self._hard_states.returned(group.group):
                await self._replication.caught_up(group.group)
            if core is not None and core.leader_id:
                self._agreed.discard(group.group)
            if group.group in self._agreed:
                continue  # a start before there is a leader agrees anew
            if core is not None and not core.abstains and forgotten is not None and forgotten.has_lost(group.group):
                log.info("write group %d has got back what this node had forgotten", group.group)
                await forgotten.got_back(group.group)
        if forgotten is None or not forgotten.why:
            return
        placed = {number for number, nodes in self._placements().items() if self._node_id in nodes}
        if placed and not any(map(forgotten.has_lost, placed)) and not self.not_back():
            await forgotten.all_got_back()

    # --- of this node's replicas --------------------------------------------------------------------------

    async def _come_back(self, group: WriteGroup, rounds: int) -> None:
        assert self._calls is not None, "running"
        for node_id in self._may_lead(group.group):
            try:
                reply = await self._calls.call(
                    node_id, MEMBER_FORGOT, MemberForgot(group.group), timeout_seconds=COME_BACK_SECONDS_MAX
                )
            except RpcError as error:
                log.debug("write group %d: node %d does not help: %s", group.group, node_id, error)
                continue
            term, index = reply.message.term, reply.message.index
            before = self._hard_states.of(group.group)
            known = HardState(term, node_id)  # this node's vote of that term is known: its leader has it
            keeps = before.term > term or (before.term == term and before.vote)
            await self._replication.rejoin(group.group, before if keeps else known, abstains_to=index)
            log.info(
                "write group %d: follows node %d again, and votes when it has block %d",
                group.group, node_id, index,
            )  # fmt: skip
            return
        await self._agree_with_others_that_lost(group, rounds)

    def _may_lead(self, number: int) -> list[int]:
        """The other nodes of which one may lead the write group, the likeliest first. Any node may be asked: only a
        leader answers, once a majority of the members of today has confirmed it."""
        remembered = self._replication.silent[number].voters
        likely = [self._leader_heard(number), *sorted(remembered), *self._placements().get(number, ())]
        return [node_id for node_id in dict.fromkeys(likely) if node_id not in (self._node_id, -1)]

    def _is_abandoned(self, number: int) -> bool:
        """Whether this node abstains in a write group, and has heard no leader for long."""
        return self._leaderless.get(number, 0) * ROUND_SECONDS >= MISSED_SECONDS_MAX

    def _needs_leader(self, number: int) -> bool:
        """Whether a leader alone can help the replica here: this node has forgotten its votes, or the replica returned
        with an empty log, which agrees with nobody's."""
        return self._forgotten is None or not self._forgotten.lost_power or self._hard_states.returned(number)

    async def _agree_with_others_that_lost(self, group: WriteGroup, rounds: int) -> None:
        number, core = group.group, group.consensus.core
        if self._needs_leader(number):
            return
        membership = self._replication.silent[number] if core is None else core.membership
        answers = await asyncio.gather(
            *(self._log_of(node_id, number) for node_id in sorted(membership.voters - {self._node_id}))
        )
        logs = {node_id: found for node_id, found in answers if found is not None}
        logs[self._node_id] = self._own_log(group)
        lost = sum(found.lost_power or found.agreed for found in logs.values())
        if any(found.led for found in logs.values()) or len(membership.voters) - lost >= membership.quorum:
            return  # members that have lost nothing lead, or will
        missing = len(logs) < len(membership.voters)
        if len(logs) < membership.quorum or (missing and rounds * ROUND_SECONDS < MISSED_SECONDS_MAX):
            return
        longest = max(logs, key=lambda node_id: _place(logs[node_id], node_id))
        if longest != self._node_id and logs[longest].lost_power:
            return  # it stands first
        if group.consensus.core is not core:
            return  # this node's part has ended meanwhile
        self._agreed.add(number)
        waits = longest != self._node_id
        if core is None:
            await self._replication.rejoin(number, self._hard_states.of(number), abstains_to=0, waits_for_leader=waits)
        else:
            group.consensus.abstain_no_more(waits_for_leader=waits)
        if longest == self._node_id:
            log.warning(
                "write group %d: of the nodes that may have lost the ends of their logs this one has the longest log, "
                "up to block %d, and stands for election. Under durability = async, what was acknowledged within the "
                "last journal.flush_interval_seconds before that, and is behind it, is lost",
                number,
                group.last_index,
            )

    async def _log_of(self, node_id: int, number: int) -> tuple[int, MemberLog | None]:
        assert self._calls is not None, "running"
        try:
            reply = await self._calls.call(node_id, MEMBER_LOG, AskMember(number), timeout_seconds=ASK_SECONDS_MAX)
        except RpcError:
            return node_id, None
        return node_id, reply.message

    def _own_log(self, group: WriteGroup) -> MemberLog:
        last, core = group.last_index, group.consensus.core
        silent = group.group in self._replication.silent
        return MemberLog(
            group.blocks.term(last),
            last,
            silent,
            core is not None and bool(core.leader_id),
            group.group in self._agreed or self._is_abandoned(group.group),
            (silent or (core is not None and core.abstains)) and self._needs_leader(group.group),
        )

    # --- of others' ---------------------------------------------------------------------------------------

    async def _member_forgot(self, call: RpcCall[MemberForgot]) -> Reply[Remembered]:
        """Log a block that the caller cannot have acknowledged, and answer when a majority has it."""
        assert call.node is not None, "the method is for nodes only"
        group = self._group(call.request.group)
        core = group.consensus.core
        if core is None or not group.serving:
            raise CannotTell(str(group.consensus.not_the_leader()))
        core.member_forgot(call.node.node_id)
        committed = group.propose([])
        self._wake()
        try:
            await committed
        except StorageError as error:
            raise CannotTell(str(error)) from error
        if group.consensus.core is not core or not group.serving:
            raise CannotTell(str(group.consensus.not_the_leader()))
        return Reply(Remembered(core.term, group.applied_index))

    async def _member_log(self, call: RpcCall[AskMember]) -> Reply[MemberLog]:
        return Reply(self._own_log(self._group(call.request.group)))

    def _group(self, number: int) -> WriteGroup:
        if number >= len(self._groups):
            raise CannotTell(f"node {self._node_id} has no write group {number}")
        return self._groups[number]


def _place(log: MemberLog, node_id: int) -> tuple[int, int, bool, int]:
    """By this the longest log is found; of those that end alike, one whose node may stand."""
    return log.last_term, log.last_index, not log.needs_leader, -node_id
