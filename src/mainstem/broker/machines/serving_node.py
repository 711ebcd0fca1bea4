"""The node that serves an internal topic, as far as that needs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mainstem.broker.queue_routing import QueueRouting
from mainstem.model import FeatureLevel
from mainstem.ports import Clock, MessageStore, Metadata, MetadataAdmin, QueueAdmin, QueueLeadership
from mainstem.supervised import Supervision


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingNode:
    """`feature_level` is the level at which logs may be written."""

    node_id: int
    metadata: Metadata
    metadata_admin: MetadataAdmin
    leadership: QueueLeadership
    routing: QueueRouting
    store: MessageStore
    queue_admin: QueueAdmin
    clock: Clock
    feature_level: Callable[[], FeatureLevel] = FeatureLevel.newest
    supervision: Supervision | None = None
