"""Which broker clients are sent to for a queue.

If there are live brokers without storage, queues spread over them by rendezvous hashing: each queue goes to the broker
that has the highest hash with it, so that a broker that comes or goes moves its own share alone. Otherwise the leader
of the queue's write group is its broker.

This is balance and no fence: nodes may disagree for as long as they have heard different things, and any broker without
storage serves any queue. A coordinator, which must be the one writer, asks the write group for the ownership
(`QueueAdmin.own`).

Nodes that go are listed for a moment longer than queues are sent to them (`BrokerList`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy

from mainstem.model import Node, NodeRole
from mainstem.ports import Cluster, QueueLeadership

if TYPE_CHECKING:
    from numpy import intp, uint64
    from numpy.typing import NDArray

SETTLED_SECONDS = 3.0
"""Many heartbeats: all nodes know the same brokers by then."""

LISTED_SECONDS = 3.0
"""A client that misses the broker of its queues looks for another one every second or sooner: three looks."""

STORAGE_LISTED_SECONDS = 30.0
"""Most producers have sent the offsets of the transaction that they are in by then, and a node that is started again is
back. No longer: administrators' clients ask every node that is listed, and wait for those that do not answer."""

GO_BY_THE_LIST = frozenset({"sarama", "kafka-python", "apache-kafka-java"})
"""Clients by the names that they give themselves, which a node that is gone holds up as long as it is listed, and who
do without it: Sarama and kafka-python read from a replica in their rack until then, Java's administrators ask it."""

KNOWN_MAX = 100_000
"""Queues whose brokers are remembered, some ten MB."""

_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_STEP = 0x9E3779B97F4A7C15
"""The constants of SplitMix64."""
_MASK = 0xFFFFFFFFFFFFFFFF


class QueueRouting:
    """`apart`: whether this node is a broker without storage."""

    def __init__(self, node_id: int, cluster: Cluster, leadership: QueueLeadership, *, apart: bool) -> None:
        self._node_id = node_id
        self._cluster = cluster
        self._leadership = leadership
        self._apart = apart
        self._settled: tuple[int, ...] = ()
        """The brokers, once they have been the same for a while; empty: they have not, or there are none."""
        self._seen: tuple[tuple[int, ...], float] = ((), 0.0)
        """The brokers at the last look, and since when these are the same."""
        self._misplaced: dict[int, bool] = {}
        """The routes of queues, known as long as the brokers are the same."""

    def brokers(self) -> tuple[int, ...]:
        """The brokers without storage that queues spread over; empty: leaders serve their queues themselves."""
        brokers = {node.node_id for node in self._cluster.alive_nodes() if NodeRole.STORAGE not in node.roles}
        if self._apart:
            brokers.add(self._node_id)  # whatever others hold this node for: it is here
        return tuple(sorted(brokers))

    def broker_of(self, queue_id: int) -> int:
        """The node that clients are sent to for a queue; -1: there is none now."""
        brokers = self.brokers()
        if not brokers:
            return self._leadership.replicas(self._leadership.group_of(queue_id)).leader
        return max(brokers, key=lambda node_id: _weight(queue_id, node_id))

    def choices(self, queue_ids: NDArray[uint64], brokers: tuple[int, ...]) -> NDArray[intp]:
        """Per queue, the place of its broker among `brokers`."""
        weights = [_weights(queue_ids, node_id) for node_id in brokers]
        places: NDArray[intp] = numpy.argmax(numpy.stack(weights), axis=0)
        return places

    def sends_elsewhere(self, queue_id: int) -> bool:
        """Whether queues spread over brokers, and this one goes to another than this node."""
        return bool(self.brokers()) and self.broker_of(queue_id) != self._node_id

    def look(self, now: float) -> bool:
        """Look at which brokers there are, at a time of the monotonic clock; returns whether they have changed."""
        brokers, since = self.brokers(), self._seen[1]
        changed = brokers != self._seen[0]
        if changed:
            self._seen = brokers, now
            self._settled = ()
            self._misplaced.clear()
        elif not self._settled and now - since >= SETTLED_SECONDS:
            self._settled = brokers
        return changed

    @property
    def settled(self) -> tuple[int, ...]:
        """The brokers that queues spread over, once they have been the same for a while; empty before."""
        return self._settled

    def is_misplaced(self, queue_id: int) -> bool:
        """Whether a client should be told to look for another broker: it came here before that one was there. While
        brokers come or go nobody is sent away, since nodes may hear of it in any order."""
        if not self._settled:
            return False
        known = self._misplaced.get(queue_id)
        if known is None:
            if len(self._misplaced) >= KNOWN_MAX:
                self._misplaced.clear()
            known = self._misplaced[queue_id] = self.sends_elsewhere(queue_id)
        return known and self.brokers() == self._seen[0]  # who is sent away may come from one that went just now

    def serves_here(self, queue_id: int) -> bool:
        """Whether this node is the one that clients are sent to, as far as it knows."""
        return self._leadership.serves_here(queue_id) and not self.sends_elsewhere(queue_id)


class BrokerList:
    """The nodes that clients are told of: those alive, and those that went a moment ago.

    A client takes a node that is not listed out of use. If librdkafka reads in one answer that a broker is gone and
    that its queues have another, it stops the connection to the old broker before the queues have left it; then they
    have no broker until it looks again, a second later. So a client first reads of the move, and later of the end.

    A transactional producer of librdkafka (2.10 and later) that was told of a group's coordinator, and takes that node
    out of use before it has asked for the next one, does not ask any more: sending offsets to a transaction stands
    still until another connection is lost, or its time is over. As long as the node is listed, the producer tries to
    reach it, and asks for the coordinator whenever it fails. Programs name librdkafka as they like, so this is for all
    but a few clients that are known to suffer by it (`GO_BY_THE_LIST`).
    """

    def __init__(self, cluster: Cluster, monotonic: Callable[[], float]) -> None:
        self._cluster = cluster
        self._monotonic = monotonic
        self._last: dict[int, Node] = {}
        """The nodes that were alive at the last look."""
        self._gone: dict[int, tuple[Node, float]] = {}
        """Those that are alive no more, and when they are not listed any more, counted from the first look without
        them."""

    def nodes(self, client: str) -> Sequence[Node]:
        """The nodes in no order, for a client that gives itself this name (`Session.software_name`)."""
        now = self._monotonic()
        alive = {node.node_id: node for node in self._cluster.alive_nodes()}
        for node_id, node in self._last.items():
            if node_id not in alive:
                listed_seconds = STORAGE_LISTED_SECONDS if node.stores else LISTED_SECONDS
                self._gone[node_id] = node, now + listed_seconds
        self._last = alive
        self._gone = {
            node_id: (node, until)
            for node_id, (node, until) in self._gone.items()
            if node_id not in alive and now < until
        }
        held_up = client in GO_BY_THE_LIST
        return [*alive.values(), *(node for node, _ in self._gone.values() if not (held_up and node.stores))]


def _weight(queue_id: int, node_id: int) -> int:
    mixed = (queue_id ^ node_id * _STEP & _MASK) + _STEP & _MASK
    mixed = (mixed ^ mixed >> 30) * _MIX[0] & _MASK
    mixed = (mixed ^ mixed >> 27) * _MIX[1] & _MASK
    return mixed ^ mixed >> 31


def _weights(queue_ids: NDArray[uint64], node_id: int) -> NDArray[uint64]:
    """The same for many queues."""
    mixed = (queue_ids ^ numpy.uint64(node_id * _STEP & _MASK)) + numpy.uint64(_STEP)
    mixed = (mixed ^ (mixed >> numpy.uint64(30))) * numpy.uint64(_MIX[0])
    mixed = (mixed ^ (mixed >> numpy.uint64(27))) * numpy.uint64(_MIX[1])
    weights: NDArray[uint64] = mixed ^ (mixed >> numpy.uint64(31))
    return weights
