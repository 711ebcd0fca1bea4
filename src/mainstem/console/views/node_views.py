"""The port through which the console asks a node for its views, and for changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from mainstem.console.views.asked_changes import GiveUpRequest, TenantRequest
from mainstem.console.views.of_cluster import BalanceView, ClusterView
from mainstem.console.views.of_explanation import ExplanationView
from mainstem.console.views.of_groups import GroupLagsView
from mainstem.console.views.of_split import SplitEndpoint, SplitView
from mainstem.console.views.of_store import GiveUpView, RetainedView, StoreUsageView, StoreView
from mainstem.console.views.of_tenants import TenantUsageView, TenantView
from mainstem.console.views.of_topics import TopicSummary, TopicView
from mainstem.group_lag import GroupLag


class Health(Protocol):
    """Whether the node should be restarted, and whether it should get traffic."""

    def not_alive(self) -> str | None:
        """Why the node's process should be restarted; None while it does its work."""
        ...

    def not_ready(self) -> str | None:
        """Why the node should get no traffic, yet or any more; None when it is ready."""
        ...

    def waiting(self) -> dict[int, str]:
        """Write groups in which this node takes no part because their blocks cannot be read, and why; it gets
        traffic all the same, for the others."""
        ...


class ClusterViews(Protocol):
    """The cluster's nodes and write groups, and changes of these."""

    async def cluster(self) -> ClusterView: ...

    async def transfer_leader(self, group: int, to: int) -> str | None:
        """Have another node lead a write group. Returns why that cannot be, or None when it is under way."""
        ...

    async def raise_feature_level(self, level: int) -> str | None:
        """Have the cluster write what programs of this level read. Returns why that cannot be, or None when
        it is done."""
        ...

    async def replace_node(self, old: int, new: int) -> str | None:
        """Have every replica of one node move to another. Returns why that cannot be, or None when it is
        under way."""
        ...

    async def drain_node(self, node_id: int, *, cancel: bool) -> str | None:
        """Have a node give away all that it holds, or stop that. Returns why that cannot be, or None when it is
        noted."""
        ...

    async def add_write_groups(self, total: int, replication_factor: int | None) -> str | None:
        """Have the cluster come to so many write groups, the new ones with so many replicas (None: as the first ones).
        Returns why that cannot be, or None when they are about to
        begin."""
        ...

    async def move_queue(self, topic: str, partition: int, group: int | None) -> str | None:
        """Have the slot of a partition move to another write group, with all queues that hash to it; None: take such a
        move back. Returns why that cannot be, or None when it is noted."""
        ...

    async def rebalance(self, *, dry_run: bool) -> BalanceView | str:
        """Begin those moves of replicas towards even nodes that may begin now. Returns why that cannot be, or what is
        left to do."""
        ...

    async def remove_node(self, node_id: int) -> str | None:
        """Take an empty, dead node out of the cluster. Returns why that cannot be, or None when it is done."""
        ...


class Explanations(Protocol):
    """Why something is where it is. None: there is no such thing."""

    async def node(self, node_id: int) -> ExplanationView | None: ...

    async def write_group(self, group: int) -> ExplanationView | None: ...

    async def partition(self, topic: str, partition: int) -> ExplanationView | None: ...


class GroupViews(Protocol):
    """How far groups are behind."""

    async def lags(self) -> GroupLagsView: ...

    async def lag(self, group_id: str) -> GroupLag | str | None:
        """None: there is no such group; text: why nobody can tell now."""
        ...


class TopicViews(Protocol):
    """All topics, with what the node has of them."""

    async def topics(self) -> Sequence[TopicSummary]: ...

    async def topic(self, name: str) -> TopicView | None:
        """None for an unknown topic."""
        ...


class StoreViews(Protocol):
    """The node's split and its queue store."""

    async def split(self) -> SplitView: ...

    async def store(self) -> StoreView: ...

    async def retain(self) -> RetainedView | str:
        """Apply retention now. Returns why that cannot be, or what went."""
        ...

    async def give_up(self, request: GiveUpRequest) -> GiveUpView | str:
        """Give up files that are lost, or say what would be given up. Returns why that cannot be, or what it is."""
        ...

    async def store_usage(self, topic: str | None) -> StoreUsageView | None:
        """Of all topics, or of one; None when there is no such topic."""
        ...

    def split_endpoint(self) -> SplitEndpoint: ...


class TenantViews(Protocol):
    """The tenants of the cluster, and changes of these. A change returns why it cannot be, or None when it is done."""

    async def tenants(self) -> Sequence[TenantView]: ...

    async def usage(self, name: str | None) -> Sequence[TenantUsageView]:
        """Of all tenants, or of one; none when there is no such tenant."""
        ...

    async def set_tenant(self, wanted: TenantRequest) -> str | None: ...

    async def remove_tenant(self, name: str) -> str | None: ...


class NodeViews(NamedTuple):
    """Made by the node. Calls never block the event loop, and an empty node raises no errors."""

    health: Health
    cluster: ClusterViews
    topics: TopicViews
    store: StoreViews | None
    """None: the node has no storage."""
    tenants: TenantViews
    explanations: Explanations
    groups: GroupViews | None = None
    """None: the node is no broker."""
