"""The broker changes what clients may do, how much of it, and how they show who they are through its own node, as it
changes topics: a call returns once this node has applied the change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from mainstem.errors import MainstemError
from mainstem.model import ScramChange, ScramCredential, ScramMechanism
from mainstem.nameserver.errors import NameserverError
from mainstem.nameserver.lookups import MetadataLookups
from mainstem.nameserver.requests import Requests
from mainstem.rpc.messages.metadata import (
    WantAclRemovals,
    WantAcls,
    WantCredentials,
    WantedAcl,
    WantedCredential,
    WantedQuotas,
    WantQuotas,
)
from mainstem.security.acls.acl import Acl
from mainstem.security.quotas.quota_admin import QuotaChange
from mainstem.security.quotas.quota_table import QuotaTable

RULES_TOGETHER_MAX = 250
"""Rules of one change, which is one log entry: with texts of the greatest length it has three MB."""

ENTITIES_TOGETHER_MAX = 250
"""Entities of one change: with the longest names it has less than 2 MB."""

CREDENTIALS_TOGETHER_MAX = 500
"""Credentials of one change: with the longest names and salts it has less than half a MB."""

SECRET_BYTES = 32

T = TypeVar("T")


async def _changed(
    requests: Requests, wanted: Sequence[T], together_max: int, want: Callable[[Sequence[T]], Any]
) -> list[MainstemError | None]:
    """Have changes made, so many of them in one log entry. One outcome each: None, or why it is refused."""
    outcomes: list[MainstemError | None] = []
    for first in range(0, len(wanted), together_max):
        outcome = await requests.change(want(wanted[first : first + together_max]))
        outcomes += [item if isinstance(item, NameserverError) else None for item in outcome.items]
    return outcomes


class AclAdministration:
    """Implements `AclAdmin`. `current`: waits until this node has applied all that was committed before the call."""

    def __init__(self, requests: Requests, current: Callable[[], Awaitable[None]]) -> None:
        self._requests = requests
        self._current = current

    async def current(self) -> None:
        await self._current()

    async def add_acls(self, acls: Sequence[Acl]) -> list[MainstemError | None]:
        return await self._change(WantAcls, acls)

    async def remove_acls(self, acls: Sequence[Acl]) -> list[MainstemError | None]:
        return await self._change(WantAclRemovals, acls)

    async def _change(self, want: type[WantAcls | WantAclRemovals], acls: Sequence[Acl]) -> list[MainstemError | None]:
        return await _changed(
            self._requests, acls, RULES_TOGETHER_MAX, lambda part: want([WantedAcl(*acl) for acl in part])
        )


class QuotaAdministration:
    """Implements `QuotaAdmin`. `current`: waits until this node has applied all that was committed before the call."""

    def __init__(self, lookups: MetadataLookups, requests: Requests, current: Callable[[], Awaitable[None]]) -> None:
        self._lookups = lookups
        self._requests = requests
        self._current = current

    async def quotas(self) -> QuotaTable:
        await self._current()
        return self._lookups.quotas()

    async def change_quotas(self, changes: Sequence[QuotaChange]) -> list[MainstemError | None]:
        return await _changed(
            self._requests,
            changes,
            ENTITIES_TOGETHER_MAX,
            lambda part: WantQuotas([WantedQuotas(list(each.entity), dict(each.changes)) for each in part]),
        )


class MetadataCredentials:
    """Implements `ports.Credentials`: has the metadata leader make changes, and returns once this node has applied
    them. `random_bytes`: unpredictable ones, as many as asked for."""

    def __init__(self, lookups: MetadataLookups, requests: Requests, random_bytes: Callable[[int], bytes]) -> None:
        self._requests = requests
        self._lookups = lookups
        self._random_bytes = random_bytes

    def scram_credential(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        return self._lookups.scram_credential(user, mechanism)

    def scram_users(self) -> Mapping[str, Sequence[ScramCredential]]:
        return self._lookups.scram_users()

    def absent_users_secret(self) -> bytes:
        return self._lookups.absent_users_secret()

    async def change_scram(self, changes: Sequence[ScramChange], *, first: bool = False) -> list[MainstemError | None]:
        return await _changed(
            self._requests,
            changes,
            CREDENTIALS_TOGETHER_MAX,
            lambda part: WantCredentials([_wanted(change) for change in part], self._random_bytes(SECRET_BYTES), first),
        )


def _wanted(change: ScramChange) -> WantedCredential:
    user, mechanism, kept = change
    if kept is None:
        return WantedCredential(user, mechanism.value)
    return WantedCredential(user, mechanism.value, kept.salt, kept.iterations, kept.stored_key, kept.server_key)
