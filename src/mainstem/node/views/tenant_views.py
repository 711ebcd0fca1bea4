"""Views of the tenants, and their changes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Sequence

from mainstem.console.views import TenantRequest, TenantView
from mainstem.nameserver.errors import NameserverError
from mainstem.nameserver.nameserver import Nameserver
from mainstem.security.audit.audit_log import AuditLog
from mainstem.security.tenants.tenant import Tenant

TOPICS_PER_TURN = 1_000
"""Topics counted within one turn of the event loop: about a millisecond."""


class ReplicatedTenantViews:
    def __init__(self, nameserver: Nameserver, audit: AuditLog | None) -> None:
        """`audit`: is told of changes; None: there is none."""
        self._nameserver = nameserver
        self._audit = audit

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
        return await self._change("SetTenant", wanted.name, self._nameserver.operations.set_tenant(tenant))

    async def remove_tenant(self, name: str) -> str | None:
        return await self._change("RemoveTenant", name, self._nameserver.operations.remove_tenant(name))

    async def _change(self, operation: str, name: str, change: Awaitable[None]) -> str | None:
        refusal: NameserverError | None = None
        try:
            await change
        except NameserverError as error:
            refusal = error
        if self._audit is not None:
            self._audit.changed_over_http(operation, f"tenant:{name}", refusal)
        return None if refusal is None else str(refusal)
