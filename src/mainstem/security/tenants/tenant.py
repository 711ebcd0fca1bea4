"""A tenant: everything of a cluster whose name begins with one prefix, and what its owner may have of it. No I/O."""

from __future__ import annotations

import re
from typing import NamedTuple

from mainstem.security.acls.acl import WILDCARD, Acl, Operation, PatternType, Permission, ResourceKind

NAME_LENGTH_MAX = 200
"""Of a name or a prefix: topics have 249 characters, and some have to be left to the tenant."""
USERS_MAX = 100
"""Each takes three access rules."""
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")
_KINDS = (ResourceKind.TOPIC, ResourceKind.GROUP, ResourceKind.TRANSACTIONAL_ID)


class Tenant(NamedTuple):
    """`users` may do everything with topics, consumer groups and transactional ids of the prefix. None: no ceiling."""

    name: str
    prefix: str
    retention_ms_max: int | None = None
    queues_max: int | None = None
    users: tuple[str, ...] = ()

    def rules(self) -> list[Acl]:
        """The access rules that come and go with the tenant."""
        return [
            Acl(kind, self.prefix, PatternType.PREFIXED, f"User:{user}", WILDCARD, Operation.ALL, Permission.ALLOW)
            for user in self.users
            for kind in _KINDS
        ]


def fault_of_tenant(tenant: Tenant) -> str | None:
    """The error in a tenant that somebody wants to set; None: there is none."""
    for what, text in (("name", tenant.name), ("prefix", tenant.prefix)):
        if len(text) > NAME_LENGTH_MAX or _LEGAL.fullmatch(text) is None:
            return (
                f"a tenant's {what} has 1 to {NAME_LENGTH_MAX} ASCII letters, digits, '.', '_' and '-', "
                f"not {text[:40]!r}"
            )
    if tenant.prefix.startswith("__") or tenant.prefix == "_":
        return f"the prefix {tenant.prefix!r} would take in topics of the cluster itself, which begin with '__'"
    for what, ceiling in (("retention.ms", tenant.retention_ms_max), ("number of queues", tenant.queues_max)):
        if ceiling is not None and not 1 <= ceiling < 2**63:
            return f"the ceiling of the {what} is at least 1 and below 2^63, not {ceiling}"
    if len(tenant.users) > USERS_MAX or len(set(tenant.users)) < len(tenant.users):
        return f"a tenant has at most {USERS_MAX} users, each named once: give a group of people one user"
    if not all(0 < len(user) <= NAME_LENGTH_MAX and user != WILDCARD for user in tenant.users):
        return f"a user's name has 1 to {NAME_LENGTH_MAX} characters, and is not '*'"
    return None
