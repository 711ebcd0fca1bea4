"""All quotas of a cluster, and which of them is in force for whom. No I/O; whoever changes the table has logged the
change before.

`version` is another object after every change: whoever keeps answers keeps it with them, and compares by identity.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from mainstem.security.quotas.quota import CLIENT_ID, IP, TENANT, USER, Entity

ENTITIES_MAX = 100_000
"""Entities of a cluster that have quotas. Each takes about half a kilobyte."""


class InForce(NamedTuple):
    """A quota that somebody is under. All who are under the same quota `of` the same entity share it."""

    of: Entity
    per_second: float


class QuotaTable:
    def __init__(self) -> None:
        self._quotas: dict[Entity, dict[str, float]] = {}
        self.version = object()

    def __len__(self) -> int:
        """How many entities have quotas."""
        return len(self._quotas)

    def __iter__(self) -> Iterator[tuple[Entity, Mapping[str, float]]]:
        """The quotas of each entity. Copy them before an await."""
        return iter(self._quotas.items())

    def __contains__(self, entity: Entity) -> bool:
        return entity in self._quotas

    def of(self, entity: Entity) -> Mapping[str, float]:
        return self._quotas.get(entity, {})

    def change(self, entity: Entity, changes: Mapping[str, float | None]) -> None:
        """Set quotas (value) and remove them (None)."""
        kept = {**self._quotas.get(entity, {}), **changes}
        values = {key: value for key, value in kept.items() if value is not None}
        if values:
            self._quotas[entity] = values
        else:
            self._quotas.pop(entity, None)
        self.version = object()

    def of_client(self, key: str, user: str, client_id: str) -> InForce | None:
        """The quota that a client is under, by Kafka's precedence: what names the user and the client id comes before
        what names the user, that before the defaults of users, and all of these before quotas of client ids alone.
        None: there is none."""
        both: Entity = ((CLIENT_ID, client_id), (USER, user))
        its_user: Entity = ((USER, user),)
        its_id: Entity = ((CLIENT_ID, client_id),)
        by_precedence: tuple[tuple[Entity, Entity], ...] = (
            (both, both),
            (((CLIENT_ID, None), (USER, user)), both),
            (its_user, its_user),
            (((CLIENT_ID, client_id), (USER, None)), both),
            (((CLIENT_ID, None), (USER, None)), both),
            (((USER, None),), its_user),
            (its_id, its_id),
            (((CLIENT_ID, None),), its_id),
        )
        for named, of in by_precedence:
            if (value := self._quotas.get(named, {}).get(key)) is not None:
                return InForce(of, value)
        return None

    def of_address(self, key: str, ip: str) -> InForce | None:
        """The quota that an address is under: its own, or the default of addresses."""
        return self._of_one(key, IP, ip)

    def of_tenant(self, key: str, tenant: str) -> InForce | None:
        """The quota that all users of a tenant are under together: its own, or the default of tenants."""
        return self._of_one(key, TENANT, tenant)

    def _of_one(self, key: str, kind: str, name: str) -> InForce | None:
        own: Entity = ((kind, name),)
        for named in (own, ((kind, None),)):
            if (value := self._quotas.get(named, {}).get(key)) is not None:
                return InForce(own, value)
        return None
