"""The one fake of the node's views, and the node it shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from mainstem.console.views.asked_changes import GiveUpRequest, TenantRequest
from mainstem.console.views.node_views import NodeViews
from mainstem.console.views.of_cluster import (
    BalanceMoveView,
    BalanceView,
    ClusterView,
    DiskView,
    NodeView,
    WriteGroupView,
)
from mainstem.console.views.of_explanation import ExplanationView
from mainstem.console.views.of_split import (
    DamagedBlockView,
    DamagedFileView,
    DamagedProducersView,
    LeaseView,
    SplitEndpoint,
    SplitView,
    SplitWriteGroupView,
)
from mainstem.console.views.of_store import (
    CompactionsView,
    CompactionView,
    GiveUpView,
    LevelView,
    MergesView,
    MergeView,
    RemoteView,
    RemoteWriteGroupView,
    RetainedView,
    StoreUsageView,
    StoreView,
    StoreWriteGroupView,
    TopicUsageView,
    UsageLevelView,
)
from mainstem.console.views.of_tenants import TenantUsageView, TenantView
from mainstem.console.views.of_topics import FileView, PartitionView, SegmentView, TopicSummary, TopicView
from mainstem.node.views.explanations import (
    ExplainedCluster,
    ExplainedQueue,
    explain_node,
    explain_queue,
    explain_write_group,
)

FLIGHTS = TopicView(
    name="flights",
    topic_id="0b9d6a2e-7c5c-4c0e-9f3a-0d5f3f6f1a77",
    internal=False,
    configs={"retention.ms": "60000"},
    partitions=[
        PartitionView(
            partition=0,
            leader=1,
            leader_epoch=4,
            write_group=2,
            log_start=10,
            split_end=80,
            high_watermark=100,
            end=100,
            unsplit_bytes=2048,
            stored_bytes=1 << 20,
            files=[
                FileView(
                    name="runs/00000007.run",
                    kind="run",
                    file_bytes=3 << 20,
                    queue_bytes=1 << 20,
                    first_offset=10,
                    last_offset=79,
                    index_rows=3,
                )
            ],
            missing=[],
            segments=[
                SegmentView(
                    name="00000000000000000004.wal",
                    queue_bytes=2048,
                    first_offset=80,
                    last_offset=99,
                    index_rows=7,
                    indexed=False,
                )
            ],
        ),
        PartitionView(
            partition=1,
            leader=1,
            leader_epoch=4,
            write_group=0,
            log_start=0,
            split_end=0,
            high_watermark=5,
            end=5,
            unsplit_bytes=512,
            stored_bytes=0,
            files=[],
            segments=[],
            missing=[],
        ),
    ],
)


class FakeViews:
    """A node with one topic of two partitions; `reason` makes it unready, `error` makes `cluster` fail."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.dead: str | None = None
        self.error: Exception | None = None
        self.waits: dict[int, str] = {}
        self.feature_level = 1
        self.leader = 1
        """Of the one write group."""
        self.stores = True

    def all(self) -> NodeViews:
        return NodeViews(self, self, self, self if self.stores else None, self, self)

    def not_alive(self) -> str | None:
        return self.dead

    def not_ready(self) -> str | None:
        return self.reason

    def waiting(self) -> dict[int, str]:
        return self.waits

    async def cluster(self) -> ClusterView:
        if self.error is not None:
            raise self.error
        return ClusterView(
            cluster_id="J5p4kC1mQ0uYk3n2bqzX9A",
            nodes=[
                NodeView(
                    node_id=1,
                    host="127.0.0.1",
                    port=9092,
                    rpc="127.0.0.1:9093",
                    http="127.0.0.1:9080",
                    roles=("broker", "storage", "nameserver"),
                    version="0.1.0",
                    uptime_seconds=61.0,
                    level_newest=2,
                )
            ],
            write_groups=[WriteGroupView(group=0, leader=self.leader, term=3, committed=41)],
            write_disk=DiskView(path="/w", used_bytes=1 << 26, free_bytes=1 << 30, total_bytes=1 << 31),
            store_disk=None,
            topics=1,
            partitions=2,
            feature_level=self.feature_level,
            feature_level_newest=2,
        )

    async def raise_feature_level(self, level: int) -> str | None:
        if level > 2:
            return f"feature level {level} must wait: node 1 reads those up to 2"
        self.feature_level = level
        return None

    async def replace_node(self, old: int, new: int) -> str | None:
        return None

    async def drain_node(self, node_id: int, *, cancel: bool) -> str | None:
        return None

    async def rebalance(self, *, dry_run: bool) -> BalanceView | str:
        return BalanceView(moves=[BalanceMoveView(group=0, old=1, new=2, why="2 replicas there, 0 here")])

    async def node(self, node_id: int) -> ExplanationView | None:
        return explain_node(await self._known(), node_id)

    async def write_group(self, group: int) -> ExplanationView | None:
        return explain_write_group(await self._known(), group)

    async def partition(self, topic: str, partition: int) -> ExplanationView | None:
        if topic != FLIGHTS.name or partition >= len(FLIGHTS.partitions):
            return None
        return explain_queue(await self._known(), ExplainedQueue(topic, partition, 77, 0))

    async def _known(self) -> ExplainedCluster:
        return ExplainedCluster(await self.cluster(), [], None, unplanned="this node is a cluster of its own")

    async def add_write_groups(self, total: int, replication_factor: int | None) -> str | None:
        return None

    async def move_queue(self, topic: str, partition: int, group: int | None) -> str | None:
        return None

    async def remove_node(self, node_id: int) -> str | None:
        return None

    async def transfer_leader(self, group: int, to: int) -> str | None:
        if group > 0:
            return f"there is no write group {group}"
        self.leader = to
        return None

    async def topics(self) -> Sequence[TopicSummary]:
        return [
            TopicSummary(
                name=FLIGHTS.name,
                topic_id=FLIGHTS.topic_id,
                partitions=2,
                internal=False,
                unsplit_bytes=2560,
                stored_bytes=1 << 20,
            )
        ]

    async def topic(self, name: str) -> TopicView | None:
        return FLIGHTS if name == FLIGHTS.name else None

    async def split(self) -> SplitView:
        group = SplitWriteGroupView(
            committed=41,
            split=30,
            pruned=20,
            lag_bytes=4096,
            lag_seconds=1.5,
            files=2,
            waits_for="runs/7.run: 3 bytes have no room for header and footer",
        )
        return SplitView(
            groups={"0": group},
            splitter="running",
            lease=LeaseView(holder="embedded", fence=7, expires_in_seconds=9.0),
            last_error=None,
            last_progress={"batch_id": 4, "bytes": 1 << 20},
            damaged_blocks=[DamagedBlockView(group=0, block=31, fault="000003.wal at byte 4096", seconds=2.5)],
            damaged_producers=[DamagedProducersView(group=0, fault="producers/7.producers", lost=2, seconds=1.5)],
            damaged_files=[DamagedFileView(name="3.run", reason="runs/3.run: it is not there", since_ms=17)],
        )

    async def store(self) -> StoreView:
        runs = LevelView(level=0, kind="run", files=3, bytes=3 << 20, batch_bytes=2 << 20)
        packed = LevelView(level=1, kind="packed file", files=1, bytes=1 << 30, batch_bytes=1 << 30)
        return StoreView(
            levels=[runs, packed],
            groups={"0": StoreWriteGroupView(levels=[runs]), "1": StoreWriteGroupView(levels=[runs, packed])},
            merges=MergesView(
                enabled=True,
                allowed=True,
                waiting_bytes=8 << 30,
                unfinished=False,
                under_way=[MergeView(group=1, level=2, inputs=7, outputs=None, bytes=9 << 30, seconds=61.0)],
                last=MergeView(group=0, level=1, inputs=128, outputs=3, bytes=1 << 30, seconds=3661.0),
                merged_files=128,
                merged_bytes=1 << 30,
            ),
            compactions=CompactionsView(
                under_way=[
                    CompactionView(group=0, inputs=2, outputs=None, bytes=9 << 30, bytes_left=None, seconds=7.0)
                ],
                last=CompactionView(group=1, inputs=3, outputs=1, bytes=3 << 30, bytes_left=1 << 30, seconds=62.0),
                passes=5,
                removed_bytes=1 << 32,
            ),
            damaged_files=[DamagedFileView(name="3.run", reason="runs/3.run: it is not there", since_ms=17)],
            store_disk=DiskView(path="/disk2", used_bytes=1 << 30, free_bytes=1 << 31, total_bytes=1 << 32),
            remote=RemoteView(
                url="s3://bucket/mainstem",
                fault="",
                levels=[packed],
                groups={
                    "1": RemoteWriteGroupView(
                        changes=7,
                        considered=4096,
                        levels=[packed],
                        waiting_files=2,
                        waiting_bytes=3 << 30,
                        uploading_files=1,
                        leaving_files=4,
                    )
                },
                waiting_files=2,
                waiting_bytes=3 << 30,
                uploaded_files=12,
                uploaded_bytes=1 << 30,
                last_upload_seconds=62.0,
                upload_failures=3,
                last_upload_failure="write group 1: the store is out",
                damaged_files=[],
                given_up=[],
            ),
        )

    async def shared(self) -> tuple[ClusterView, StoreView, StoreUsageView]:
        """The views of the same node, had it a shared store."""
        store, usage = await self.store(), await self.store_usage(None)
        assert usage is not None
        place: dict[str, Any] = {"store_disk": None, "shared_store": "s3://bucket/shared"}
        levels: dict[str, Any] = {"levels": [], "groups": {}}
        return (
            structs.replace(await self.cluster(), **place),
            structs.replace(store, **place, **levels),
            structs.replace(usage, **place, levels=[]),
        )

    async def retain(self) -> RetainedView | str:
        return RetainedView(files=3, bytes=5 << 20, remote_files=1, remote_bytes=1 << 30)

    async def give_up(self, request: GiveUpRequest) -> GiveUpView | str:
        if request.names == ["whole.pack"]:
            return "whole.pack: it is not lost"
        return GiveUpView(files=[])

    async def store_usage(self, topic: str | None) -> StoreUsageView | None:
        if topic not in (None, FLIGHTS.name):
            return None
        runs = UsageLevelView(level=0, kind="run", files=3, bytes=2 << 20)
        packed = UsageLevelView(level=1, kind="packed file", files=1, bytes=1 << 30)
        flights = TopicUsageView(
            topic_number=0, name=FLIGHTS.name, journal_bytes=2560, stored_bytes=(1 << 30) + (2 << 20),
            levels=[runs, packed],
        )  # fmt: skip
        moved = UsageLevelView(level=1, kind="packed file", files=2, bytes=4096)
        gone = TopicUsageView(
            topic_number=7, name=None, journal_bytes=0, stored_bytes=2 << 20, levels=[runs], remote_bytes=4096,
            remote_levels=[moved],
        )  # fmt: skip
        others = TopicUsageView(topic_number=None, name=None, journal_bytes=4096, stored_bytes=1 << 30, levels=[packed])
        disk = DiskView(path="/disk", used_bytes=1 << 30, free_bytes=1 << 31, total_bytes=1 << 32)
        return StoreUsageView(
            topics=[flights] if topic is not None else [flights, gone],
            topics_left_out=0 if topic is not None else 1_234,
            others=others,
            levels=(await self.store()).levels,
            journal_bytes=6656,
            unread_files=12,
            unread_bytes=3 << 30,
            write_disk=disk,
            store_disk=disk,
            remote_levels=[LevelView(level=2, kind="queue segment", files=9, bytes=1 << 41, batch_bytes=1 << 41)],
        )

    async def tenants(self) -> Sequence[TenantView]:
        return []

    async def usage(self, name: str | None) -> Sequence[TenantUsageView]:
        return []

    async def set_tenant(self, wanted: TenantRequest) -> str | None:
        return None

    async def remove_tenant(self, name: str) -> str | None:
        return f"there is no tenant {name!r}"

    def split_endpoint(self) -> SplitEndpoint:
        return SplitEndpoint(host="127.0.0.1", port=9093, store_dir="/store")
