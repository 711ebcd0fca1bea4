"""The commands that the leader logs when a tenant is made, changed or removed: the tenant itself first, then the access
rules of its users and its quotas, in one entry of the log or not at all. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec import UNSET

from mainstem.nameserver.errors import InvalidTenant
from mainstem.nameserver.state.commands import AddAcl, ChangeQuotas, Command, RemoveAcl, RemoveTenant, SetTenant
from mainstem.nameserver.state.state import MetadataState
from mainstem.rpc.messages.metadata import WantTenant
from mainstem.security.acls.acl import Acl
from mainstem.security.quotas.quota import TENANT, Entity
from mainstem.security.tenants.tenant import USERS_MAX, Tenant

Maker = Callable[[int], Command]
"""Makes a command from the number of items accepted before it."""

CREATE, REPLACE, ALTER = "create", "replace", "alter"


def setting_of(wanted: WantTenant, state: MetadataState) -> list[Maker]:
    """Sets a tenant, gives its users their rules, and takes those of before away; nothing if it is refused."""
    before = state.tenant_rules.table.named(wanted.name)
    tenant = _wanted(wanted, before)
    if len(tenant.users) > USERS_MAX:
        return [lambda _: _set_tenant(tenant)]
    quotas = _quotas(wanted, state)
    new, old = tenant.rules(), before.rules() if before is not None else []
    makers: list[Maker] = [lambda _: _checked(wanted, before, tenant, quotas, state)]
    makers += [partial(_with_tenant, AddAcl(*acl)) for acl in new]
    makers += [partial(_with_tenant, RemoveAcl(*acl)) for acl in old if acl not in new]
    return makers + [partial(_with_tenant, change) for change in quotas]


def removal_of(name: str, state: MetadataState) -> list[Maker]:
    """Removes a tenant with the rules of its users and its quotas."""
    before = state.tenant_rules.table.named(name)
    rules: list[Acl] = before.rules() if before is not None else []
    kept = state.quota_table.of(_entity(name))
    gone = [ChangeQuotas([*_entity(name)], dict.fromkeys(kept))] if kept else []
    return [
        lambda _: _remove_tenant(name, before),
        *(partial(_with_tenant, RemoveAcl(*acl)) for acl in rules),
        *(partial(_with_tenant, change) for change in gone),
    ]


def _wanted(wanted: WantTenant, before: Tenant | None) -> Tenant:
    """The tenant as it will be: what is not said stays as it was, or is what a new one has."""
    base = before if before is not None and wanted.how == ALTER else Tenant(wanted.name, "")
    prefix, retention, queues, users = wanted.prefix, wanted.retention_ms_max, wanted.queues_max, wanted.users
    return Tenant(
        wanted.name,
        base.prefix if prefix is UNSET else prefix,
        base.retention_ms_max if retention is UNSET else retention,
        base.queues_max if queues is UNSET else queues,
        base.users if users is UNSET else tuple(users),
    )


def _quotas(wanted: WantTenant, state: MetadataState) -> list[ChangeQuotas]:
    """At most one command. A tenant that is replaced loses the quotas that are not said."""
    changes: dict[str, float | None] = {}
    if wanted.how != ALTER:
        changes.update(dict.fromkeys(state.quota_table.of(_entity(wanted.name))))
    changes.update(wanted.quotas)
    return [ChangeQuotas([*_entity(wanted.name)], changes)] if changes else []


def _entity(name: str) -> Entity:
    return ((TENANT, name),)


def _checked(
    wanted: WantTenant, before: Tenant | None, tenant: Tenant, quotas: list[ChangeQuotas], state: MetadataState
) -> Command:
    """The first command. Raises for whatever a later one would be refused for as well."""
    if wanted.how == CREATE and before is not None:
        raise InvalidTenant(
            f"there is a tenant {before.name!r} already, with the prefix {before.prefix!r}: alter it, or say that this "
            "replaces it"
        )
    if wanted.how == ALTER and before is None:
        raise InvalidTenant(f"there is no tenant {wanted.name[:260]!r}: create it")
    if wanted.how not in (CREATE, REPLACE, ALTER):
        raise InvalidTenant(f"a tenant is created, replaced or altered, not {wanted.how!r}")
    for change in quotas:
        state.check(change)
    return _set_tenant(tenant)


def _set_tenant(tenant: Tenant) -> Command:
    name, prefix, retention_ms_max, queues_max, users = tenant
    return SetTenant(name, prefix, retention_ms_max, queues_max, list(users))


def _remove_tenant(name: str, before: Tenant | None) -> Command:
    if before is None:
        raise InvalidTenant(f"there is no tenant {name[:260]!r}")
    return RemoveTenant(name)


def _with_tenant(command: Command, accepted: int) -> Command:
    """A command about a tenant, which is the first item."""
    if accepted == 0:
        raise InvalidTenant("the tenant was refused")
    return command
