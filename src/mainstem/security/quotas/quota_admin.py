"""The seam between the broker, which is asked to change quotas, and the metadata, which has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from mainstem.errors import MainstemError
from mainstem.security.quotas.quota import Entity
from mainstem.security.quotas.quota_table import QuotaTable


class QuotaChange(NamedTuple):
    """Quotas of one entity: by key the new value, None to remove it."""

    entity: Entity
    changes: Mapping[str, float | None]


class QuotaAdmin(Protocol):
    async def quotas(self) -> QuotaTable:
        """All quotas, with the changes made before the call. Copy them before an await."""
        ...

    async def change_quotas(self, changes: Sequence[QuotaChange]) -> list[MainstemError | None]:
        """Change quotas, durably when it returns. One entry per entity, in their order: None, or why its changes are
        refused, all of them. Raises a `nameserver` error that refuses everything."""
        ...
