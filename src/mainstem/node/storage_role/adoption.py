"""Makes the write_dir of a node that goes on with a cluster, or shows it, by what the cluster's folder of an object
store says alone.

The directory has its name when it is whole: until then it ends in `.partial`, and no node starts on it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from mainstem.nameserver.adopted_metadata import KnownCluster, write_metadata
from mainstem.nameserver.state.commands import CreateTopic, SlotMoved
from mainstem.node.storage_role.held_storage import NODE_ALONE
from mainstem.node.storage_role.store_directory import MANIFEST_NAME
from mainstem.ports import ObjectStore
from mainstem.storage.adopting.disk_one import write_disk_one
from mainstem.storage.adopting.lost_cluster import LostCluster
from mainstem.storage.adopting.queue_stays import FIRST_MOVE, moved_slots
from mainstem.storage.disks.disk_files import DiskFiles
from mainstem.storage.errors import StorageError
from mainstem.storage.object_stores.store_folder import StoreFolder
from mainstem.storage.remote.chain.chain_reading import read_chain
from mainstem.storage.remote.chain.owner_record import FoundOwner, OwnerRecord, read_owner, take_over
from mainstem.storage.remote.chain.topic_list_format import ListedTopic
from mainstem.storage.remote.chain.topic_list_reading import read_topic_list
from mainstem.storage.setup import remote_manifest_beside
from mainstem.storage.state.logs_behind import LOST_TERMS

PARTIAL = ".partial"

OWNER_ATTEMPTS = 3
"""A cluster that lives writes every `BEAT_SECONDS`; to read and replace takes less than one of them."""


async def refuse_if_alive(store: ObjectStore, cluster: LostCluster, seconds: float) -> None:
    """Look for so long whether anybody writes to the cluster's folder. Raises `StorageError` if so: the cluster is not
    lost. A cluster in which nothing is split meanwhile is not noticed by that (`become_owner`)."""
    await asyncio.sleep(seconds)
    folder = StoreFolder(store, cluster.cluster_id)
    for group, number in enumerate(cluster.numbers()):
        tier = await read_chain(folder, group)
        if (tier.position.number if tier is not None else 0) != number:
            raise StorageError(
                f"cluster {cluster.cluster_id} is alive: its write group {group} has written changes since the store "
                "was read first. Stop all of its nodes, for good; two clusters in one folder would break each other"
            )
    topics = await read_topic_list(folder)
    if topics is None or topics.version != cluster.version:
        raise StorageError(
            f"cluster {cluster.cluster_id} is alive: its list of topics has changed since the store was read first. "
            "Stop all of its nodes, for good"
        )


def term_behind(owner: OwnerRecord) -> int:
    """A term that no leader of the cluster has had which wrote this; that of an adoption on another node, if it did."""
    return owner.term + LOST_TERMS if owner.beats else owner.term


async def become_owner(
    store: ObjectStore, cluster: LostCluster, read_first: FoundOwner, node_id: int, *, although_alive: bool
) -> None:
    """Note in the cluster's folder that node `node_id` goes on with the cluster, in the place of the owner that was
    read before anything else. Raises `StorageError` if that one has told since that it lives, unless the operator says
    `although_alive`; then it finds out from the note that it is not the owner any more."""
    folder = StoreFolder(store, cluster.cluster_id)
    record = OwnerRecord(cluster.term, 0, node_id, time.time_ns() // 1_000_000)
    found = await take_over(folder, read_first, record)
    attempts = OWNER_ATTEMPTS if although_alive else 0
    while found is not None and attempts:
        found, attempts = await take_over(folder, await read_owner(folder), record), attempts - 1
    if found is None:
        return
    when = datetime.fromtimestamp(found.written_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    raise StorageError(
        f"cluster {cluster.cluster_id} is alive: its node {found.node_id} has said so in the store since this command "
        f"began, at {when} by its own clock. Stop all of its nodes, for good: two clusters in one folder would break "
        "each other. If some of them can be neither reached nor stopped, say --although-alive: they would go on in the "
        "same folder, and only write in their logs that they are not its owners any more"
    )


def refuse_existing(write_dir: Path) -> None:
    """Raises `StorageError` if there is anything at a place for a new write_dir, or in it."""
    for place in (write_dir, _partial(write_dir)):
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise StorageError(f"{place}: is not empty; the directory of a node that adopts a cluster begins empty")


async def write_node(
    write_dir: Path, cluster: LostCluster, node_id: int, members: Iterable[int], *, raises: bool
) -> None:
    """Make the write_dir of node `node_id`, which is absent or empty; `members`: the nodes that go on, this one among
    them; `raises`: whether queues go on far behind their ends. Durable when it returns. Raises `StorageError`,
    OSError."""
    refuse_existing(write_dir)
    partial = _partial(write_dir)
    partial.mkdir(parents=True, exist_ok=True)
    files = DiskFiles(partial)
    try:
        manifest = remote_manifest_beside(str(partial / MANIFEST_NAME))
        now_ms = time.time_ns() // 1_000_000
        await write_disk_one(files, manifest, cluster, node_id or NODE_ALONE, now_ms, raises=raises)
        known = KnownCluster(
            cluster.cluster_id,
            cluster.write_groups,
            map(_creation, cluster.topics),
            cluster.next_number,
            cluster.version,
            cluster.term // LOST_TERMS,
            cluster.slots,
            [
                SlotMoved(moved.slot, moved.group, FIRST_MOVE, list(moved.others))
                for moved in moved_slots(cluster.histories)
            ],
        )
        await write_metadata(files, node_id, members, os.urandom(16), known)
    except BaseException:
        await files.close()
        shutil.rmtree(partial, ignore_errors=True)
        raise
    await files.close()
    _give_name(partial, write_dir)


def _give_name(partial: Path, write_dir: Path) -> None:
    """Durable when it returns."""
    _sync_directory(partial)
    if write_dir.exists():
        write_dir.rmdir()
    partial.rename(write_dir)
    _sync_directory(write_dir.parent)


def _partial(write_dir: Path) -> Path:
    return write_dir.with_name(f"{write_dir.name}{PARTIAL}")


def _creation(topic: ListedTopic) -> CreateTopic:
    return CreateTopic(
        name=topic.name,
        number=topic.number,
        topic_id=topic.topic_id,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=topic.configs,
        internal=topic.internal,
    )


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
