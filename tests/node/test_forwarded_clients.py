"""Clients of other nodes: whose traffic is counted, what is refused, and what the audit tells."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
from tests.fakes.clock import FakeClock

from mainstem.model import ForwardedClient
from mainstem.nameserver.lookups import MetadataLookups
from mainstem.node.access.forwarded_clients import NodeForwardedClients
from mainstem.security.acls.acl import Acl, Operation, PatternType, Permission, ResourceKind
from mainstem.security.acls.acl_table import AclTable
from mainstem.security.acls.config import AuthorizerConfig
from mainstem.security.audit.audit_log import AuditLog
from mainstem.security.audit.config import AuditConfig
from mainstem.security.tenants.tenant import Tenant
from mainstem.security.tenants.tenant_table import TenantTable

RULE = Acl(ResourceKind.TOPIC, "t", PatternType.LITERAL, "User:an", "*", Operation.READ, Permission.ALLOW)


class Metadata:
    def __init__(self) -> None:
        self.table, self.owners, self.version = AclTable(), TenantTable(), 10

    def acls(self) -> AclTable:
        return self.table

    def tenants(self) -> TenantTable:
        return self.owners


def made(metadata: Metadata, clock: FakeClock, **settings: Any) -> NodeForwardedClients:
    return NodeForwardedClients(cast(MetadataLookups, metadata), AuthorizerConfig(**settings), clock)


def test_what_old_rules_allowed_is_refused_but_to_super_users() -> None:
    metadata, clock = Metadata(), FakeClock()
    clients = made(metadata, clock, enabled=True, super_users="User:admin", staleness_ms=30_000)
    an, admin = ForwardedClient("User:an", "h", 10), ForwardedClient("User:admin", "h", 10)
    metadata.version = 11
    metadata.table.add(RULE)
    assert clients.refusal(an) is None
    clock.advance(31)
    why = clients.refusal(an)
    assert why is not None
    assert "too old" in why
    assert clients.refusal(admin) is None
    assert clients.refusal(an._replace(judged_at=11)) is None
    assert clients.refusal(an._replace(judged_at=-1)) is None, "its broker judges nobody"
    assert [it.value for it in clients.samples() if it.name == "mainstem_stale_verdicts_total"] == [1]


def test_without_an_authorizer_nothing_is_refused() -> None:
    metadata, clock = Metadata(), FakeClock()
    clients = made(metadata, clock)
    metadata.table.add(RULE)
    clock.advance(1_000)
    assert clients.refusal(ForwardedClient("User:an", "h", 0)) is None


def test_traffic_is_counted_for_the_tenant_of_the_user() -> None:
    metadata = Metadata()
    metadata.owners.set(Tenant("acme", "acme.", users=("an",)))
    clients = made(metadata, FakeClock())
    for user in ("an", "nobody"):
        clients.brought(ForwardedClient(f"User:{user}", "h"), 100)
        clients.took(ForwardedClient(f"User:{user}", "h"), 30)
    told = {it.name: (it.labels, it.value) for it in clients.samples()}
    label = (("tenant", "acme"),)
    assert told["mainstem_storage_tenant_produced_bytes_total"] == (label, 100)
    assert told["mainstem_storage_tenant_fetched_bytes_total"] == (label, 30)


def test_the_audit_names_the_client_and_the_node_that_asked() -> None:
    clock = FakeClock()
    clients = made(Metadata(), clock)
    an = ForwardedClient("User:an", "10.0.0.1")
    clients.changed(an, 3, "Topics", None)  # there is no audit: nothing happens
    clients.audit = AuditLog(AuditConfig(enabled=True, events=("forwarded",)), clock)
    clients.changed(an, 3, "Topics", None)
    clients.changed(an, 3, "Acls", "no room")
    told = [msgspec.json.decode(record.content, type=dict[str, Any]) for record in clients.audit.take()]
    seen = [SimpleNamespace(**each) for each in told]
    assert [(it.event, it.principal, it.host, it.operation, it.outcome, it.detail) for it in seen] == [
        ("forwarded", "User:an", "10.0.0.1", "Topics", "allowed", "asked by node 3"),
        ("forwarded", "User:an", "10.0.0.1", "Acls", "denied", "asked by node 3: no room"),
    ]
