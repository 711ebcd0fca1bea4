"""Views of the split and of the queue store: how far, how large, what is under way, what is damaged."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from mainstem.console.views.asked_changes import GiveUpRequest
from mainstem.console.views.of_split import (
    DamagedBlockView,
    DamagedFileView,
    DamagedProducersView,
    LeaseView,
    SharedStoreView,
    SplitEndpoint,
    SplitView,
    SplitWriteGroupView,
)
from mainstem.console.views.of_store import (
    CompactionsView,
    CompactionView,
    GivenUpFileView,
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
from mainstem.nameserver.nameserver import Nameserver
from mainstem.node.config import NodeConfig
from mainstem.node.views.disk_view import disk, own_disk
from mainstem.node.views.tenant_views import BytesOfTopics
from mainstem.pipeline.embedded.supervisor import SplitSupervisor
from mainstem.ports import Clock
from mainstem.rpc.messages.tier import GivenUpFile
from mainstem.storage.errors import StorageError
from mainstem.storage.object_stores.urls import GuardedStore
from mainstem.storage.queue_store.changes.file_retention import DroppedFiles
from mainstem.storage.queue_store.changes.merges import HeldFor
from mainstem.storage.queue_store.manifest.in_memory.file_table import Level
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.queue_store.usage import levels
from mainstem.storage.queue_store.usage.levels import LevelCount
from mainstem.storage.queue_store.usage.topic_sums import by_topic
from mainstem.storage.queue_store.usage.topic_usage import (
    NOTHING,
    Ranking,
    TopicShare,
    TopicUsage,
    ranking,
    share,
)
from mainstem.storage.remote.decided import remote_counts
from mainstem.storage.remote.shared_queue_store import SharedQueueStore
from mainstem.storage.role import Storage
from mainstem.storage.split.split_service import SplitService

TOPICS_RANKED_MAX = 1_000
"""Topics told one by one: those with the most bytes. The answer stays below a megabyte."""


GIVEN_UP_TOLD_MAX = 100
"""Of each write group, the newest."""


class LocalStoreViews:
    """Of this node's own queue store and splitter."""

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
        clock: Clock,
        remote_store: GuardedStore | None = None,
    ) -> None:
        """`remote_store`: where the remote tier lies, if this node is told."""
        self._config = config
        self._nameserver = nameserver
        self._storage = storage
        self._split = split
        self._supervisor = supervisor
        self._write_dir = write_dir
        self._store_dir = store_dir
        self._own_store_dir = None if config.shares_store else store_dir
        self._rpc = rpc
        self._clock = clock
        self._remote_store = remote_store
        reading = storage.remote_history
        self._remote_usage = TopicUsage(reading.stored, clock) if reading is not None else None

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
            damaged_files=[DamagedFileView(**run._asdict()) for run in self._storage.queue_store.damaged.all()],
            damaged_blocks=[DamagedBlockView(**entry) for entry in status["damaged_blocks"]],
            damaged_producers=[
                DamagedProducersView(group=page.group, fault=page.fault, lost=page.lost, seconds=pages.seconds(page))
                for page in pages.noted()
            ],
        )

    async def store(self) -> StoreView:
        store, work = self._storage.queue_store, self._storage.store_work
        waits = await self._storage.merge_log.waits()
        groups = {
            str(group.group): StoreWriteGroupView(levels=_levels(await levels.of_group(store.manifest, group.group)))
            for group in self._storage.groups
        }
        now = self._clock.monotonic()
        last = work.merges.last
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
                    for merge in work.merges.current()
                    if merge.work is HeldFor.MERGE
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
                merged_files=work.merges.merged_files,
                merged_bytes=work.merges.merged_bytes,
            ),
            compactions=_compactions(work, now),
            damaged_files=[DamagedFileView(**file._asdict()) for file in store.damaged.all()],
            store_disk=own_disk(self._own_store_dir, store.stored.file_bytes()),
            remote=await self._remote(),
            shared_store=self._config.shared_store_place,
            given_up=[
                _given_up(one.group, one.file) for one in self._storage.lost_files.given_up()[-GIVEN_UP_TOLD_MAX:]
            ],
            given_up_count=len(self._storage.lost_files.given_up()),
        )

    async def _remote(self) -> RemoteView | None:
        """The remote tier; None where there is none, and never was."""
        tier, url = self._storage.remote, self._config.objects_url
        if not url and not tier.numbers():
            return None
        moves = await self._storage.tier_log.moves()
        counts = {
            group.group: await remote_counts.of_group(tier, self._storage.queue_store.manifest, group.group, moves)
            for group in self._storage.groups
        }
        reading, uploads = self._storage.remote_history, self._storage.tier_log
        last_ms = uploads.last_success_ms
        return RemoteView(
            url=url or None,
            fault=self._remote_store.fault if self._remote_store is not None else "",
            levels=_levels(levels.of_store(tier.manifest)),
            groups={
                str(group): RemoteWriteGroupView(
                    changes=tier.position(group).number,
                    considered=tier.position(group).upto,
                    levels=_levels(count.levels),
                    waiting_files=count.waiting_files,
                    waiting_bytes=count.waiting_bytes,
                    uploading_files=len(tier.intended(group)),
                    leaving_files=len(tier.leaving(group)),
                )
                for group, count in counts.items()
            },
            waiting_files=sum(count.waiting_files for count in counts.values()),
            waiting_bytes=sum(count.waiting_bytes for count in counts.values()),
            uploaded_files=uploads.uploaded_files,
            uploaded_bytes=uploads.uploaded_bytes,
            last_upload_seconds=None if last_ms is None else max(0.0, (self._clock.now_ms() - last_ms) / 1000),
            upload_failures=uploads.failures,
            last_upload_failure=uploads.last_failure,
            damaged_files=[
                DamagedFileView(**file._asdict()) for file in (reading.damaged.all() if reading is not None else ())
            ],
            given_up=[
                _given_up(group, one) for group in counts for one in list(tier.given_up(group))[-GIVEN_UP_TOLD_MAX:]
            ],
            given_up_count=sum(len(tier.given_up(group)) for group in counts),
        )

    async def retain(self) -> RetainedView | str:
        if self._config.read_only:
            return "this node changes nothing: it only shows what a store has"
        before, remote_before = self._dropped()
        try:
            await self._storage.maintenance.retain()
        except (StorageError, OSError) as error:
            return str(error)
        after, remote_after = self._dropped()
        return RetainedView(
            files=after.files - before.files,
            bytes=after.bytes - before.bytes,
            remote_files=remote_after.files - remote_before.files,
            remote_bytes=remote_after.bytes - remote_before.bytes,
        )

    def _dropped(self) -> tuple[DroppedFiles, DroppedFiles]:
        """By retention, of disk 2 and of the object store."""
        dead, copies = self._storage.queue_store.retention.dropped, self._storage.local_copies.dropped
        here = DroppedFiles(dead.files + copies.files, dead.bytes + copies.bytes)
        return here, self._storage.remote_retention.dropped

    async def give_up(self, request: GiveUpRequest) -> GiveUpView | str:
        if self._config.read_only:
            return "this node changes nothing: it only shows what a store has"
        own, giving = self._storage.lost_files, self._storage.given_up_files
        found = {given: own.names(given) for given in request.names}
        elsewhere = [given for given, name in found.items() if name is None]
        if elsewhere and giving is None:
            return (
                f"{elsewhere[0]}: no file of disk 2 that counts has this name, and this node has neither a shared "
                "store nor a remote tier. `mainstem store verify` names what is damaged"
            )
        try:
            here = [
                one
                for name in dict.fromkeys(found.values())
                if name is not None
                for one in await self._storage.judge_lost(name, request.by)
            ]
            lost = await giving.judge(elsewhere, request.by, request.without) if elsewhere and giving else []
            if not request.dry_run:
                if lost and giving:
                    await giving.give_up(lost)
                if here:
                    await own.give_up(here)
        except (StorageError, OSError) as error:
            return str(error)
        return GiveUpView(files=[_given_up(group, one) for group, one in [*here, *lost]])

    async def store_usage(self, topic: str | None) -> StoreUsageView | None:
        lookups, store = self._nameserver.lookups, self._storage.queue_store
        asked = None if topic is None else lookups.topic(topic)
        if topic is not None and asked is None:
            return None
        journal = await self._storage.usage.journal_of_topics()
        usage, remote = await store.topic_usage.of_store(), NOTHING
        if self._remote_usage is not None:
            remote = await self._remote_usage.of_store()
        if asked is None:
            found = await asyncio.to_thread(ranking, usage, journal, TOPICS_RANKED_MAX, remote)
        else:
            found = Ranking([share(usage, journal, asked.number, remote)], TopicShare(-1, 0, []), 0)
        lost = [one for group in self._storage.groups for one in self._storage.remote.given_up(group.group)]
        lost += [one.file for one in self._storage.lost_files.given_up()]
        return StoreUsageView(
            topics=[self._share_view(one) for one in found.largest],
            topics_left_out=found.others_count,
            others=self._share_view(found.others),
            levels=_levels(levels.of_store(store.manifest)),
            journal_bytes=int(journal.bytes.sum()),
            unread_files=usage.unread_files + remote.unread_files,
            unread_bytes=usage.unread_bytes + remote.unread_bytes,
            write_disk=disk(self._write_dir, self._storage.journal.bytes_used()),
            store_disk=own_disk(self._own_store_dir, store.stored.file_bytes()),
            remote_levels=_levels(levels.of_store(self._storage.remote.manifest)),
            shared_store=self._config.shared_store_place,
            given_up_files=len(lost),
            given_up_records=sum(one.record_count for one in lost),
        )

    async def bytes_of_topics(self) -> BytesOfTopics:
        """Bytes of batches that topics have in the journal, on disk 2 and in the remote tier, as far as the indexes of
        files that topics share were read."""
        journal = await self._storage.usage.journal_of_topics()
        stored, remote = await self._storage.queue_store.topic_usage.of_store(), NOTHING
        if self._remote_usage is not None:
            remote = await self._remote_usage.of_store()
        return BytesOfTopics(
            journal=await asyncio.to_thread(by_topic, [journal]),
            stored=await asyncio.to_thread(by_topic, stored.levels.values()),
            remote=await asyncio.to_thread(by_topic, remote.levels.values()),
            unsplit=await self._storage.unsplit_topics.by_topic(),
        )

    def _share_view(self, one: TopicShare) -> TopicUsageView:
        topic = self._nameserver.lookups.topic_by_number(one.topic)
        return TopicUsageView(
            topic_number=one.topic if one.topic >= 0 else None,
            name=topic.name if topic is not None else None,
            journal_bytes=one.journal_bytes,
            stored_bytes=sum(count for _level, _files, count in one.levels),
            levels=_usage_levels(one.levels),
            remote_bytes=sum(count for _level, _files, count in one.remote_levels),
            remote_levels=_usage_levels(one.remote_levels),
        )

    def split_endpoint(self) -> SplitEndpoint:
        return SplitEndpoint(
            host=self._rpc[0], port=self._rpc[1], store_dir=str(self._store_dir), shared_store=self._shared_store()
        )

    def _shared_store(self) -> SharedStoreView | None:
        place = self._config.shared_store_place
        if place is None:
            return None
        return SharedStoreView(url=place, folder=self._nameserver.lookups.cluster_id())


def _compactions(store: QueueStore | SharedQueueStore, now: float) -> CompactionsView:
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
            if merge.work is HeldFor.COMPACTION
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


def _usage_levels(found: Sequence[tuple[Level, int, int]]) -> list[UsageLevelView]:
    return [
        UsageLevelView(level=level, kind=kind.value, files=files, bytes=count) for (level, kind), files, count in found
    ]


def _given_up(group: int, one: GivenUpFile) -> GivenUpFileView:
    return GivenUpFileView(
        name=one.name,
        group=group,
        after=one.after,
        upto=one.upto,
        record_count=one.record_count,
        batch_bytes=one.batch_bytes,
        at_ms=one.at_ms,
        by=one.by,
        fault=one.fault,
    )


def _levels(counts: Sequence[LevelCount]) -> list[LevelView]:
    return [LevelView(**{**count._asdict(), "kind": count.kind.value}) for count in counts]
