"""Checks the replicas a client asks for. Queues follow their slot to a write group, so the broker cannot follow an
assignment; it accepts one that names nodes that exist, and as many for every partition."""

from __future__ import annotations

from collections.abc import Sequence

from mainstem.broker.broker import Broker


def assignment_fault(
    broker: Broker, replicas: Sequence[Sequence[int]], replication_factor: int | None = None
) -> str | None:
    """The fault in the replicas (node ids) per partition, in words; None when there is none.

    `replication_factor` is that of the topic's other partitions, None for a new topic."""
    known = {node.node_id for node in broker.metadata.nodes()}
    expected = len(replicas[0]) if replication_factor is None and replicas else replication_factor
    for index, node_ids in enumerate(replicas):
        where = f"assignment {index}"
        if not node_ids:
            return f"{where} names no node"
        if len(set(node_ids)) != len(node_ids):
            return f"{where} names a node twice: {list(node_ids)}"
        unknown = sorted(set(node_ids) - known)
        if unknown:
            return f"{where} names nodes that do not exist: {unknown}; there are {sorted(known)}"
        if len(node_ids) != expected:
            return f"{where} has {len(node_ids)} replicas, others have {expected}"
    return None
