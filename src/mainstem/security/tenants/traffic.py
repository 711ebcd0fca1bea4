"""The bytes that the users of each tenant have produced to a node, and fetched from it, since it started."""

from __future__ import annotations

from collections.abc import Iterable

from mainstem.model import Sample
from mainstem.security.tenants.tenant_table import TenantTable

LABELS_MAX = 100
"""Tenants with samples of their own, the first that brought traffic; the others are summed: whoever collects metrics
pays for each label."""
OTHERS = "(others)"


class Traffic:
    """Bytes of Produce requests, and of batches in Fetch responses. The code that charges a client adds to them."""

    __slots__ = ("fetched_bytes", "produced_bytes")

    def __init__(self) -> None:
        self.produced_bytes = 0
        self.fetched_bytes = 0


class TenantTraffic:
    def __init__(self, metric: str = "mainstem_tenant") -> None:
        """`metric`: what the names of its counters begin with."""
        self._metric = metric
        self._by_name: dict[str, Traffic] = {}
        self._labelled: dict[str, Traffic] = {}
        self._others = Traffic()
        """Of tenants without a label that are gone: counters do not go back."""

    def __len__(self) -> int:
        return len(self._by_name)

    def of(self, tenant: str, table: TenantTable) -> Traffic:
        """The tenant's counts. Those of tenants that are gone go when there are more of them than of others."""
        found = self._by_name.get(tenant)
        if found is not None:
            return found
        if len(self._by_name) > 2 * len(table):
            self._forget(table)
        found = self._by_name[tenant] = self._labelled.get(tenant) or Traffic()
        if len(self._labelled) < LABELS_MAX:
            self._labelled[tenant] = found
        return found

    def seen(self, tenant: str) -> Traffic:
        """The same, to be read alone."""
        return self._by_name.get(tenant, _NONE)

    def samples(self) -> Iterable[Sample]:
        others = [it for name, it in self._by_name.items() if name not in self._labelled]
        told = [*self._labelled.items()]
        if others or self._others.produced_bytes or self._others.fetched_bytes:
            sum_ = Traffic()
            for each in (*others, self._others):
                sum_.produced_bytes += each.produced_bytes
                sum_.fetched_bytes += each.fetched_bytes
            told.append((OTHERS, sum_))
        for name, each in told:
            labels = (("tenant", name),)
            yield Sample(
                f"{self._metric}_produced_bytes_total", "counter", "Bytes of Produce requests of a tenant's users.",
                each.produced_bytes, labels, names_users=True,
            )  # fmt: skip
            yield Sample(
                f"{self._metric}_fetched_bytes_total", "counter", "Bytes of batches sent to a tenant's users.",
                each.fetched_bytes, labels, names_users=True,
            )  # fmt: skip

    def _forget(self, table: TenantTable) -> None:
        for name in [name for name in self._by_name if table.named(name) is None]:
            gone = self._by_name.pop(name)
            if name not in self._labelled:
                self._others.produced_bytes += gone.produced_bytes
                self._others.fetched_bytes += gone.fetched_bytes


_NONE = Traffic()
