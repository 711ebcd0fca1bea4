"""The settings of quotas. The quotas themselves are in the metadata."""

from __future__ import annotations

import msgspec


class QuotaConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How clients are held to their quotas. `validate` has nothing to refuse."""

    cluster_wide: bool = False
    """Whether `producer_byte_rate` and `consumer_byte_rate` are what clients get of all nodes together. Otherwise each
    node gives them as much, as in Kafka. The same on all nodes."""

    def validate(self) -> None:
        return
