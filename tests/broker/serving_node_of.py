"""A node over the fakes, as internal topics need it."""

from __future__ import annotations

from tests.fakes.leadership import FakeLeadership
from tests.fakes.memory_store import MemoryStore
from tests.fakes.metadata import FakeMetadata

from mainstem.broker.machines.serving_node import ServingNode
from mainstem.broker.queue_routing import QueueRouting
from mainstem.ports import Clock


def serving_node_of(
    metadata: FakeMetadata, leadership: FakeLeadership, store: MemoryStore, clock: Clock
) -> ServingNode:
    return ServingNode(
        node_id=1,
        metadata=metadata,
        metadata_admin=metadata,
        leadership=leadership,
        routing=QueueRouting(1, metadata, leadership, apart=False),
        store=store,
        queue_admin=store,
        clock=clock,
    )
