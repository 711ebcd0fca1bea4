"""Whom the others reach: two nodes that cannot hear each other may both be heard by a third one.

The metadata leader asks others about the nodes that are silent to it. What somebody reaches is not dead: it may lead
write groups with a majority, and clients may reach it, too. And who reaches all that the leader does, and more, is the
better leader of the metadata: it gets the leadership, so that no node is left without news. A node with no more than
that would only be another one that some cannot hear, so it stays then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from mainstem.nameserver.cluster_ports import Calls
from mainstem.rpc.errors import RpcError
from mainstem.rpc.handlers import Call
from mainstem.rpc.metadata import INTRODUCE, REACH, REACHED_MAX, Reach, Reached
from mainstem.rpc.method import Nothing, Reply

PROBE_SECONDS_MAX = 1.0
"""For an answer of a node that is called; twice that for the answer of a node that calls others."""

HELPERS_MAX = 3
"""Nodes that are asked: each of them calls all that it is asked about."""


class Reacher:
    """Of one node: finds out whom it reaches, and whom others do."""

    def __init__(self, node_id: int, calls: Calls) -> None:
        self._node_id = node_id
        self._calls = calls

    async def answer(self, call: Call[Reach]) -> Reply[Reached]:
        """Another node asks."""
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
        """Which of these nodes each helper reaches: none if it does not answer, or knows no such question."""
        wanted = sorted(about)[:REACHED_MAX]
        answers = await asyncio.gather(*(self._asked(helper, wanted) for helper in helpers))
        return dict(zip(helpers, answers, strict=True))

    async def _asked(self, helper: int, wanted: list[int]) -> frozenset[int]:
        try:
            reply = await self._calls.call(
                helper, REACH, Reach(wanted), timeout_seconds=2 * PROBE_SECONDS_MAX
            )
        except RpcError:
            return frozenset()
        return frozenset(reply.message.nodes) & frozenset(wanted)


def helpers_among(heard: Collection[int], voters: Collection[int]) -> list[int]:
    """Whom to ask: of those that are heard, voters first, since one of them may lead."""
    return sorted(heard, key=lambda node_id: (node_id not in voters, node_id))[:HELPERS_MAX]


def better_connected(
    heard: Collection[int], silent: Collection[int], reached: Mapping[int, Collection[int]], voters: Collection[int]
) -> int:
    """The voter that reaches all others that are `heard`, and the most of those that are `silent` to the leader, at
    least one; 0: there is none."""
    best, most = 0, 0
    for node_id, nodes in sorted(reached.items()):
        more = len(set(silent) & set(nodes))
        if node_id in voters and set(heard) - {node_id} <= set(nodes) and more > most:
            best, most = node_id, more
    return best
