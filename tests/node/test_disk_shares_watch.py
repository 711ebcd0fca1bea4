"""Tenants wait for the fullest of the disks 1 that their batches go to."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field
from typing import cast

import pytest
from tests.fakes.clock import FakeClock

from mainstem.model import Topic
from mainstem.nameserver.cluster.disk_pressures import NO_PRESSURE
from mainstem.nameserver.lookups import MetadataLookups
from mainstem.node.storage_role.disk_shares_watch import DiskSharesWatch
from mainstem.security.quotas.disk_shares import DiskShares
from mainstem.security.tenants.tenant import Tenant
from mainstem.security.tenants.tenant_table import TenantTable
from mainstem.storage.queues.unsplit_topics import Unsplit
from mainstem.storage.role import Storage


@dataclass
class Disk:
    """A storage role, as far as the watch looks at it: nine tenths of what is to be split are those of topic 1."""

    pressure: float

    @property
    def disk_watch(self) -> Disk:
        return self

    @property
    def unsplit_topics(self) -> Disk:
        return self

    async def by_topic(self) -> dict[int, Unsplit]:
        return {number: Unsplit(size, 0) for number, size in ((1, 9_000), (2, 1_000))}


@dataclass
class Cluster:
    """Metadata with two tenants, and what followers tell of their disks."""

    told: float
    found: frozenset[str]
    table: TenantTable = field(default_factory=TenantTable)

    def __post_init__(self) -> None:
        for name in ("flood", "quiet"):
            self.table.set(Tenant(name, f"{name}."))

    def tenants(self) -> TenantTable:
        return self.table

    def topic_by_number(self, number: int) -> Topic:
        name = "flood.all" if number == 1 else "quiet.all"
        return Topic(name=name, number=number, topic_id=uuid.UUID(int=number), partitions=1)

    def followers_pressure(self) -> tuple[float, frozenset[str]]:
        return self.told, self.found


@pytest.mark.parametrize(("here", "there", "held", "found"), [
    (NO_PRESSURE, NO_PRESSURE, set(), set()),
    (-0.5, NO_PRESSURE, {"flood"}, {"flood"}),
    (NO_PRESSURE, -0.5, {"late"}, set()),
    (-0.5, 0.5, {"flood", "late"}, {"flood"}),
])  # fmt: skip
def test_who_has_filled_a_disk_here_or_there_waits(here: float, there: float, held: set[str], found: set[str]) -> None:
    """Each node splits at its own pace, so that each has its own tenants that have filled it."""
    shares = DiskShares(FakeClock().monotonic)
    told = frozenset({"late"} if there > NO_PRESSURE else ())
    watch = DiskSharesWatch(shares, cast(Storage, Disk(here)), cast(MetadataLookups, Cluster(there, told)))
    asyncio.run(watch.look())
    assert set(shares.held) == held
    assert watch.own() == (here, frozenset(found)), "of this node's own disk"
