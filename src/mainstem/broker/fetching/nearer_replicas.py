"""Which replica a consumer reads that names its rack (`client.rack`).

A leader of another rack sends the consumer to a replica in the consumer's rack, if there is one that lacks hardly
anything: as Kafka's `RackAwareReplicaSelector`, where `broker.rack_aware_reads` says so. A node serves consumers of its
own rack from the replicas it has, whether it leads them or not, and whatever it is set to itself: so a setting that
differs between nodes sends nobody to a node that refuses.

Two more things send readers away; where `rack_aware_reads` is on, the rack comes before both. Consumers of a topic with
`read.spread.enable` are spread over all of its replicas, the leader's included. And with
`broker.catch_up_from_replicas` a leader sends consumers that read what its memory has no more to another replica: one
in the consumer's rack, if there is one. Both choose by the connection, so that many consumers of one queue go to
different nodes. A node that has not heard of either refuses readers of other racks, who come again: nodes should be set
alike.

Brokers without storage serve any queue, so that there is no nearer one among nodes with storage. The broker that
clients are sent to for a queue shares the readers of such a topic with the other brokers; and where `rack_aware_reads`
is on, it sends readers of another rack to a broker there, if there is one, whatever they read. One where it is off
refuses them: readers of its rack whose metadata is old, who come to it by themselves, go to the queue's broker then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from mainstem.broker.queue_routing import QueueRouting
from mainstem.kernel import FollowersRead
from mainstem.model import Node, nodes_at
from mainstem.ports import BrokerLeadership, Cluster

_STEP = 0x9E3779B97F4A7C15
"""As Fibonacci hashing has it: connections that are numbered by twos or threes do not all choose alike."""


class NearerReplicas:
    """`rack` is that of this node. `enabled`: whether it sends consumers to other nodes of their rack; `catch_up`:
    whether those that memory alone cannot answer; `apart`: whether it is a broker without storage."""

    def __init__(
        self,
        node_id: int,
        rack: str,
        cluster: Cluster,
        leadership: BrokerLeadership,
        routing: QueueRouting,
        *,
        enabled: bool,
        catch_up: bool,
        apart: bool,
    ) -> None:
        self._node_id = node_id
        self._rack = rack
        self._cluster = cluster
        self._leadership = leadership
        self._routing = routing
        self.enabled = enabled
        self.catch_up = catch_up
        self._apart = apart

    def are_here(self, rack: str, *, spread: bool) -> FollowersRead:
        """Of which topics a consumer of that rack may read the replicas here that other nodes lead, or queues for which
        clients have another broker. `spread`: it asks for a topic whose readers are spread."""
        if not rack:
            return FollowersRead.NEVER
        if self._apart:
            return FollowersRead.ALL if self._is_at_home(rack) else FollowersRead.NEVER
        if rack == self._rack or self.catch_up:
            return FollowersRead.ALL
        return FollowersRead.SPREAD if spread else FollowersRead.NEVER

    def of(self, rack: str, listener: str) -> dict[int, int] | None:
        """For a consumer of that rack, which came by that listener: the node to read from instead of this one, by write
        group, of those led here. None: there is none."""
        if not self.enabled or rack == self._rack:
            return None
        return self._chosen(rack, listener, lambda able: next((it.node_id for it in able if it.rack == rack), None))

    def for_history(self, rack: str, listener: str, reader: int) -> dict[int, int] | None:
        """The same for what this node would have to read from its disks, by the reader's connection."""
        if not self.catch_up or self._is_at_home(rack):
            return None

        def choose(able: Sequence[Node]) -> int | None:
            near = [it.node_id for it in able if it.rack == rack] or [it.node_id for it in able]
            return near[_place(reader, len(near))] if near else None

        return self._chosen(rack, listener, choose)

    def share(self, rack: str, listener: str, reader: int) -> dict[int, int] | None:
        """The same for topics whose readers are spread: a write group is missing where the reader stays here."""
        if self._is_at_home(rack):
            return None

        def choose(able: Sequence[Node]) -> int | None:
            nodes = sorted([self._node_id, *(it.node_id for it in able)])  # in one order, whoever has most now
            chosen = nodes[_place(reader, len(nodes))]
            return chosen if chosen != self._node_id else None

        return self._chosen(rack, listener, choose)

    def broker_near(self, rack: str, listener: str, reader: int) -> int:
        """The broker without storage in a reader's rack to which this one, in another rack, sends it; -1: the reader
        stays here."""
        if not self.enabled or rack == self._rack:
            return -1
        near = [it.node_id for it in self._brokers_at(rack, listener) if it.rack == rack]
        return near[_place(reader, len(near))] if near else -1

    def broker_for(self, rack: str, listener: str, reader: int) -> int:
        """The broker without storage to which this one, which is another, sends a reader for topics whose readers are
        spread; -1: the reader stays here."""
        able = self._brokers_at(rack, listener)
        if self._is_at_home(rack):
            able = [it for it in able if it.rack == rack]
        chosen = able[_place(reader, len(able))].node_id if able else -1
        return -1 if chosen == self._node_id else chosen

    def _brokers_at(self, rack: str, listener: str) -> list[Node]:
        """The brokers without storage among which a reader that names a rack may be sent from here."""
        settled = self._routing.settled
        if not rack or not self._apart or len(settled) < 2:
            return []
        able = (it for it in nodes_at(self._cluster.alive_nodes(), listener) if it.node_id in settled)
        return sorted(able, key=attrgetter("node_id"))

    def _is_at_home(self, rack: str) -> bool:
        """Whether racks come first, and a reader of that one is in the leader's."""
        return self.enabled and rack == self._rack

    def _chosen(
        self, rack: str, listener: str, choose: Callable[[Sequence[Node]], int | None]
    ) -> dict[int, int] | None:
        """The choices from the nodes whose replicas lack hardly anything, those first that lack least, by write group
        led here."""
        if not rack or self._apart or self._routing.brokers():
            return None
        able = {node.node_id: node for node in nodes_at(self._cluster.alive_nodes(), listener) if node.stores}
        found = {}
        for group, nodes in self._leadership.abreast().items():
            node_id = choose([able[it] for it in nodes if it in able and it != self._node_id])
            if node_id is not None:
                found[group] = node_id
        return found or None


def _place(reader: int, count: int) -> int:
    return (reader * _STEP >> 32) % count
