"""How the metadata quorum stands: its leader says so, of itself and of the nodes that it hears; other nodes ask it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from mainstem.model import LogPosition, QuorumStanding
from mainstem.nameserver.cluster.heartbeats import Heartbeats
from mainstem.nameserver.cluster_ports import ClusterPorts
from mainstem.nameserver.errors import MetadataUnavailable
from mainstem.nameserver.quorum.metadata_quorum import MetadataQuorum
from mainstem.nameserver.state.replica import MetadataReplica
from mainstem.rpc.errors import RpcError
from mainstem.rpc.handlers import RpcCall
from mainstem.rpc.messages.metadata import QUORUM_POSITIONS, NotMetadataLeader, QuorumTold, ToldPosition
from mainstem.rpc.wire.method import Nothing, Reply

ASK_SECONDS_MAX = 1.0
"""After so long another node is asked."""
PAUSE_SECONDS = 0.1

NOT_KNOWN = -1


class QuorumPositions:
    def __init__(
        self,
        node_id: int,
        quorum: MetadataQuorum,
        replica: MetadataReplica,
        heartbeats: Heartbeats | None,
        ports: ClusterPorts | None,
        now_ms: Callable[[], int],
        monotonic: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        wait_seconds_max: float,
    ) -> None:
        """`heartbeats` and `ports` None: there are no other nodes."""
        self._node_id = node_id
        self._quorum = quorum
        self._replica = replica
        self._heartbeats = heartbeats
        self._ports = ports
        self._now_ms = now_ms
        self._monotonic = monotonic
        self._sleep = sleep
        self._wait_seconds_max = wait_seconds_max
        if ports is not None:
            ports.handlers.prompt(QUORUM_POSITIONS, self._answer)

    async def told(self) -> QuorumStanding:
        """As the leader tells. Raises `MetadataUnavailable`."""
        try:
            async with asyncio.timeout(self._wait_seconds_max):
                while True:
                    told = self._own() if self._quorum.serves else await self._ask()
                    if told is not None:
                        return told
                    if self._quorum.failure is not None:
                        raise MetadataUnavailable(f"the metadata failed: {self._quorum.failure}")
                    await self._sleep(PAUSE_SECONDS)
        except TimeoutError:
            raise MetadataUnavailable("the leader of the metadata quorum does not answer; try again") from None

    async def _ask(self) -> QuorumStanding | None:
        node_id = self._quorum.whom_to_ask()
        if self._ports is None or not node_id:
            return None
        try:
            reply = await self._ports.calls.call(node_id, QUORUM_POSITIONS, Nothing(), timeout_seconds=ASK_SECONDS_MAX)
        except RpcError:
            self._quorum.asked_in_vain()
            return None
        told = reply.message
        return QuorumStanding(
            told.leader, told.term, told.commit_index,
            tuple(LogPosition(it.node, it.last_index, it.heard_ms, it.caught_up_ms) for it in told.voters),
            tuple(LogPosition(it.node, it.last_index, it.heard_ms, it.caught_up_ms) for it in told.observers),
        )  # fmt: skip

    def _answer(self, call: RpcCall[Nothing]) -> Reply[QuorumTold]:
        """Raises `NotMetadataLeader`."""
        if not self._quorum.serves:
            raise NotMetadataLeader("this node does not lead the metadata quorum")
        own = self._own()
        return Reply(
            QuorumTold(
                own.leader, own.term, own.commit_index,
                [ToldPosition(*it) for it in own.voters], [ToldPosition(*it) for it in own.observers],
            )
        )  # fmt: skip

    def _own(self) -> QuorumStanding:
        """As this node, which leads, knows it."""
        quorum = self._quorum
        voters = quorum.membership.voters
        matched = {peer.node_id: peer.match_index for peer in quorum.peers()}
        others = self._replica.state.node_table.nodes.keys() - voters - {self._node_id}
        now_ms, now = self._now_ms(), self._monotonic()

        def position(node_id: int) -> LogPosition:
            if node_id == quorum.node_id:
                return LogPosition(self._node_id, quorum.last_index, now_ms, now_ms)
            heard = self._heartbeats.positions.of(node_id) if self._heartbeats is not None else None
            last = matched.get(node_id) or (heard.applied if heard is not None else NOT_KNOWN)
            if heard is None:
                return LogPosition(node_id, last, NOT_KNOWN, NOT_KNOWN)
            return LogPosition(node_id, last, wall_ms(heard.heard_at), wall_ms(heard.caught_up_at))

        def wall_ms(at: float | None) -> int:
            return NOT_KNOWN if at is None else now_ms - round((now - at) * 1000)

        return QuorumStanding(
            self._node_id, quorum.term, quorum.commit_index,
            tuple(map(position, sorted(voters))), tuple(map(position, sorted(others))),
        )  # fmt: skip
