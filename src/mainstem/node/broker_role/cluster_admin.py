"""`ClusterAdmin` of a node: what Kafka's tools and the console have changed of the cluster as a whole."""

from __future__ import annotations

from mainstem.nameserver.errors import FeatureLevelNotReady, InvalidPlacement
from mainstem.nameserver.nameserver import Nameserver
from mainstem.nameserver.state.commands import RemoveNode
from mainstem.nameserver.state.plans.drain_plan import left_on
from mainstem.node.node_reports import NodeReports


class NodeClusterAdmin:
    """Implements `ports.ClusterAdmin`."""

    def __init__(self, nameserver: Nameserver, reports: NodeReports) -> None:
        self._nameserver = nameserver
        self._reports = reports

    @property
    def feature_level(self) -> int:
        return self._nameserver.lookups.feature_level

    @property
    def version(self) -> int:
        return self._nameserver.lookups.version

    async def raise_feature_level(self, level: int, *, validate_only: bool = False) -> None:
        """Raises `FeatureLevelNotReady`, `MetadataUnavailable`."""
        nameserver = self._nameserver
        reports = await self._reports.of([node.node_id for node in nameserver.lookups.nodes()])
        for node_id, report in reports.items():  # first, since an old leader would not understand the call
            if report is not None and report.level_newest < level:
                raise FeatureLevelNotReady(
                    f"feature level {level} must wait: node {node_id} reads those up to {report.level_newest}"
                )
        if not validate_only:
            await nameserver.operations.raise_feature_level(level)

    async def remove_node(self, node_id: int) -> None:
        """Raises `InvalidPlacement`, `FeatureLevelTooLow`, `MetadataUnavailable`."""
        nameserver = self._nameserver
        if nameserver.others is None:
            raise InvalidPlacement("this node is a cluster of its own: there is no other node to remove")
        lookups = nameserver.lookups
        standings = await self._reports.standings([node.node_id for node in lookups.nodes() if node.stores])
        nameserver.replica.state.check(RemoveNode(node_id))
        if left := left_on(node_id, lookups.placements(), standings):
            silent = "" if left[0] in standings else ", whose leader does not answer"
            raise InvalidPlacement(
                f"node {node_id} may still hold something of write group {left[0]}{silent}: try again later"
            )
        await nameserver.operations.remove_node(node_id)
