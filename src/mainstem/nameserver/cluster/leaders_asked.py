"""A node that hears no leader of the metadata asks other nodes who leads the write groups.

The metadata leader tells it as a rule. While nobody hears one, write groups go on by themselves, and their leaderships
move all the same: a broker without storage would go to the node that led before, and be refused, for as long as that
lasts. A node that is asked tells all that it knows, so news spread over nodes that have no replica in common.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence

from mainstem.nameserver.cluster.write_group_leaders import WriteGroupLeaders
from mainstem.rpc.errors import RpcError
from mainstem.rpc.handlers import RpcCall
from mainstem.rpc.messages.metadata import LEADERS, LeadersTold
from mainstem.rpc.other_nodes import SingleCalls
from mainstem.rpc.wire.method import Nothing, Reply

ASKED_MAX = 3
"""Nodes that are asked at a time, in turn: with three replicas of each write group these are all of a small cluster."""

ANSWER_SECONDS_MAX = 1.0
"""For the answer of a node: as long as one that is asked whether it lives may take."""


class LeadersAsked:
    """Asks, and answers those that ask."""

    def __init__(self, leaders: WriteGroupLeaders, calls: SingleCalls) -> None:
        self._leaders = leaders
        self._calls = calls
        self._last = 0
        """The node that was asked last."""

    def answer(self, call: RpcCall[Nothing]) -> Reply[LeadersTold]:
        return Reply(LeadersTold(self._leaders.told()))

    async def ask(self, nodes: Sequence[int], groups: int) -> None:
        """Ask the next ones of these nodes, and take over what they tell of so many write groups."""
        ordered = sorted(nodes)
        first = bisect_right(ordered, self._last)
        asked = [*ordered[first:], *ordered[:first]][:ASKED_MAX]
        if asked:
            self._last = asked[-1]
            await asyncio.gather(*(self._ask(node_id, groups) for node_id in asked))

    async def _ask(self, node_id: int, groups: int) -> None:
        try:
            reply = await self._calls.call(node_id, LEADERS, Nothing(), timeout_seconds=ANSWER_SECONDS_MAX)
        except RpcError:  # it is not there, or of a version that does not know the question
            return
        self._leaders.learn_all(reply.message.leaders, groups)
