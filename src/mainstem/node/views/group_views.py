"""Views of the lag of groups."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from mainstem.broker.errors import CoordinatorRefusal
from mainstem.broker.group_lag.group_lags import GroupLags
from mainstem.broker.group_lag.lag_sampler import LagSampler
from mainstem.console.views.of_groups import GroupLagsView, WorstPartitionView
from mainstem.group_lag import GroupLag
from mainstem.protocol.error_codes import ErrorCode

PARTITIONS_SHOWN = 10
"""Of each of the worst groups; the view of one group has them all."""


class NodeGroupViews:
    """One group of the cluster, or those that this node coordinates."""

    def __init__(self, lags: GroupLags, sampler: LagSampler, cluster_id: Callable[[], str]) -> None:
        self._lags = lags
        self._sampler = sampler
        self._cluster_id = cluster_id

    async def lags(self) -> GroupLagsView:
        found = self._sampler.findings
        if found is None:
            return GroupLagsView(looked=False)
        return GroupLagsView(
            looked=True,
            look_seconds=found.seconds,
            groups_count=found.groups,
            behind_count=found.behind,
            lag=found.lag,
            offsets_unknown=found.unknown,
            worst=[
                msgspec.structs.replace(group, partitions=group.partitions[:PARTITIONS_SHOWN]) for group in found.worst
            ],
            worst_partitions=[
                WorstPartitionView(group=each.group, topic=each.topic, partition=each.partition, lag=each.lag)
                for each in found.worst_partitions
            ],
        )

    async def lag(self, group_id: str) -> GroupLag | str | None:
        try:
            found = await self._lags.of_group(group_id)
        except CoordinatorRefusal as refusal:
            if refusal.code is ErrorCode.GROUP_ID_NOT_FOUND:
                return None
            return f"the coordinator of group {group_id} cannot tell now: {refusal.code.name}; ask again"
        return msgspec.structs.replace(found, cluster_id=self._cluster_id())
