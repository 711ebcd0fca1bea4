"""A storage role on a simulated machine, with the metadata that a nameserver would hold, through many lives.

Metadata survives everything here, as the nameserver's does, but can be hidden for a while: topics that exist
and topics that were deleted are then equally unknown (M).
"""

from __future__ import annotations

import copy
import itertools
import random
import uuid
from collections.abc import Iterable

from tests.fakes.simulated_loop import SimulatedLoop
from tests.simulation.machine import Machine
from tests.simulation.oracle import QueueOracle, Refusals, require

from mainstem.model import SLOTS, Durability, QueueOffsets, QueueRange, TimestampType, Topic, TopicSettings
from mainstem.storage.cluster.write_group_replication import Consensus
from mainstem.storage.config import StorageConfig
from mainstem.storage.journal.config import JournalConfig
from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.role import Storage
from mainstem.storage.setup import StorageSetup


class Settings:
    """The configuration of one run, drawn from its seed: small numbers, so that every bound is met."""

    def __init__(self, rng: random.Random) -> None:
        self.groups = rng.randint(1, 4)
        self.storage = StorageConfig(
            write_cache_bytes=rng.choice([0, 5000, 1 << 20]),
            block_bytes_max=rng.choice([4096, 8192, 1 << 22]),
            checkpoint_bytes=rng.choice([4096, 20_000, 1 << 20]),
            checkpoint_seconds=rng.choice([0.1, 1.0, 5.0]),
            prune_seconds=rng.choice([0.05, 0.3, 1.0]),
            retention_check_seconds=rng.choice([0.2, 2.0, 10.0]),
        )
        self.journal = JournalConfig(
            segment_bytes=rng.choice([4, 6, 12]) * 4096,
            segment_age_seconds=rng.choice([2.0, 20.0]),
            pool_segments=rng.randint(0, 2),
            pool_segments_max=rng.randint(2, 4),
            durability=rng.choice([Durability.SYNC, Durability.SYNC, Durability.ASYNC]),
            flush_interval_seconds=0.3,
            index_cache_bytes=rng.choice([0, 1 << 20]),
        )
        self.store = QueueStoreConfig(
            read_cache_bytes=rng.choice([0, 1 << 16, 1 << 20]),
            read_chunk_bytes=4096,
            index_cache_bytes=rng.choice([0, 1 << 20]),
            open_files_max=rng.choice([1, 256]),
            orphan_grace_seconds=30.0,
        )

    @property
    def synced(self) -> bool:
        return self.journal.durability is Durability.SYNC


class Metadata:
    """Topics that exist, and those that did."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.topics: dict[int, Topic] = {}
        self.deleted: set[int] = set()
        self.hidden = False

    def create(self) -> Topic:
        number = len(self.topics) + len(self.deleted) + 1
        rng = self._rng
        settings = TopicSettings(
            cleanup_policy=frozenset({rng.choice(["delete", "delete", "delete", "compact"])}),
            retention_ms=rng.choice([-1, 3000, 20_000, 600_000]),
            retention_bytes=rng.choice([-1, -1, 2000, 20_000]),
            retention_records=-1 if number % 3 else 30,
            message_timestamp_type=rng.choice(list(TimestampType)),
        )
        topic = Topic(
            name=f"topic-{number}",
            number=number,
            topic_id=uuid.UUID(int=number),
            partitions=rng.randint(1, 3),
            settings=settings,
        )
        self.topics[number] = topic
        return topic

    def delete(self, number: int) -> None:
        del self.topics[number]
        self.deleted.add(number)

    def listed(self) -> Iterable[Topic]:
        return [] if self.hidden else list(self.topics.values())

    def was_deleted(self, number: int) -> bool:
        return not self.hidden and number in self.deleted


class SimulatedNode:
    """The storage role, its metadata, and the oracles of its queues."""

    def __init__(self, machine: Machine, settings: Settings, rng: random.Random) -> None:
        self.machine = machine
        self.settings = settings
        self._randomness = copy.copy(rng)
        """The node's draws move nothing in the program."""
        self._uuids = itertools.count(1)
        self.metadata = Metadata(rng)
        self.queues: dict[int, QueueOracle] = {}
        """Of the topics that exist."""
        self.storage: Storage
        self.opened: list[Storage] = []
        """That of every life."""
        self.loop: SimulatedLoop
        self.refusals: list[Refusals] = []
        """Of each write group, in this life."""
        self.slots = [slot % settings.groups for slot in range(SLOTS)]

    async def start(self, loop: SimulatedLoop) -> None:
        """Recover, as a node does; then see what came back."""
        self.loop = loop
        self.refusals = [Refusals() for _ in range(self.settings.groups)]
        self.storage = await Storage.open(
            StorageSetup(
                write_files=self.machine.disk1,
                store_files=self.machine.disk2,
                clock=loop,
                config=self.settings.storage,
                journal_config=self.settings.journal,
                store_config=self.settings.store,
                manifest_path=self.machine.manifest_path,
                journal_path="journal",
                slots=self.slots,
                topics=self.metadata.listed,
                was_deleted=self.metadata.was_deleted,
                consensus=Consensus(randomness=self._randomness),
                manifest_page_files=4,
                new_id=lambda: uuid.UUID(int=next(self._uuids)),
            )
        )
        self.opened.append(self.storage)
        self.watch(self.storage)
        await self.storage.start()
        for number in self.storage.table.topics():
            if number in self.metadata.deleted:
                await self.storage.queues.delete([number])
        for topic in list(self.metadata.topics.values()):
            await self.create(topic)
        for queue in self.queues.values():
            queue.refusals = self.refusals[self.storage.group_of(queue.queue_id)]
            offsets = self.offsets(queue)
            require(offsets.end == offsets.high_watermark, f"{offsets}: uncommitted records after a start", "A")
            queue.survived(offsets.end)

    def watch(self, storage: Storage) -> None:
        """Called when the storage role of a life is open, before it begins its work."""

    async def create(self, topic: Topic) -> None:
        await self.storage.queues.create([QueueRange(topic.number, 0, topic.partitions)])
        for partition in range(topic.partitions):
            queue_id = topic.queue_id(partition)
            if queue_id not in self.queues and topic.number in self.metadata.topics:
                refusals = self.refusals[self.storage.group_of(queue_id)]
                self.queues[queue_id] = QueueOracle(queue_id, topic.settings, refusals=refusals)

    def forget(self, number: int) -> None:
        """The topic is being deleted: nothing is known of its queues any more."""
        self.metadata.delete(number)
        for queue_id in [queue_id for queue_id in self.queues if queue_id >> 32 == number]:
            del self.queues[queue_id]

    def offsets(self, queue: QueueOracle) -> QueueOffsets:
        """The queue's offsets, checked."""
        (offsets,) = self.storage.messages.offsets([queue.queue_id]).result()
        require(offsets is not None, f"queue {queue.queue_id:#x} is gone", "M")
        assert offsets is not None
        final = self.settings.synced
        queue.check_log_start(offsets.log_start, offsets.high_watermark, self.loop.now_ms(), final=final)
        if final:
            queue.promised_end = max(queue.promised_end, offsets.high_watermark)
        return offsets
