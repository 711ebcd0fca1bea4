"""All tenants of a cluster, whose a name is, and whose a user is. No I/O; whoever changes the table has logged the
change before.

A name is the tenant's with the longest prefix that the name begins with. A binary search finds the last prefix that is
not behind the name; the owner is that one's, or that of a prefix around it, which each prefix knows.

`version` is another object after every change: whoever keeps answers keeps it with them, and compares by identity.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator

from mainstem.security.tenants.tenant import Tenant

TENANTS_MAX = 10_000
"""With few users each takes about half a kilobyte."""


class TenantTable:
    def __init__(self) -> None:
        self._by_name: dict[str, Tenant] = {}
        self._by_prefix: dict[str, Tenant] = {}
        self._sorted: list[str] = []  # the prefixes
        self._around: dict[str, str] | None = None
        """By prefix the longest other one that it begins with, where there is one; None: to be found out."""
        self._of_users: dict[str, list[str]] = {}  # by user the names of its tenants, sorted
        self.version = object()

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
        place = bisect_right(self._sorted, name)
        prefix = self._sorted[place - 1] if place else None
        while prefix is not None and not name.startswith(prefix):
            prefix = self._enclosing().get(prefix)
        return None if prefix is None else self._by_prefix[prefix]

    def of_user(self, user: str) -> Tenant | None:
        """Whose a user is; of several tenants' the first by name. None: nobody's."""
        names = self._of_users.get(user)
        return None if names is None else self._by_name[names[0]]

    def set(self, tenant: Tenant) -> None:
        self._drop(tenant.name)
        self._by_name[tenant.name] = self._by_prefix[tenant.prefix] = tenant
        insort(self._sorted, tenant.prefix)
        for user in tenant.users:
            insort(self._of_users.setdefault(user, []), tenant.name)
        self._changed()

    def remove(self, name: str) -> None:
        self._drop(name)
        self._changed()

    def _drop(self, name: str) -> None:
        if (before := self._by_name.pop(name, None)) is None:
            return
        del self._by_prefix[before.prefix]
        del self._sorted[bisect_right(self._sorted, before.prefix) - 1]
        for user in before.users:
            self._of_users[user].remove(name)
            if not self._of_users[user]:
                del self._of_users[user]

    def _changed(self) -> None:
        self._around = None
        self.version = object()

    def _enclosing(self) -> dict[str, str]:
        """Found out once after a change, in one pass over the sorted prefixes."""
        if self._around is None:
            self._around, open_ = {}, list[str]()
            for prefix in self._sorted:
                while open_ and not prefix.startswith(open_[-1]):
                    open_.pop()
                if open_:
                    self._around[prefix] = open_[-1]
                open_.append(prefix)
        return self._around
