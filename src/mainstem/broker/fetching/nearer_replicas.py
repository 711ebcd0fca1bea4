"""Which replica a consumer reads that names its rack (`client.rack`).

A leader of another rack sends the consumer to a replica in the consumer's rack, if there is one that lacks hardly
anything: as Kafka's `RackAwareReplicaSelector`, where `broker.rack_aware_reads` says so. A node serves consumers of its
own rack from the replicas it has, whether it leads them or not, and whatever it is set to itself: so a setting that
differs between nodes sends nobody to a node that refuses.

Brokers without storage serve any queue, so that there is no nearer one among nodes with storage.
"""

from __future__ import annotations

from mainstem.broker.queue_routing import QueueRouting
from mainstem.model import nodes_at
from mainstem.ports import BrokerLeadership, Cluster


class NearerReplicas:
    """`rack` is that of this node. `enabled`: whether it sends consumers to other nodes; `apart`: whether it is a
    broker without storage."""

    def __init__(
        self,
        node_id: int,
        rack: str,
        cluster: Cluster,
        leadership: BrokerLeadership,
        routing: QueueRouting,
        *,
        enabled: bool,
        apart: bool,
    ) -> None:
        self._node_id = node_id
        self._rack = rack
        self._cluster = cluster
        self._leadership = leadership
        self._routing = routing
        self.enabled = enabled
        self._apart = apart

    def are_here(self, rack: str) -> bool:
        """Whether a consumer of that rack may read the replicas here that other nodes lead."""
        return bool(rack) and rack == self._rack and not self._apart

    def of(self, rack: str, listener: str) -> dict[int, int] | None:
        """For a consumer of that rack, which came by that listener: the node to read from instead of this one, by write
        group, of those led here. None: there is none."""
        if not self.enabled or not rack or rack == self._rack or self._apart:
            return None
        alive = self._cluster.alive_nodes()
        if all(node.rack != rack for node in alive) or self._routing.brokers():
            return None
        near = {node.node_id for node in nodes_at(alive, listener) if node.rack == rack and node.stores}
        found = {}
        for group, nodes in self._leadership.abreast().items():
            node_id = next((node_id for node_id in nodes if node_id in near), None)
            if node_id is not None:
                found[group] = node_id
        return found or None
