"""Views of the tenants, and their changes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from mainstem.console.views import TenantRequest, TenantView
from mainstem.nameserver.errors import NameserverError
from mainstem.nameserver.nameserver import Nameserver
from mainstem.security.tenants.tenant import Tenant

TOPICS_PER_TURN = 1_000
"""Topics counted within one turn of the event loop: about a millisecond."""


class ReplicatedTenantViews:
    def __init__(self, nameserver: Nameserver) -> None:
        self._nameserver = nameserver

    async def tenants(self) -> Sequence[TenantView]:
        topics, queues = Counter[str](), Counter[str]()
        for number, topic in enumerate(self._nameserver.lookups.topics(), 1):
            if (owner := self._nameserver.lookups.tenants().owner(topic.name)) is not None:
                topics[owner.name] += 1
                queues[owner.name] += topic.partitions
            if number % TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)
        return [
            TenantView(
                name=it.name, prefix=it.prefix, retention_ms_max=it.retention_ms_max, queues_max=it.queues_max,
                users=list(it.users), topics=topics[it.name], queues=queues[it.name],
            )
            for it in sorted(self._nameserver.lookups.tenants())
        ]  # fmt: skip

    async def set_tenant(self, wanted: TenantRequest) -> str | None:
        tenant = Tenant(
            wanted.name, wanted.prefix, wanted.retention_ms_max, wanted.queues_max, tuple(wanted.users)
        )  # fmt: skip
        try:
            await self._nameserver.operations.set_tenant(tenant)
        except NameserverError as error:
            return str(error)
        return None

    async def remove_tenant(self, name: str) -> str | None:
        try:
            await self._nameserver.operations.remove_tenant(name)
        except NameserverError as error:
            return str(error)
        return None
