"""The console's views of this node: implements `console.views.NodeViews` by reading the roles.

Reading changes nothing. Views are built on request; the costly ones (bytes per queue) read the indexes of runs and
segments, off the event loop where they are large.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import mainstem
from mainstem.address import Address
from mainstem.broker.consumer_groups.coordinator import ConsumerGroupCoordinator
from mainstem.broker.consumer_groups.internal_topic.internal_topic import OFFSETS_TOPIC
from mainstem.console.views import (
    ClusterView,
    CompactionsView,
    CompactionView,
    DamagedBlockView,
    DamagedProducersView,
    DamagedRunView,
    DiskView,
    FileView,
    LeaseView,
    LevelView,
    MergesView,
    MergeView,
    MissingView,
    NodeView,
    PartitionView,
    ReplicaView,
    SegmentView,
    SplitEndpoint,
    SplitView,
    SplitWriteGroupView,
    StoreUsageView,
    StoreView,
    StoreWriteGroupView,
    TopicSummary,
    TopicUsageView,
    TopicView,
    UsageLevelView,
    WriteGroupView,
)
from mainstem.model import OWN_LEVELS, Node, QueueUsage, Topic
from mainstem.nameserver.errors import NameserverError
from mainstem.nameserver.nameserver import Nameserver
from mainstem.node.config import NodeConfig
from mainstem.node.node_reports import NodeReports
from mainstem.pipeline.embedded.supervisor import SplitSupervisor
from mainstem.ports import Clock
from mainstem.rpc.errors import RpcError
from mainstem.rpc.messages.cluster import LedWriteGroup, NodeReport
from mainstem.storage.journal.encoding.format import segment_name
from mainstem.storage.queue_store.reading.stored_files import QueueFile
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.queue_store.usage import levels
from mainstem.storage.queue_store.usage.levels import LevelCount
from mainstem.storage.queue_store.usage.topic_usage import Ranking, TopicShare, ranking, share
from mainstem.storage.queues.usage import SegmentShare
from mainstem.storage.role import Storage
from mainstem.storage.split.split_service import SplitService
from mainstem.storage.store_files.store_file import kind_of
from mainstem.storage.write_groups.write_group import WriteGroup
from mainstem.supervised import Supervision

NO_USAGE = QueueUsage(0, 0)

TOPICS_RANKED_MAX = 1_000
"""Topics told one by one: those with the most bytes. The answer stays below a megabyte."""

VIEWS_PER_TURN = 250
"""Topics built within one turn of the event loop: about a millisecond."""


class LocalNodeViews:
    """Views of one node. `ready` is set by the node once it accepts clients."""

    def __init__(
        self,
        *,
        config: NodeConfig,
        nameserver: Nameserver,
        storage: Storage,
        split: SplitService,
        supervisor: SplitSupervisor,
        write_dir: Path,
        store_dir: Path,
        rpc: tuple[str, int],
        node: Node,
        reports: NodeReports,
        leader_of: Callable[[int], int],
        supervision: Supervision,
        groups: ConsumerGroupCoordinator,
        clock: Clock,
    ) -> None:
        self._config = config
        self._nameserver = nameserver
        self._storage = storage
        self._split = split
        self._supervisor = supervisor
        self._write_dir = write_dir
        self._store_dir = store_dir
        self._rpc = rpc
        self._node = node
        self._reports = reports
        self._leader_of = leader_of
        self._supervision = supervision
        self._groups = groups
        self._clock = clock
        self.ready = False

    def not_alive(self) -> str | None:
        if self._supervision.lost:
            return self._supervision.why_not()
        return None

    def not_ready(self) -> str | None:
        if (reason := self._supervision.why_not()) is not None:
            return reason
        if (failure := self._nameserver.failure) is not None:
            return f"the metadata failed: {failure}"
        if self._storage.failure is not None:
            return f"disk 1 failed: {self._storage.failure}"
        if self.ready and (waiting := self._storage.rejoining.not_back()):
            states = ", ".join(f"{number} ({state})" for number, state in waiting.items())
            return f"{self._storage.rejoining.why}: has no vote in write groups {states}"
        return None if self.ready else "starting"

    def waiting(self) -> dict[int, str]:
        return self._storage.waiting.reasons()

    async def cluster(self) -> ClusterView:
        topics, partitions = self._nameserver.lookups.totals()
        nodes = self._nameserver.lookups.nodes()
        reports = await self._reports.of([node.node_id for node in nodes])
        led: dict[int, LedWriteGroup] = {}
        for report in reports.values():
            for group in report.led if report is not None else ():
                if group.group not in led or led[group.group].term < group.term:
                    led[group.group] = group
        return ClusterView(
            cluster_id=self._nameserver.lookups.cluster_id(),
            nodes=[self._node_view(node, reports.get(node.node_id)) for node in nodes],
            write_groups=[self._group_view(group, led.get(group.group)) for group in self._storage.groups],
            write_disk=disk(self._write_dir, self._storage.journal.bytes_used()),
            store_disk=disk(self._store_dir, self._storage.queue_store.stored.file_bytes()),
            topics=topics,
            partitions=partitions,
            metadata_leader=self._nameserver.lookups.metadata_leader,
            feature_level=self._nameserver.lookups.feature_level,
            feature_level_newest=OWN_LEVELS.newest,
        )

    def _node_view(self, node: Node, report: NodeReport | None) -> NodeView:
        own = node.node_id == self._node.node_id
        registered = self._nameserver.lookups.registered(node.node_id)
        verdict = self._nameserver.lookups.verdict(node.node_id)
        return NodeView(
            node_id=node.node_id,
            host=node.host,
            port=node.port,
            rpc=str(Address(*self._rpc)) if own else registered.rpc if registered is not None else None,
            http=report.http if report is not None else None,
            roles=self._config.roles if own else tuple(registered.roles) if registered is not None else (),
            version=mainstem.__version__ if own else registered.version if registered is not None else "",
            uptime_seconds=report.uptime_seconds if report is not None else 0.0,
            rack=node.rack,
            state=verdict.state.value,
            reason=verdict.reason,
            level_newest=report.level_newest if report is not None else None,
            not_back=tuple(report.not_back) if report is not None else (),
            forgot=report.forgot if report is not None else "",
            waiting=report.waiting if report is not None else {},
        )

    def _group_view(self, group: WriteGroup, led: LedWriteGroup | None) -> WriteGroupView:
        placed = self._nameserver.lookups.placements().get(group.group, ())
        replicas = [ReplicaView(node=node, lag_blocks=-1, active=False) for node in sorted(placed)]
        if led is not None:
            replicas = [
                ReplicaView(
                    node=member.node,
                    lag_blocks=max(0, led.last_index - member.match_index),
                    active=member.active,
                    voter=member.voter,
                )
                for member in led.members
            ]
        return WriteGroupView(
            group=group.group,
            leader=self._leader_of(group.group),
            term=led.term if led is not None else group.term,
            committed=led.committed if led is not None else group.applied_index,
            preferred_leader=self._nameserver.lookups.preferred_leader(group.group),
            replicas=replicas,
        )

    async def transfer_leader(self, group: int, to: int) -> str | None:
        try:
            await self._reports.transfer_leader(group, to, self._leader_of)
        except RpcError as error:
            return str(error)
        return None

    async def replace_node(self, old: int, new: int) -> str | None:
        nameserver = self._nameserver
        placements = nameserver.lookups.placements()
        both = [group for group, replicas in placements.items() if old in replicas and new in replicas]
        if old == new or both:
            why = f"it has replicas of the same write groups ({both[0]}, …)" if both else "it is the same node"
            return f"node {new} cannot take the place of node {old}: {why}"
        try:
            for group, replicas in placements.items():
                if old in replicas:
                    await nameserver.operations.move_replica(group, old, new)
            voters = nameserver.lookups.metadata_voters
            if old in voters:
                await nameserver.operations.change_member(old, new)
            elif new not in voters and len(voters) < len(self._config.nameserver.peers):
                await nameserver.operations.change_member(0, new)  # the old node was given up
        except NameserverError as error:
            return str(error)
        return None

    async def raise_feature_level(self, level: int) -> str | None:
        nameserver = self._nameserver
        reports = await self._reports.of([node.node_id for node in nameserver.lookups.nodes()])
        for node_id, report in reports.items():  # first, since an old leader would not understand the call
            if report is not None and report.level_newest < level:
                return f"feature level {level} must wait: node {node_id} reads those up to {report.level_newest}"
        try:
            await nameserver.operations.raise_feature_level(level)
        except NameserverError as error:
            return str(error)
        return None

    async def topics(self) -> Sequence[TopicSummary]:
        usages = await self._storage.usage.of_topics()
        summaries: list[TopicSummary] = []
        for topic in sorted(self._nameserver.lookups.topics(), key=lambda topic: topic.name):
            if len(summaries) % VIEWS_PER_TURN == 0:
                await asyncio.sleep(0)
            usage = usages.get(topic.number, NO_USAGE)
            summaries.append(
                TopicSummary(
                    name=topic.name,
                    topic_id=str(topic.topic_id),
                    partitions=topic.partitions,
                    internal=topic.internal,
                    unsplit_bytes=usage.unsplit_bytes,
                    stored_bytes=usage.stored_bytes,
                )
            )
        return summaries

    async def topic(self, name: str) -> TopicView | None:
        topic = self._nameserver.lookups.topic(name)
        if topic is None:
            return None
        queue_ids = [topic.queue_id(partition) for partition in range(topic.partitions)]
        segments = await self._storage.usage.segments_of(topic.number)
        partitions: list[PartitionView] = []
        for partition, usage in enumerate(await self._storage.queues.usage(queue_ids)):
            if partition % VIEWS_PER_TURN == 0:
                await asyncio.sleep(0)
            shares = segments.get(partition, ())
            partitions.append(await self._partition(topic, partition, usage or NO_USAGE, shares))
        return TopicView(
            name=topic.name,
            topic_id=str(topic.topic_id),
            internal=topic.internal,
            configs=dict(topic.configs),
            partitions=partitions,
        )

    async def _partition(
        self, topic: Topic, partition: int, usage: QueueUsage, segments: Sequence[SegmentShare]
    ) -> PartitionView:
        queue_id = topic.queue_id(partition)
        group = self._storage.group_of(queue_id)
        offsets = self._storage.read_path.offsets(queue_id)
        held = offsets is not None and offsets.high_watermark > 0
        files: list[QueueFile] = []
        for stay in self._storage.placement.history(queue_id) if held else ():
            files += await self._storage.queue_store.stored.files_of(queue_id, stay.group)
        start = offsets.log_start if offsets else 0
        return PartitionView(
            partition=partition,
            leader=self._nameserver.lookups.leader(queue_id),
            leader_epoch=offsets.leader_epoch if offsets else -1,
            write_group=group,
            log_start=start,
            split_end=max((file.last_offset + 1 for file in files), default=start),
            high_watermark=offsets.high_watermark if offsets else 0,
            end=offsets.end if offsets else 0,
            unsplit_bytes=usage.unsplit_bytes,
            stored_bytes=usage.stored_bytes,
            files=[
                FileView(
                    name=file.name,
                    kind=kind_of(file.name).value,
                    file_bytes=file.file_bytes,
                    queue_bytes=file.queue_bytes,
                    first_offset=file.first_offset,
                    last_offset=file.last_offset,
                    index_rows=file.extents,
                )
                for file in files
            ],
            segments=[
                SegmentView(
                    name=segment_name(share.sequence),
                    queue_bytes=share.bytes,
                    first_offset=share.first_offset,
                    last_offset=share.last_offset,
                    index_rows=share.batches,
                    indexed=share.indexed,
                )
                for share in segments
            ],
            missing=[
                MissingView(first_offset=gap.start, last_offset=gap.end - 1, fault=gap.why)
                for gap in (self._groups.missing(partition) if topic.name == OFFSETS_TOPIC else ())
            ],
        )

    async def split(self) -> SplitView:
        pages = self._storage.producers.damaged
        status = self._split.status()
        lease = self._split.lease_held()
        error = status["last_error"]
        waiting = self._storage.manifest.failures
        return SplitView(
            groups={
                number: SplitWriteGroupView(
                    committed=group["committed"],
                    split=group["split"],
                    pruned=group["pruned"],
                    lag_bytes=group["lag_bytes"],
                    lag_seconds=group["lag_seconds"],
                    files=group["files"],
                    waits_for=str(waiting.get(int(number), "")),
                )
                for number, group in status["groups"].items()
            },
            splitter=self._supervisor.state,
            lease=None
            if lease is None
            else LeaseView(holder=lease.holder, fence=lease.epoch, expires_in_seconds=lease.expires_in_seconds),
            last_error=error["message"] if error else None,
            last_progress=status["progress"],
            damaged_runs=[DamagedRunView(**run._asdict()) for run in self._storage.queue_store.damaged.all()],
            damaged_blocks=[DamagedBlockView(**entry) for entry in status["damaged_blocks"]],
            damaged_producers=[
                DamagedProducersView(group=page.group, fault=page.fault, lost=page.lost, seconds=pages.seconds(page))
                for page in pages.noted()
            ],
        )

    async def store(self) -> StoreView:
        store = self._storage.queue_store
        waits = await self._storage.merge_log.waits()
        groups = {
            str(group.group): StoreWriteGroupView(levels=_levels(await levels.of_group(store.manifest, group.group)))
            for group in self._storage.groups
        }
        now = self._clock.monotonic()
        last = store.merges.last
        return StoreView(
            levels=_levels(levels.of_store(store.manifest)),
            groups=groups,
            merges=MergesView(
                enabled=self._config.pipeline.merge,
                allowed=self._storage.merge_log.allowed,
                waiting_bytes=waits.bytes,
                unfinished=waits.more,
                under_way=[
                    MergeView(
                        group=merge.group,
                        level=merge.level,
                        inputs=len(merge.inputs),
                        outputs=None,
                        bytes=sum(file.batch_bytes for file in merge.inputs),
                        seconds=max(0.0, now - merge.since),
                    )
                    for merge in store.merges.current()
                    if not merge.compacts
                ],
                last=None
                if last is None
                else MergeView(
                    group=last.group,
                    level=last.level,
                    inputs=last.inputs,
                    outputs=last.outputs,
                    bytes=last.bytes,
                    seconds=max(0.0, now - last.at),
                ),
                merged_files=store.merges.merged_files,
                merged_bytes=store.merges.merged_bytes,
            ),
            compactions=_compactions(store, now),
            damaged_files=[DamagedRunView(**run._asdict()) for run in store.damaged.all()],
            store_disk=disk(self._store_dir, store.stored.file_bytes()),
        )

    async def store_usage(self, topic: str | None) -> StoreUsageView | None:
        lookups, store = self._nameserver.lookups, self._storage.queue_store
        asked = None if topic is None else lookups.topic(topic)
        if topic is not None and asked is None:
            return None
        journal = await self._storage.usage.journal_of_topics()
        usage = await store.topic_usage.of_store()
        if asked is None:
            found = await asyncio.to_thread(ranking, usage, journal, TOPICS_RANKED_MAX)
        else:
            found = Ranking([share(usage, journal, asked.number)], TopicShare(-1, 0, []), 0)
        return StoreUsageView(
            topics=[self._share_view(one) for one in found.largest],
            topics_left_out=found.others_count,
            others=self._share_view(found.others),
            levels=_levels(levels.of_store(store.manifest)),
            journal_bytes=int(journal.bytes.sum()),
            unread_files=usage.unread_files,
            unread_bytes=usage.unread_bytes,
            write_disk=disk(self._write_dir, self._storage.journal.bytes_used()),
            store_disk=disk(self._store_dir, store.stored.file_bytes()),
        )

    def _share_view(self, one: TopicShare) -> TopicUsageView:
        topic = self._nameserver.lookups.topic_by_number(one.topic)
        return TopicUsageView(
            topic_number=one.topic if one.topic >= 0 else None,
            name=topic.name if topic is not None else None,
            journal_bytes=one.journal_bytes,
            stored_bytes=sum(count for _level, _files, count in one.levels),
            levels=[
                UsageLevelView(level=level, kind=kind.value, files=files, bytes=count)
                for (level, kind), files, count in one.levels
            ],
        )

    def split_endpoint(self) -> SplitEndpoint | None:
        return SplitEndpoint(host=self._rpc[0], port=self._rpc[1], store_dir=str(self._store_dir))


def _compactions(store: QueueStore, now: float) -> CompactionsView:
    last = store.compactions.last
    return CompactionsView(
        under_way=[
            CompactionView(
                group=merge.group,
                inputs=len(merge.inputs),
                outputs=None,
                bytes=sum(file.batch_bytes for file in merge.inputs),
                bytes_left=None,
                seconds=max(0.0, now - merge.since),
            )
            for merge in store.merges.current()
            if merge.compacts
        ],
        last=None
        if last is None
        else CompactionView(
            group=last.group,
            inputs=last.inputs,
            outputs=last.outputs,
            bytes=last.bytes_before,
            bytes_left=last.bytes_after,
            seconds=max(0.0, now - last.at),
        ),
        passes=store.compactions.passes,
        removed_bytes=store.compactions.removed_bytes,
    )


def _levels(counts: Sequence[LevelCount]) -> list[LevelView]:
    return [LevelView(**{**count._asdict(), "kind": count.kind.value}) for count in counts]


def disk(path: Path, used_bytes: int) -> DiskView:
    """The disk a directory lies on."""
    stat = os.statvfs(path)
    return DiskView(
        path=str(path),
        used_bytes=used_bytes,
        free_bytes=stat.f_bavail * stat.f_frsize,
        total_bytes=stat.f_blocks * stat.f_frsize,
    )
