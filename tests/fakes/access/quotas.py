"""Quotas in memory: `QuotaAdmin` over a table, every change of which is there at once."""

from __future__ import annotations

from collections.abc import Sequence

from mainstem.errors import MainstemError
from mainstem.security.quotas.quota_admin import QuotaAdmin, QuotaChange
from mainstem.security.quotas.quota_table import QuotaTable


class MemoryQuotas(QuotaAdmin):
    """Tests may set `refuse` (what every call raises until it is None again)."""

    def __init__(self) -> None:
        self.table = QuotaTable()
        self.refuse: Exception | None = None

    async def quotas(self) -> QuotaTable:
        self._refuse()
        return self.table

    async def change_quotas(self, changes: Sequence[QuotaChange]) -> list[MainstemError | None]:
        self._refuse()
        for change in changes:
            self.table.change(*change)
        return [None] * len(changes)

    def _refuse(self) -> None:
        if self.refuse is not None:
            raise self.refuse
