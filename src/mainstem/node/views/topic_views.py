"""Views of topics: how much of each lies where, and which offsets are in which files."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from mainstem.broker.consumer_groups.coordinator import ConsumerGroupCoordinator
from mainstem.broker.consumer_groups.offsets_topic import OFFSETS_TOPIC
from mainstem.broker.machines.machine_log import Gap
from mainstem.console.views.of_topics import (
    FileView,
    MissingView,
    PartitionView,
    SegmentView,
    StayView,
    TopicSummary,
    TopicView,
)
from mainstem.model import QueueUsage, Topic
from mainstem.nameserver.nameserver import Nameserver
from mainstem.storage.journal.encoding.format import segment_name
from mainstem.storage.placement import Stay
from mainstem.storage.queue_store.reading.stored_files import QueueFile
from mainstem.storage.queues.usage import SegmentShare
from mainstem.storage.role import Storage
from mainstem.storage.store_files.store_file import kind_of

NO_USAGE = QueueUsage(0, 0)

VIEWS_PER_TURN = 250
"""Topics built within one turn of the event loop: about a millisecond."""

REMOTE_SECONDS_MAX = 5.0
"""For the indexes of remote files: each that is not in memory is a request to the object store."""


class LocalTopicViews:
    """All topics, with what this node has of them."""

    def __init__(self, nameserver: Nameserver, storage: Storage, groups: ConsumerGroupCoordinator | None) -> None:
        """`groups` None: the node coordinates no consumer groups."""
        self._nameserver = nameserver
        self._storage = storage
        self._groups = groups

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
        remote = await self._remote_files(topic)
        partitions: list[PartitionView] = []
        for partition, usage in enumerate(await self._storage.queues.usage(queue_ids)):
            if partition % VIEWS_PER_TURN == 0:
                await asyncio.sleep(0)
            shares = segments.get(partition, ())
            held = remote.get(partition, ())
            partitions.append(await self._partition(topic, partition, usage or NO_USAGE, shares, held))
        return TopicView(
            name=topic.name,
            topic_id=str(topic.topic_id),
            internal=topic.internal,
            configs=dict(topic.configs),
            partitions=partitions,
        )

    async def _remote_files(self, topic: Topic) -> Mapping[int, Sequence[QueueFile]]:
        """The files of the remote tier by partition, as far as the object store gives their indexes in time."""
        found: dict[int, list[QueueFile]] = {}
        history = self._storage.remote_history
        if history is None or not len(self._storage.remote.manifest.files):
            return found
        with suppress(TimeoutError):
            async with asyncio.timeout(REMOTE_SECONDS_MAX):
                for partition in range(topic.partitions):
                    queue_id = topic.queue_id(partition)
                    for group in _groups_of(self._storage.placement.history(queue_id)):
                        if history.has(group):
                            found.setdefault(partition, []).extend(await history.stored.files_of(queue_id, group))
                    if partition % VIEWS_PER_TURN == 0:
                        await asyncio.sleep(0)
        return found

    async def _partition(
        self,
        topic: Topic,
        partition: int,
        usage: QueueUsage,
        segments: Sequence[SegmentShare],
        remote: Sequence[QueueFile],
    ) -> PartitionView:
        queue_id = topic.queue_id(partition)
        group = self._storage.group_of(queue_id)
        offsets = self._storage.read_path.offsets(queue_id)
        held = offsets is not None and offsets.high_watermark > 0
        files: list[QueueFile] = []
        for group_then in _groups_of(self._storage.placement.history(queue_id)) if held else ():
            files += await self._storage.queue_store.stored.files_of(queue_id, group_then)
        start = offsets.log_start if offsets else 0
        return PartitionView(
            partition=partition,
            leader=self._nameserver.lookups.leader(queue_id),
            leader_epoch=offsets.leader_epoch if offsets else -1,
            write_group=group,
            log_start=start,
            split_end=max((file.last_offset + 1 for file in (*files, *remote)), default=start),
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
                    place=place,
                )
                for place, of_place in (("store", files), ("remote", remote))
                for file in of_place
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
                for gap in self._missing(topic, partition)
            ],
            stays=[
                StayView(write_group=stay.group, first_offset=stay.first_offset)
                for stay in self._storage.placement.moved.get(queue_id, ())
            ],
        )

    def _missing(self, topic: Topic, partition: int) -> Sequence[Gap]:
        if topic.name != OFFSETS_TOPIC or self._groups is None:
            return ()
        return self._groups.missing(partition)


def _groups_of(history: Iterable[Stay]) -> Iterable[int]:
    """The write groups of these stays, each once."""
    return dict.fromkeys(stay.group for stay in history)


class FollowedTopicViews:
    """All topics, as a node without storage knows them: it holds nothing of them."""

    def __init__(self, nameserver: Nameserver) -> None:
        self._nameserver = nameserver

    async def topics(self) -> Sequence[TopicSummary]:
        summaries: list[TopicSummary] = []
        for topic in sorted(self._nameserver.lookups.topics(), key=lambda topic: topic.name):
            if len(summaries) % VIEWS_PER_TURN == 0:
                await asyncio.sleep(0)
            summaries.append(
                TopicSummary(
                    name=topic.name,
                    topic_id=str(topic.topic_id),
                    partitions=topic.partitions,
                    internal=topic.internal,
                    unsplit_bytes=0,
                    stored_bytes=0,
                )
            )
        return summaries

    async def topic(self, name: str) -> TopicView | None:
        lookups = self._nameserver.lookups
        topic = lookups.topic(name)
        if topic is None:
            return None
        partitions: list[PartitionView] = []
        for partition in range(topic.partitions):
            if partition % VIEWS_PER_TURN == 0:
                await asyncio.sleep(0)
            queue_id = topic.queue_id(partition)
            partitions.append(
                PartitionView(
                    partition=partition,
                    leader=lookups.leader(queue_id),
                    leader_epoch=-1,
                    write_group=lookups.write_group(queue_id),
                    log_start=-1,
                    split_end=-1,
                    high_watermark=-1,
                    end=-1,
                    unsplit_bytes=0,
                    stored_bytes=0,
                )
            )
        return TopicView(
            name=topic.name,
            topic_id=str(topic.topic_id),
            internal=topic.internal,
            configs=dict(topic.configs),
            partitions=partitions,
        )
