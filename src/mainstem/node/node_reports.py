"""Reports that nodes send each other: for `mainstem cluster status`, and to move leaderships."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from mainstem.model import OWN_LEVELS
from mainstem.nameserver.cluster.balance_planner import ToldFacts
from mainstem.nameserver.state.plans.drain_plan import GroupStanding
from mainstem.node.storage_role.store_directory import StoreUnsupported
from mainstem.raft import RaftError
from mainstem.rpc.errors import RpcError
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.messages.cluster import (
    REPORT,
    TRANSFER_LEADER,
    WRITE_GROUP_BYTES,
    LedWriteGroup,
    MembersOf,
    MemberState,
    NodeReport,
    TransferLeader,
    TransferRefused,
    WriteGroupBytes,
    WriteGroupsNotLed,
)
from mainstem.rpc.messages.loads import ToldBalancer, ToldLoads, ToldMove, ToldSlotMove
from mainstem.rpc.other_nodes import SingleCalls
from mainstem.rpc.wire.method import Nothing, Reply
from mainstem.storage.cluster.leader_balance import is_close_behind
from mainstem.storage.errors import NotTheLeader
from mainstem.storage.role import Storage
from mainstem.storage.write_groups.write_group import WriteGroup

REPORT_SECONDS_MAX = 1.0
"""A node that has not answered by then is shown without its report."""
TRANSFER_SECONDS_MAX = 5.0

OF_ITS_OWN = "a directory of its own"


class NodeReports:
    """Makes this node's report, and asks for the others'; `calls` is None where there are no others."""

    def __init__(self, node_id: int, storage: Storage | None, calls: SingleCalls | None, store: str = "") -> None:
        """`store`: `NodeConfig.store_told`; without storage it says nothing."""
        self._store = store
        self._node_id = node_id
        self._storage = storage
        self._calls = calls
        self._started_at = time.monotonic()
        self.http = ""
        """The address at which the node answers HTTP; known once it does."""
        self.loads: Callable[[], ToldLoads | None] = lambda: None
        """The loads of all nodes, which the metadata leader knows."""
        self.moves: Callable[[], list[ToldMove]] = list
        """The moves that this node remembers to have begun."""
        self.slot_moves: Callable[[], list[ToldSlotMove]] = list
        """The same of slots, which move between write groups."""
        self.balancer: Callable[[], ToldBalancer | None] = lambda: None
        """The balancer's state; None: this node does not lead the metadata, or its balancer is off."""
        self.guests: Callable[[], Mapping[int, Collection[int]]] = dict
        """As `nameserver.lookups.guests`."""

    def register(self, handlers: Handlers) -> None:
        async def report(call: RpcCall[Nothing]) -> Reply[NodeReport]:
            return Reply(self.own())

        async def replica_bytes(call: RpcCall[MembersOf]) -> Reply[WriteGroupBytes]:
            return Reply(WriteGroupBytes(self._replica_bytes(call.request.group)))

        async def transfer(call: RpcCall[TransferLeader]) -> Reply[Nothing]:
            self._transfer_here(call.request)
            return Reply(Nothing())

        handlers.unary(REPORT, report)
        handlers.unary(WRITE_GROUP_BYTES, replica_bytes)
        handlers.unary(TRANSFER_LEADER, transfer)

    def own(self) -> NodeReport:
        uptime_seconds = time.monotonic() - self._started_at
        if self._storage is None:
            return NodeReport(
                self.http, uptime_seconds, [], *OWN_LEVELS,
                loads=self.loads(), moves=self.moves(), slot_moves=self.slot_moves(), balancer=self.balancer(),
            )  # fmt: skip
        led = []
        for group in self._storage.groups:
            if not group.consensus.leads:
                continue
            members = self._members(group)
            led.append(
                LedWriteGroup(group.group, group.term, group.serving, group.last_index, group.applied_index, members)
            )
        waiting = list(self._storage.rejoining.not_back())
        why = self._storage.rejoining.why if waiting else ""
        unread = self._storage.waiting.reasons()
        return NodeReport(
            self.http, uptime_seconds, led, *OWN_LEVELS, waiting, why, unread, self._store,
            self.loads(), self.moves(), self.slot_moves(), self.balancer(),
        )  # fmt: skip

    async def check_stores(self, node_ids: list[int]) -> None:
        """Raises `StoreUnsupported` where another of these nodes, all of which have storage, has another shared store,
        as far as it answers, or where one has a shared store and the other has not: each would take for split what the
        other cannot read."""
        for node_id, report in (await self.of(node_ids)).items():
            if report is not None and report.store != self._store:
                raise StoreUnsupported(
                    f"node {node_id} keeps its queue store in {report.store or OF_ITS_OWN}, this node in "
                    f"{self._store or OF_ITS_OWN}. All nodes of a cluster have the same shared store, or none has one: "
                    "correct store_dir of one of them"
                )

    def _members(self, group: WriteGroup) -> list[MemberState]:
        """The members of a write group that this node leads, ascending. Votes are those of the committed membership,
        and its learners stay listed: a change that is not committed dies with the leader, and an operator must not
        count on it."""
        committed, peers = group.consensus.committed_membership, group.consensus.peers()
        voters = committed.voters
        members = [MemberState(peer.node_id, peer.match_index, peer.active, peer.node_id in voters) for peer in peers]
        members.append(MemberState(self._node_id, group.last_index, True, self._node_id in voters))
        going = committed.members - {member.node for member in members}  # the leader sends these nothing any more
        members += [MemberState(node_id, 0, False, node_id in voters) for node_id in going]
        return sorted(members, key=lambda member: member.node)

    async def of(self, node_ids: list[int]) -> dict[int, NodeReport | None]:
        """The reports of these nodes; None: the node did not answer in time."""
        reports = await asyncio.gather(*map(self._report, node_ids))
        return dict(zip(node_ids, reports, strict=True))

    async def standings(self, node_ids: list[int]) -> dict[int, GroupStanding]:
        """The members of the write groups whose leaders are among these nodes and answer."""
        return standings_of(led_groups((await self.of(node_ids)).values()), self.guests())

    async def facts(self, node_ids: list[int]) -> ToldFacts:
        """The facts that plans of a balance go by, as far as these nodes answer."""
        reports = (await self.of(node_ids)).values()
        return ToldFacts(
            standings_of(led_groups(reports), self.guests()),
            loads_among(reports),
            moves_among(reports),
            slot_moves_among(reports),
        )

    async def _report(self, node_id: int) -> NodeReport | None:
        if node_id == self._node_id or self._calls is None:
            return self.own()
        try:
            reply = await self._calls.call(node_id, REPORT, Nothing(), timeout_seconds=REPORT_SECONDS_MAX)
        except RpcError:
            return None
        return reply.message

    async def bytes_of(self, replicas: Iterable[tuple[int, int]]) -> dict[tuple[int, int], int]:
        """The bytes that are copied for each of these replicas (write group, node), as their nodes tell; those of nodes
        that do not answer in time, or do not know the question, are left out."""
        asked = list(replicas)
        found = await asyncio.gather(*(self._bytes_of(group, node_id) for group, node_id in asked))
        return {replica: count for replica, count in zip(asked, found, strict=True) if count is not None}

    async def _bytes_of(self, group: int, node_id: int) -> int | None:
        try:
            if node_id == self._node_id or self._calls is None:
                return self._replica_bytes(group)
            reply = await self._calls.call(
                node_id, WRITE_GROUP_BYTES, MembersOf(group), timeout_seconds=REPORT_SECONDS_MAX
            )
        except RpcError:
            return None
        return reply.message.bytes

    def _replica_bytes(self, group: int) -> int:
        """Raises `WriteGroupsNotLed`."""
        if self._storage is None or not 0 <= group < len(self._storage.groups):
            raise WriteGroupsNotLed(f"node {self._node_id} has no write group {group}")
        return self._storage.replica_bytes(group)

    async def transfer_leader(
        self, group: int, to: int, leader_of: Callable[[int], int], groups: int, *, close_behind: bool = False
    ) -> None:
        """Have node `to` lead a write group, of so many that there are; with `close_behind` only if it lacks but the
        newest blocks. Raises `TransferRefused`, `WriteGroupsNotLed`, `RpcError`."""
        if not 0 <= group < groups:
            raise TransferRefused(f"there is no write group {group}; they are 0 to {groups - 1}")
        leader = leader_of(group)
        if leader == -1:
            raise WriteGroupsNotLed(f"write group {group} has no leader now")
        if leader == to:
            return
        request = TransferLeader(group, to, close_behind)
        if leader == self._node_id or self._calls is None:
            self._transfer_here(request)
        else:
            await self._calls.call(leader, TRANSFER_LEADER, request, timeout_seconds=TRANSFER_SECONDS_MAX)

    def _transfer_here(self, request: TransferLeader) -> None:
        group, to = request.group, request.to
        if self._storage is None or not 0 <= group < len(self._storage.groups):
            raise WriteGroupsNotLed(f"node {self._node_id} has no write group {group}")
        led = self._storage.groups[group]
        if request.close_behind and led.consensus.leads and not is_close_behind(led, to):
            raise TransferRefused(f"write group {group} cannot be led by node {to}: it is silent, or lacks many blocks")
        try:
            led.transfer_leadership(to, self._storage.setup.clock.now_ms())
        except NotTheLeader as error:
            raise WriteGroupsNotLed(str(error)) from error
        except RaftError as error:
            raise TransferRefused(f"write group {group} cannot be led by node {to}: {error}") from error


def led_groups(reports: Iterable[NodeReport | None]) -> dict[int, LedWriteGroup]:
    """Per write group what its leader reports; of two that lead it, the one of the newer term."""
    led: dict[int, LedWriteGroup] = {}
    for report in reports:
        for group in report.led if report is not None else ():
            if group.group not in led or led[group.group].term < group.term:
                led[group.group] = group
    return led


def standings_of(led: Mapping[int, LedWriteGroup], guests: Mapping[int, Collection[int]]) -> dict[int, GroupStanding]:
    """`guests`: per write group the nodes that learn and get no vote; no move of a replica has to do with them."""
    return {
        number: GroupStanding(
            voters=frozenset(it.node for it in group.members if it.voter),
            members=frozenset(it.node for it in group.members if it.voter or it.node not in guests.get(number, ())),
            active=frozenset(it.node for it in group.members if it.active),
        )
        for number, group in led.items()
    }


def loads_among(reports: Iterable[NodeReport | None]) -> ToldLoads:
    """The loads that the metadata leader knows, if it is among those that report: those of most nodes, as a leader of
    an earlier term may not know yet that it is none any more. Empty: nobody tells any."""
    told = [report.loads for report in reports if report is not None and report.loads is not None]
    return max(told, key=lambda it: len(it.nodes), default=ToldLoads([], []))


def moves_among(reports: Iterable[NodeReport | None]) -> list[ToldMove]:
    """The moves that these nodes remember to have begun, the newest first."""
    told = [move for report in reports if report is not None for move in report.moves]
    return sorted(told, key=lambda it: it.age_seconds)


def slot_moves_among(reports: Iterable[NodeReport | None]) -> list[ToldSlotMove]:
    """The same of slots that were to move between write groups."""
    told = [move for report in reports if report is not None for move in report.slot_moves]
    return sorted(told, key=lambda it: it.age_seconds)
