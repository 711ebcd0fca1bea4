"""Clients of other nodes, as a node knows them that is asked in their name: it counts what their tenants bring and
take, refuses what was judged by rules that are too old, and has the audit tell of changes that it makes for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from mainstem.bounded_log import BoundedLog
from mainstem.model import ForwardedClient, Sample
from mainstem.nameserver.lookups import MetadataLookups
from mainstem.ports import Clock
from mainstem.security.acls.config import AuthorizerConfig
from mainstem.security.acls.rule_ages import RuleAges
from mainstem.security.audit.audit_log import ALLOWED, REFUSED, AuditEvent, AuditLog
from mainstem.security.audit.config import FORWARDED
from mainstem.security.quotas.disk_shares import DiskShares
from mainstem.security.tenants.traffic import TenantTraffic, Traffic

LOOKS_SECONDS = 1.0
"""Between two looks at whether rules have changed."""

_USER = "User:"

log = logging.getLogger(__name__)


class NodeForwardedClients:
    """Implements `ports.ForwardedClients`. `run` is a task: it notices when rules change."""

    def __init__(self, lookups: MetadataLookups, config: AuthorizerConfig, clock: Clock) -> None:
        self._lookups = lookups
        self._super_users = config.super_users_named
        self._ages = (
            RuleAges(
                lambda: lookups.acls().version, lambda: lookups.version, clock.monotonic, config.staleness_ms / 1000
            )
            if config.enabled
            else None
        )
        self.traffic = TenantTraffic("mainstem_storage_tenant")
        self._refused = 0
        self._refusals = BoundedLog(log, clock)
        self.audit: AuditLog | None = None
        """Is told of changes; None: this node has none."""
        self.disk_shares: DiskShares | None = None
        """Bounds tenants that have filled disk 1; None: this node stores nothing."""

    async def run(self) -> None:
        while True:
            if self._ages is not None:
                self._ages.look()
            await asyncio.sleep(LOOKS_SECONDS)

    def refusal(self, client: ForwardedClient) -> str | None:
        if self._ages is None or client.judged_at < 0 or client.principal in self._super_users:
            return None
        if not self._ages.are_old(client.judged_at):
            return None
        self._refused += 1
        why = "the broker judged by access rules that are too old; try again, or at another broker"
        self._refusals.report(logging.WARNING, f"refused to {client.principal} from {client.host}: {why}")
        return why

    def brought(self, client: ForwardedClient, size_bytes: int) -> float:
        table = self._lookups.tenants()
        if not table:
            return 0.0
        tenant = table.of_user(client.principal.removeprefix(_USER))
        if tenant is not None:
            self.traffic.of(tenant.name, table).produced_bytes += size_bytes
        if self.disk_shares is None:
            return 0.0
        return self.disk_shares.brought("" if tenant is None else tenant.name, size_bytes)

    def took(self, client: ForwardedClient, size_bytes: int) -> None:
        if (traffic := self._traffic_of(client.principal)) is not None:
            traffic.fetched_bytes += size_bytes

    def changed(self, client: ForwardedClient, node_id: int, what: str, refusal: str | None) -> None:
        if self.audit is None:
            return
        outcome = ALLOWED if refusal is None else REFUSED
        detail = f"asked by node {node_id}" + (f": {refusal}" if refusal is not None else "")
        self.audit.add(
            AuditEvent(FORWARDED, client.principal, client.host, what, f"node:{node_id}", outcome, detail=detail)
        )

    def samples(self) -> Iterable[Sample]:
        yield from self.traffic.samples()
        yield Sample(
            "mainstem_stale_verdicts_total",
            "counter",
            "Requests of other nodes for clients whom these judged by access rules that were too old.",
            self._refused,
        )

    def _traffic_of(self, principal: str) -> Traffic | None:
        table = self._lookups.tenants()
        tenant = table.of_user(principal.removeprefix(_USER)) if table else None
        return None if tenant is None else self.traffic.of(tenant.name, table)
