"""Views of the lag of groups."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mainstem.group_lag import GroupLag


class WorstPartitionView(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    topic: str
    partition: int
    lag: int


class GroupLagsView(msgspec.Struct, frozen=True, kw_only=True):
    """Of the groups that a node coordinates, as of its last look at all of them."""

    looked: bool
    """False: no look has come to its end yet, or `groups.lag_interval_ms` is 0; all else is empty then."""
    look_seconds: float = 0.0
    """For how long the node looked."""
    groups_count: int = 0
    """Groups with committed offsets."""
    behind_count: int = 0
    lag: int = 0
    """Of all of them, in messages."""
    offsets_unknown: int = 0
    """Committed offsets of partitions whose end the node does not know."""
    worst: Sequence[GroupLag] = ()
    """The groups with the greatest lag, `groups.lag_series_max` at most, with ten partitions each at most."""
    worst_partitions: Sequence[WorstPartitionView] = ()
