"""The parts that the storage role of a node is given: its disks, its settings, and its ways to the rest of the node."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mainstem.model import FeatureLevel, Topic, TopicsAsOf
from mainstem.ports import Clock, Files, ObjectStore, SideWork
from mainstem.side_thread import AtOnce
from mainstem.storage.cluster.write_group_replication import Consensus
from mainstem.storage.config import StorageConfig
from mainstem.storage.extents.extent_format import ABORTED_VERSION, FORMAT_VERSION
from mainstem.storage.journal.config import JournalConfig
from mainstem.storage.journal.encoding.format import BLOCK_ALIGNMENT, BLOCK_HEADER_BYTES, DIRECTORY_ROW_BYTES
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.placement import Placement
from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.queue_store.manifest.in_memory.file_table import PAGE_FILES
from mainstem.storage.remote.config import ReadCacheConfig
from mainstem.storage.remote.decided.remote_changes import AT_ONCE_BYTES_MAX, COMMAND_BYTES_MAX
from mainstem.supervised import Supervision
from mainstem.turns import Turns


def remote_manifest_beside(manifest_path: str) -> str:
    """The path of the remote tier's manifest."""
    path = Path(manifest_path)
    return str(path.with_name(f"remote-{path.name}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSetup:
    """All that a storage role is made from; what has a default serves a node alone."""

    write_files: Files
    """Disk 1."""
    store_files: Files
    """Disk 2; with a shared store, a directory on disk 1."""
    clock: Clock
    config: StorageConfig
    journal_config: JournalConfig
    store_config: QueueStoreConfig
    manifest_path: str
    journal_path: str
    """The absolute path of the journal's directory, for splitters on this host."""
    slots: Sequence[int]
    """Maps each slot to its write group, as of this start."""
    write_groups: int = 0
    """How many there are at this start; 0: no more than have slots."""
    topics: Callable[[], Iterable[Topic]]
    """Lists the topics that exist."""
    was_deleted: Callable[[int], bool]
    """Tells whether a topic number existed and was deleted."""
    consensus: Consensus = field(default_factory=Consensus)
    feature_level: Callable[[], FeatureLevel] = FeatureLevel.newest
    """The level that all nodes of the cluster can read, so that it may be written; it only rises."""
    side_work: SideWork = field(default_factory=AtOnce)
    """Inflates batches; by default within the event loop."""
    turns: Turns = field(default_factory=Turns)
    supervision: Supervision = field(default_factory=Supervision)
    new_id: Callable[[], uuid.UUID] = uuid.uuid4
    """Gives ids to a new queue store, to runs that stand for damaged ones, and to merges."""

    manifest_page_files: int = PAGE_FILES
    """Files of a page of the manifest."""

    remote_store: ObjectStore | None = None
    """The URL of the remote tier, below its folder for this cluster; None: the node has none."""
    topics_as_of: Callable[[], Awaitable[TopicsAsOf]] | None = None
    """Gives the topics that the store is told of; None: it is told of none."""
    read_cache_config: ReadCacheConfig = field(default_factory=ReadCacheConfig)
    """The files that this node keeps near of the remote tier."""
    remote_url: str = ""
    """For splitters, the URL of the object store…"""
    remote_folder: str = ""
    """…the folder…"""
    remote_config: ObjectStoreConfig = field(default_factory=ObjectStoreConfig)
    """…and how they reach it."""
    shared: bool = False
    """Whether the object store of the remote tier is the cluster's queue store: the splitter writes runs there, once
    for all replicas, and no node has store files of its own. It takes `remote_store`; `store_files` is then a small
    directory on disk 1, for what is kept near of the store."""

    def __post_init__(self) -> None:
        assert self.remote_store is not None or not self.shared, "a shared store is an object store"

    read_only: bool = False
    """Whether nothing is written to the object store, and nothing is deleted by age or size: the node shows what
    another cluster has there."""

    def placement(self) -> Placement:
        """The places of queues, as the metadata had them at this start."""
        placement = Placement(self.slots)
        placement.grow(self.slots, max(self.write_groups, placement.groups))
        return placement

    @property
    def remote_manifest_path(self) -> str:
        return remote_manifest_beside(self.manifest_path)

    @property
    def batch_bytes_max(self) -> int:
        """A batch that alone makes a block which the journal can take."""
        return self.journal_config.block_bytes_max - BLOCK_HEADER_BYTES - DIRECTORY_ROW_BYTES - BLOCK_ALIGNMENT

    @property
    def block_bytes_max(self) -> int:
        return min(self.config.block_bytes_max, self.batch_bytes_max)

    @property
    def command_bytes_max(self) -> int:
        """The names that one command of the remote tier may have: a block with it is as small as others."""
        return max(COMMAND_BYTES_MAX, min(AT_ONCE_BYTES_MAX, self.block_bytes_max // 2))

    def writes_hardened(self) -> bool:
        """Whether the cluster's feature level allows what came with `FeatureLevel.HARDENED`."""
        return self.feature_level() >= FeatureLevel.HARDENED

    def writes_merged(self) -> bool:
        """Whether the cluster's feature level allows merged files of the queue store."""
        return self.feature_level() >= FeatureLevel.MERGED

    def writes_tiered(self) -> bool:
        """Whether files may be moved to the remote tier: the cluster's feature level allows it, and the node writes."""
        return not self.read_only and self.feature_level() >= FeatureLevel.TIERED

    def joins_segments(self) -> bool:
        """Whether the cluster's feature level allows queue segments of one object."""
        return self.feature_level() >= FeatureLevel.JOINED

    def merges_joined(self) -> bool:
        """Whether merges and compactions write such segments: a node's own disk has them as Kafka has."""
        return self.shared and self.joins_segments()

    def has_transactions(self) -> bool:
        """Whether the cluster's feature level allows transactions, and the node writes."""
        return not self.read_only and self.feature_level() >= FeatureLevel.TRANSACTIONAL

    def run_format(self) -> int:
        """The newest format version of runs that the cluster's feature level allows."""
        return ABORTED_VERSION if self.writes_merged() else FORMAT_VERSION
