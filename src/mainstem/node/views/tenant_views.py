"""Views of the tenants and of what they take, and their changes."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from mainstem.console.views.asked_changes import TenantRequest
from mainstem.console.views.of_tenants import TenantUsageView, TenantView
from mainstem.model import Topic
from mainstem.nameserver.errors import NameserverError
from mainstem.nameserver.nameserver import Nameserver
from mainstem.ports import Clock
from mainstem.rpc.messages.metadata import WantTenant
from mainstem.security.quotas.quota import TENANT
from mainstem.security.tenants.tenant import Tenant
from mainstem.security.tenants.traffic import TenantTraffic
from mainstem.storage.queues.unsplit_topics import Unsplit

TOPICS_PER_TURN = 1_000
"""Topics counted within one turn of the event loop: about a millisecond."""


class BytesOfTopics(NamedTuple):
    """Bytes by topic number, on each tier."""

    journal: Mapping[int, int]
    stored: Mapping[int, int]
    remote: Mapping[int, int]
    unsplit: Mapping[int, Unsplit]
    """Of those in the journal, what is still to be split."""


class ReplicatedTenantViews:
    def __init__(
        self,
        nameserver: Nameserver,
        traffic: TenantTraffic | None,
        held: Callable[[], Awaitable[BytesOfTopics]] | None,
        clock: Clock,
    ) -> None:
        """`traffic`: None where the node is no broker; `held`: None
        where it has no storage."""
        self._clock = clock
        self._nameserver = nameserver
        self._traffic = traffic
        self._held = held

    async def tenants(self) -> Sequence[TenantView]:
        topics, queues = Counter[str](), Counter[str]()
        async for topic, owner in self._owned():
            topics[owner.name] += 1
            queues[owner.name] += topic.partitions
        quotas = self._nameserver.lookups.quotas()
        return [
            TenantView(
                name=it.name, prefix=it.prefix, retention_ms_max=it.retention_ms_max, queues_max=it.queues_max,
                users=list(it.users), quotas=dict(quotas.of(((TENANT, it.name),))), topics=topics[it.name],
                queues=queues[it.name],
            )
            for it in sorted(self._nameserver.lookups.tenants())
        ]  # fmt: skip

    async def usage(self, name: str | None) -> Sequence[TenantUsageView]:
        held = await self._held() if self._held is not None else None
        topics, queues = Counter[str](), Counter[str]()
        journal, stored, remote = Counter[str](), Counter[str](), Counter[str]()
        unsplit = defaultdict[str, Unsplit](lambda: Unsplit(0, -1))
        async for topic, owner in self._owned():
            topics[owner.name] += 1
            queues[owner.name] += topic.partitions
            if held is not None:
                for sums, by_topic in ((journal, held.journal), (stored, held.stored), (remote, held.remote)):
                    sums[owner.name] += by_topic.get(topic.number, 0)
                if (waits := held.unsplit.get(topic.number)) is not None:
                    unsplit[owner.name] = unsplit[owner.name].and_also(waits)
        tenants = self._nameserver.lookups.tenants()
        named = [tenants.named(name)] if name is not None else sorted(tenants)
        views = []
        for tenant in named:
            if tenant is None:
                continue
            traffic = self._traffic.seen(tenant.name) if self._traffic is not None else None
            views.append(
                TenantUsageView(
                    name=tenant.name,
                    topics=topics[tenant.name],
                    queues=queues[tenant.name],
                    queues_max=tenant.queues_max,
                    journal_bytes=journal[tenant.name] if held is not None else None,
                    unsplit_bytes=unsplit[tenant.name].bytes if held is not None else None,
                    split_lag_seconds=self._age(unsplit[tenant.name]) if held is not None else None,
                    stored_bytes=stored[tenant.name] if held is not None else None,
                    remote_bytes=remote[tenant.name] if held is not None else None,
                    produced_bytes=traffic.produced_bytes if traffic is not None else None,
                    fetched_bytes=traffic.fetched_bytes if traffic is not None else None,
                )
            )
        return views

    def _age(self, unsplit: Unsplit) -> float:
        """Seconds since the oldest was written."""
        return max(0.0, (self._clock.now_ms() - unsplit.oldest_ms) / 1000) if unsplit.oldest_ms >= 0 else 0.0

    async def set_tenant(self, wanted: TenantRequest) -> str | None:
        change = WantTenant(
            wanted.name, wanted.prefix, wanted.retention_ms_max, wanted.queues_max, wanted.users, wanted.quotas,
            wanted.how,
        )  # fmt: skip
        return await _refusal(self._nameserver.operations.set_tenant(change))

    async def remove_tenant(self, name: str) -> str | None:
        return await _refusal(self._nameserver.operations.remove_tenant(name))

    async def _owned(self) -> AsyncIterator[tuple[Topic, Tenant]]:
        """All topics of tenants, and whose they are."""
        for number, topic in enumerate(self._nameserver.lookups.topics(), 1):
            if (owner := self._nameserver.lookups.tenants().owner(topic.name)) is not None:
                yield topic, owner
            if number % TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)


async def _refusal(change: Awaitable[None]) -> str | None:
    """Why the change cannot be; None when it is made."""
    try:
        await change
    except NameserverError as error:
        return str(error)
    return None
