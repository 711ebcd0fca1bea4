"""Views of tenants."""

from __future__ import annotations

import msgspec


class TenantView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    prefix: str
    retention_ms_max: int | None
    queues_max: int | None
    users: list[str]
    quotas: dict[str, float]
    """Of its own, by Kafka's keys; defaults of tenants are not among them."""
    topics: int
    queues: int


class TenantsView(msgspec.Struct, frozen=True, kw_only=True):
    tenants: list[TenantView]


class TenantUsageView(msgspec.Struct, frozen=True, kw_only=True):
    """The use that a tenant makes of the node. Bytes are this node's: those of batches in what it holds, live or
    not."""

    name: str
    topics: int
    queues: int
    queues_max: int | None
    journal_bytes: int | None
    """Null: the node has no storage."""
    unsplit_bytes: int | None = None
    """Of those in the journal, what this node has still to split. Null, too: the node is of an earlier version."""
    split_lag_seconds: float | None = None
    """How long ago the oldest of them was written."""
    stored_bytes: int | None
    """On disk 2."""
    remote_bytes: int | None
    """In the remote tier, or in the shared store; the same on every node."""
    produced_bytes: int | None
    """Of Produce requests of its users to this node, since the node started. Null: the node is no broker."""
    fetched_bytes: int | None
    """Of batches that this node sent to its users."""


class TenantUsagesView(msgspec.Struct, frozen=True, kw_only=True):
    tenants: list[TenantUsageView]
