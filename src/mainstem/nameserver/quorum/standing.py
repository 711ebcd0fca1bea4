"""A node that has heard of no leader for long asks the others whether it still is a member of the metadata
quorum.

A node that was replaced while it was away never hears of it: leaders send to members only, and its own log says that
it is one. It would wait for a leader for ever. It believes the others when a majority of the voters that they name
say the same, which only a committed membership can bring about. It deletes nothing: from then on it follows the
quorum as any other node does (`follow`), until a leader sends to it as to a member again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from mainstem.nameserver.cluster_ports import ClusterPorts
from mainstem.nameserver.quorum.metadata_quorum import MetadataQuorum
from mainstem.rpc.errors import RpcError
from mainstem.rpc.messages.metadata import INTRODUCE
from mainstem.rpc.wire.method import Nothing

QUIET_SECONDS = 3.0
"""A quorum that has a majority elects a leader in less."""
ANSWER_SECONDS_MAX = 1.0

Voters = frozenset[int]

log = logging.getLogger(__name__)


class Standing:
    """Asks, and has the member follow only; `run` is a task on every node that has peers."""

    def __init__(self, group: MetadataQuorum, ports: ClusterPorts) -> None:
        self._group = group
        self._ports = ports

    async def run(self) -> None:
        group = self._group
        while True:
            version = group.version
            if group.is_member and not group.leader_id:
                await self._ports.sleep(QUIET_SECONDS)
                if group.is_member and not group.leader_id and (voters := await self._voters_without_us()):
                    log.warning(
                        "this node was replaced in the metadata quorum while it was away: its voters are nodes %s",
                        ", ".join(map(str, sorted(voters))),
                    )
                    group.follow_only(voters)
            else:
                await group.changed_since(version)

    async def _voters_without_us(self) -> Voters:
        """The voters by their own word, if this node is none of them; empty: it is one, or too few could be
        asked."""
        own = self._group.node_id
        said = await self._ask(self._group.membership.voters - {own})
        named = {node_id for voters in said.values() for node_id in voters}
        said |= await self._ask(named - said.keys() - {own})
        for voters in set(said.values()):
            agreed = sum(said.get(node_id) == voters for node_id in voters)
            if own not in voters and agreed > len(voters) // 2:
                return voters
        return frozenset()

    async def _ask(self, node_ids: Iterable[int]) -> dict[int, Voters]:
        """The voters, as each node that answers names them."""
        asked = sorted(node_ids)
        answers = await asyncio.gather(*map(self._voters_by, asked))
        return {node_id: voters for node_id, voters in zip(asked, answers, strict=True) if voters}

    async def _voters_by(self, node_id: int) -> Voters:
        try:
            reply = await self._ports.calls.call(node_id, INTRODUCE, Nothing(), timeout_seconds=ANSWER_SECONDS_MAX)
        except RpcError as error:
            log.debug("node %d does not say who votes: %s", node_id, error)
            return frozenset()
        return frozenset(reply.message.voters)
