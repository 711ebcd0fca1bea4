"""All tenants of a cluster, and whose a name is: the tenant's with the longest prefix that the name begins with. No
I/O; whoever changes the table has logged the change before."""

from __future__ import annotations

from collections.abc import Iterator

from mainstem.security.tenants.tenant import Tenant

TENANTS_MAX = 10_000
"""With few users each takes about half a kilobyte."""
NAMES_KEPT_MAX = 100_000
"""Names whose owners are remembered, about 20 MB. Clients make names up: when it is full all are forgotten."""


class TenantTable:
    def __init__(self) -> None:
        self._by_name: dict[str, Tenant] = {}
        self._by_prefix: dict[str, Tenant] = {}
        self._lengths: tuple[int, ...] = ()  # of the prefixes, the longest first
        self._owners: dict[str, Tenant | None] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Tenant]:
        """Copy them before an await."""
        return iter(self._by_name.values())

    def named(self, name: str) -> Tenant | None:
        return self._by_name.get(name)

    def with_prefix(self, prefix: str) -> Tenant | None:
        return self._by_prefix.get(prefix)

    def owner(self, name: str) -> Tenant | None:
        """Whose a topic, consumer group or transactional id of this name is; None: nobody's."""
        if not self._by_prefix:
            return None
        try:
            return self._owners[name]
        except KeyError:
            found = (self._by_prefix.get(name[:length]) for length in self._lengths if length <= len(name))
            owner = next((tenant for tenant in found if tenant is not None), None)
        if len(self._owners) >= NAMES_KEPT_MAX:
            self._owners.clear()
        self._owners[name] = owner
        return owner

    def set(self, tenant: Tenant) -> None:
        before = self._by_name.get(tenant.name)
        if before is not None:
            del self._by_prefix[before.prefix]
        self._by_name[tenant.name] = self._by_prefix[tenant.prefix] = tenant
        self._forget()

    def remove(self, name: str) -> None:
        if (before := self._by_name.pop(name, None)) is not None:
            del self._by_prefix[before.prefix]
            self._forget()

    def _forget(self) -> None:
        self._lengths = tuple(sorted({len(prefix) for prefix in self._by_prefix}, reverse=True))
        self._owners.clear()
