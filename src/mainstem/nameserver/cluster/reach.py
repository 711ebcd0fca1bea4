"""Nodes tell the leader which nodes they reach: two nodes that cannot hear each other may both be heard by a
third.

The metadata leader asks other nodes about those that are silent to it. A node that another one reaches is not dead:
it may lead write groups with a majority, and clients may reach it, too. A voter that reaches every node the leader
reaches, and more, is the better leader of the metadata: the leader hands over to it, so that no node is left without
news. A voter that reaches no more nodes would only be out of reach for others instead, so the leadership stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from mainstem.rpc.errors import RpcError
from mainstem.rpc.handlers import RpcCall
from mainstem.rpc.messages.metadata import INTRODUCE, REACH, REACHED_MAX, Reach, Reached
from mainstem.rpc.other_nodes import Calls
from mainstem.rpc.wire.method import Nothing, Reply

PROBE_SECONDS_MAX = 1.0
"""For the answer of a node that is called; twice that for the answer of a node that calls others first."""

HELPERS_MAX = 3
"""Nodes asked at a time: each of them calls all nodes it is asked about."""


class Reacher:
    """Finds out which nodes this one reaches, and which nodes the others reach."""

    def __init__(self, node_id: int, calls: Calls) -> None:
        self._node_id = node_id
        self._calls = calls

    async def answer(self, call: RpcCall[Reach]) -> Reply[Reached]:
        """Answer another node's question."""
        asked = list(dict.fromkeys(call.request.nodes))
        tried = await asyncio.gather(*(self._reaches(node_id) for node_id in asked))
        return Reply(Reached([node_id for node_id, there in zip(asked, tried, strict=True) if there]))

    async def _reaches(self, node_id: int) -> bool:
        if node_id == self._node_id:
            return True
        try:
            await self._calls.call(node_id, INTRODUCE, Nothing(), timeout_seconds=PROBE_SECONDS_MAX)
        except RpcError:
            return False
        return True

    async def ask(self, helpers: Sequence[int], about: Collection[int]) -> dict[int, frozenset[int]]:
        """The nodes of `about` that each helper reaches: none if the helper does not answer, or its version
        does not know the question."""
        wanted = sorted(about)[:REACHED_MAX]
        answers = await asyncio.gather(*(self._asked(helper, wanted) for helper in helpers))
        return dict(zip(helpers, answers, strict=True))

    async def _asked(self, helper: int, wanted: list[int]) -> frozenset[int]:
        try:
            reply = await self._calls.call(helper, REACH, Reach(wanted), timeout_seconds=2 * PROBE_SECONDS_MAX)
        except RpcError:
            return frozenset()
        return frozenset(reply.message.nodes) & frozenset(wanted)


def helpers_among(heard: Collection[int], voters: Collection[int]) -> list[int]:
    """The nodes to ask: of those that are heard, voters first, since one of them may lead."""
    return sorted(heard, key=lambda node_id: (node_id not in voters, node_id))[:HELPERS_MAX]


def better_connected(
    heard: Collection[int], silent: Collection[int], reached: Mapping[int, Collection[int]], voters: Collection[int]
) -> int:
    """The voter that reaches all other nodes that are `heard`, and the most of those that are `silent` to the
    leader, at least one; 0: there is none."""
    best, most = 0, 0
    for node_id, nodes in sorted(reached.items()):
        more = len(set(silent) & set(nodes))
        if node_id in voters and set(heard) - {node_id} <= set(nodes) and more > most:
            best, most = node_id, more
    return best
