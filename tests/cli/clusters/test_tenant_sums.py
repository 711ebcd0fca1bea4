"""The sums of what tenants take of several nodes."""

from __future__ import annotations

import msgspec

from mainstem.cli.tenant.usage import sums_of
from mainstem.console.views.of_cluster import NodeView
from mainstem.console.views.of_tenants import TenantUsagesView, TenantUsageView


def node(node_id: int, *roles: str) -> NodeView:
    return NodeView(node_id=node_id, host="h", port=1, roles=roles)


def took(
    name: str, journal: int | None, stored: int | None, remote: int | None, produced: int | None, fetched: int | None
) -> TenantUsageView:
    return TenantUsageView(
        name=name, topics=2, queues=6, queues_max=9, journal_bytes=journal, stored_bytes=stored, remote_bytes=remote,
        unsplit_bytes=journal and journal // 2, split_lag_seconds=journal and journal / 10,
        produced_bytes=produced, fetched_bytes=fetched,
    )  # fmt: skip


def test_replicas_count_each_and_the_remote_tier_and_traffic_once() -> None:
    heard = [
        (node(1, "storage", "nameserver"), TenantUsagesView(tenants=[took("a", 10, 100, 70, 5, 50)])),
        (node(2, "storage"), TenantUsagesView(tenants=[took("a", 20, 200, 80, 6, 60), took("b", 1, 2, 3, 4, 5)])),
        (node(3, "broker"), TenantUsagesView(tenants=[took("a", None, None, None, 8, 90)])),
        (node(4, "broker", "storage"), TenantUsagesView(tenants=[took("a", 30, 300, 80, 4, 30)])),
    ]
    whole = msgspec.structs.replace(took("a", 60, 600, 80, 12, 120), split_lag_seconds=3.0)  # the oldest of all
    assert sums_of(heard) == [whole, took("b", 1, 2, 3, None, None)]


def test_a_tenant_of_nodes_that_tell_no_sizes_has_none() -> None:
    heard = [(node(3, "broker"), TenantUsagesView(tenants=[took("a", None, None, None, 8, 90)]))]
    assert sums_of(heard) == [took("a", None, None, None, 8, 90)]


def test_a_node_of_an_earlier_version_tells_what_it_knows() -> None:
    """It says nothing of what is still to be split."""
    told = msgspec.structs.asdict(took("a", 10, 100, 70, 5, 50))
    del told["unsplit_bytes"], told["split_lag_seconds"]
    view = msgspec.convert({"tenants": [told]}, TenantUsagesView)
    (whole,) = sums_of([(node(1, "broker", "storage"), view)])
    assert (whole.journal_bytes, whole.unsplit_bytes, whole.split_lag_seconds) == (10, None, None)
