"""A cluster that is changed as a whole, in memory."""

from __future__ import annotations

from mainstem.errors import MainstemError
from mainstem.model import FeatureLevel


class FakeClusterAdmin:
    """`ports.ClusterAdmin`. Tests may set `feature_level` and `refuse` (what every change raises); `removed` are the
    nodes that are gone."""

    def __init__(self, level: FeatureLevel = FeatureLevel.FIRST) -> None:
        self.feature_level: int = level
        self.version = 7
        self.removed: list[int] = []
        self.refuse: MainstemError | None = None

    async def raise_feature_level(self, level: int, *, validate_only: bool = False) -> None:
        if self.refuse is not None:
            raise self.refuse
        if not validate_only:
            self.feature_level = level
            self.version += 1

    async def remove_node(self, node_id: int) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.removed.append(node_id)
