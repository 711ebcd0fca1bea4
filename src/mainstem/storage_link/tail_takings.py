"""Bytes that clients get of the tails that a broker keeps, until the nodes that told of these tails hear of it.

A node that is asked for records counts for whom; records of a tail it told once for all readers. So the broker sums up
by node and user what readers get of the tails, and says so once a second. Sums of a node that is never heard of again
stay; they are few: of a user at each node there is one number. A message whose answer is lost is not sent again: what
it says may be counted already.
"""

from __future__ import annotations

from collections.abc import Iterable

from mainstem.model import Sample
from mainstem.rpc.messages.forwarded import CLIENTS_MAX, TEXT_LENGTH_MAX, ClientTook

CLIENTS_KEPT_MAX = 10_000
"""Sums of one node: what more users take while that many wait to be told is not counted."""


class TailTakings:
    """Of one broker. Sums may be below zero for a while: a read that is made anew takes back what it was given."""

    def __init__(self) -> None:
        self._by_node: dict[int, dict[str, int]] = {}
        self._lost_bytes = 0

    def add(self, node_id: int, principal: str, size_bytes: int) -> None:
        """A client was given so much of what a node told; below zero: it was not, after all."""
        sums = self._by_node.setdefault(node_id, {})
        principal = principal[:TEXT_LENGTH_MAX]
        if principal not in sums and len(sums) >= CLIENTS_KEPT_MAX:
            self._lost_bytes += max(0, size_bytes)
            return
        sums[principal] = total = sums.get(principal, 0) + size_bytes
        if not total:
            del sums[principal]

    def nodes(self) -> Iterable[int]:
        """The nodes that are to hear something."""
        return [node_id for node_id, sums in self._by_node.items() if any(size > 0 for size in sums.values())]

    def due(self, node_id: int) -> list[ClientTook]:
        """The sums that a node is to hear of now, as many as one message takes; they are due no more."""
        sums = self._by_node.get(node_id, {})
        told = [ClientTook(principal, size) for principal, size in sums.items() if size > 0][:CLIENTS_MAX]
        for one in told:
            del sums[one.principal]
        if not sums:
            self._by_node.pop(node_id, None)
        return told

    def samples(self) -> Iterable[Sample]:
        yield Sample(
            "mainstem_link_unmetered_bytes_total",
            "counter",
            "Bytes given to clients of which there were too many to tell storage nodes of each.",
            self._lost_bytes,
        )
