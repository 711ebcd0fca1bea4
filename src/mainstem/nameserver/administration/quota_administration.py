"""The broker changes quotas through its own node, as it changes access rules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from mainstem.errors import MainstemError
from mainstem.nameserver.errors import NameserverError
from mainstem.nameserver.lookups import MetadataLookups
from mainstem.nameserver.requests import Requests
from mainstem.rpc.messages.metadata import WantedQuotas, WantQuotas
from mainstem.security.quotas.quota_admin import QuotaChange
from mainstem.security.quotas.quota_table import QuotaTable

ENTITIES_TOGETHER_MAX = 250
"""Entities of one change, which is one log entry: with the longest names it has less than 2 MB."""


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
        outcomes: list[MainstemError | None] = []
        for first in range(0, len(changes), ENTITIES_TOGETHER_MAX):
            part = [
                WantedQuotas(list(each.entity), dict(each.changes))
                for each in changes[first : first + ENTITIES_TOGETHER_MAX]
            ]
            outcome = await self._requests.change(WantQuotas(part))
            outcomes += [item if isinstance(item, NameserverError) else None for item in outcome.items]
        return outcomes
