"""The features of Kafka that the cluster has, as ApiVersions tells them and UpdateFeatures raises them.

A cluster agrees on one number, its feature level; what Kafka knows as features with a version each follows from that.
`FEATURES` is the one table of it: a row says from which level on the cluster is at which version of a feature. Kafka's
tools raise a feature; here the cluster goes to the lowest level at which it has that version, and with it to the
versions of the other features there. Nothing goes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from mainstem.model import OWN_LEVELS, FeatureLevel

LEVEL = "mainstem.level"
"""The feature level itself, beside Kafka's features."""


class Feature(NamedTuple):
    name: str
    since: Mapping[FeatureLevel, int]
    """The version of the feature from a level on."""
    oldest: int = 0
    """The oldest version that Kafka has of it, where that is not 0, which stands for none."""

    @property
    def newest(self) -> int:
        return self.at(OWN_LEVELS.newest)

    def at(self, level: int) -> int:
        """The version in a cluster of that level."""
        return max((version for since, version in self.since.items() if since <= level), default=0)

    def level_of(self, version: int) -> int | None:
        """The lowest level at which the cluster is at this version; None: it never is."""
        return min((since for since, at in self.since.items() if at == version), default=None)


FEATURES: Mapping[str, Feature] = MappingProxyType(
    {
        feature.name: feature
        for feature in (
            Feature(LEVEL, {level: int(level) for level in FeatureLevel}, int(OWN_LEVELS.oldest)),
            # 4.0-IV3 and 4.3-IV0: Kafka's tools ask for a release by its number here
            Feature("metadata.version", {FeatureLevel.FIRST: 25, FeatureLevel.TRANSACTIONAL: 30}, 7),
            Feature("group.version", {FeatureLevel.FIRST: 1}),
            # 2: the node takes partitions into the transactions of producers by itself (KIP-890)
            Feature("transaction.version", {FeatureLevel.TRANSACTIONAL: 2}),
            Feature("share.version", {FeatureLevel.FIRST: 1}),
            Feature("streams.version", {FeatureLevel.FIRST: 1}),
            # a replica that has all that was acknowledged may lead: that is how write groups elect
            Feature("eligible.leader.replicas.version", {FeatureLevel.FIRST: 1}),
            # voters may change, by `mainstem cluster replace`; the features of every release since 4.1 have it
            Feature("kraft.version", {FeatureLevel.FIRST: 1}),
        )
    }
)
"""By name."""
