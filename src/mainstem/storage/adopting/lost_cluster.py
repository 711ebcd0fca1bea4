"""Reads from an object store all that a node needs to go on with a cluster, or to show it: which files count (the
chain), the topics (their list), and where each queue begins and ends (the indexes of the files).

If the store does not say something, the reader makes it up so that nothing is deleted and no offset is given twice:

    topics       one that is younger than the newest list gets a name made of its number, and keeps what it has
    partitions   as many as the list says, or as the files have
    log starts   the first offset that the store has: what DeleteRecords, or retention within a file, had passed is
                 there again. 0, where what is missing before may have been given up or compacted (`queue_begins.py`)
    terms        behind the largest that the store knows, by more than anybody can have had since
    histories    of queues that have moved: where their files lie, and last where the list has their slot

Two nodes that read the same store get the same. The reader refuses a store of which anything is missing or damaged: it
would not know the ends of queues.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import NamedTuple

from mainstem.model import slots_in_turns, topic_number_of
from mainstem.ports import ObjectStore
from mainstem.storage.adopting.queue_begins import QueueBegins, Queues
from mainstem.storage.adopting.queue_stays import Histories, QueueStays
from mainstem.storage.errors import StorageError
from mainstem.storage.extents.extent_index import ExtentIndex
from mainstem.storage.remote.chain.chain_reading import StoredTier
from mainstem.storage.remote.chain.topic_list_format import ListedTopic
from mainstem.storage.remote.survey.store_survey import ClusterSurvey, TopicSurvey, survey
from mainstem.storage.state.logs_behind import LOST_TERMS

FAULTS_TOLD = 5
"""More are counted."""


class LostCluster(NamedTuple):
    """The facts that an object store tells of a cluster."""

    cluster_id: str
    write_groups: int
    topics: tuple[ListedTopic, ...]
    """By their numbers; those that no list has are among them."""
    unlisted: tuple[str, ...]
    """The names made up for topics that no list has."""
    next_number: int
    """Of the next topic."""
    version: int
    """Of the list of topics."""
    tiers: tuple[StoredTier | None, ...]
    """Per write group what counts; None: it has nothing in the store."""
    queues: Queues
    slots: tuple[int, ...]
    """The write group of each slot; empty: they are in turns."""
    term: int
    """Behind all terms that the cluster can have had."""
    histories: Histories
    """The stays of queues that have been in other write groups than that of their slot."""

    def upto(self, group: int) -> int:
        """All blocks of a write group up to here are in the store, as far as it says."""
        tier = self.tiers[group]
        return tier.position.upto if tier is not None else 0

    def numbers(self) -> tuple[int, ...]:
        """Per write group the last change; they grow while the cluster is alive."""
        return tuple(tier.position.number if tier is not None else 0 for tier in self.tiers)


async def read_lost_cluster(store: ObjectStore, cluster_id: str) -> LostCluster:
    """Read a cluster's folder of a store. Raises `StorageError`, naming what is missing or damaged."""
    epochs, begins, stays = _Epochs(), QueueBegins(), QueueStays()

    def add(name: str, index: ExtentIndex) -> None:
        epochs.add(index)
        begins.add(name, index)
        stays.add(name, index)

    found = await survey(store, cluster_id, add)
    _refuse_faults(found)
    topics, unlisted = _topics(found)
    count = max([found.write_groups, *(one.group + 1 for one in found.groups)])
    if count > found.write_groups:
        raise StorageError(
            f"cluster {cluster_id} cannot be adopted: the store has files of {count} write groups, and the list of its "
            f"topics is from when it had {found.write_groups}, so that nobody can tell in which of them a queue is. "
            "--export writes what it has"
        )
    tiers = tuple(found.tiers.get(group) for group in range(count))
    return LostCluster(
        cluster_id,
        count,
        topics,
        unlisted,
        max([found.next_number, *(topic.number + 1 for topic in found.topics)]),
        found.topics_version,
        tiers,
        begins.queues(found.tiers, topics),
        found.slots,
        max([epochs.largest, *(tier.position.epoch for tier in found.tiers.values())]) + LOST_TERMS,
        _of_existing(stays.histories(found.slots or slots_in_turns(count)), topics),
    )


def _refuse_faults(found: ClusterSurvey) -> None:
    if found.faults:
        told = "; ".join(f"{fault.place}: {fault.what}" for fault in found.faults[:FAULTS_TOLD])
        more = f"; and {len(found.faults) - FAULTS_TOLD} more" if len(found.faults) > FAULTS_TOLD else ""
        raise StorageError(
            f"cluster {found.cluster_id} cannot be adopted, as not all that counts of it can be read: {told}{more}. "
            "Restore these objects; --export writes what is left without them"
        )
    if not found.topics_version:
        raise StorageError(f"the store has nothing of a cluster {found.cluster_id}: there is no list of its topics")


def _topics(found: ClusterSurvey) -> tuple[tuple[ListedTopic, ...], tuple[str, ...]]:
    """The topics that exist, and which of their names are made up."""
    taken = {topic.listed.name for topic in found.topics if topic.listed is not None}
    known: list[ListedTopic] = []
    unlisted: list[str] = []
    for topic in found.topics:
        if topic.deleted:
            continue
        if topic.listed is not None:
            known.append(_whole(topic.listed, topic))
        else:
            known.append(_made_up(found.cluster_id, topic, taken))
            unlisted.append(known[-1].name)
    return tuple(known), tuple(unlisted)


def _whole(listed: ListedTopic, topic: TopicSurvey) -> ListedTopic:
    """A topic with the partitions that came after the list."""
    return ListedTopic(
        listed.name, listed.number, listed.topic_id, max(listed.partitions, _partitions(topic)),
        listed.replication_factor, listed.configs, listed.internal,
    )  # fmt: skip


def _made_up(cluster_id: str, topic: TopicSurvey, taken: set[str]) -> ListedTopic:
    """A topic that no list has: nothing of it is deleted before somebody has looked at it."""
    name = f"adopted-topic-{topic.number}"
    while name in taken:
        name += "-"
    taken.add(name)
    topic_id = uuid.uuid5(uuid.NAMESPACE_OID, f"{cluster_id} {topic.number}")
    return ListedTopic(name, topic.number, topic_id, _partitions(topic), 1, {"retention.ms": "-1"}, False)


def _partitions(topic: TopicSurvey) -> int:
    return max((part.partition + 1 for part in topic.partitions), default=1)


def _of_existing(histories: Histories, topics: Iterable[ListedTopic]) -> Histories:
    numbers = {topic.number for topic in topics}
    return {queue_id: stays for queue_id, stays in histories.items() if topic_number_of(queue_id) in numbers}


class _Epochs:
    """Collects the leader epochs of batches."""

    def __init__(self) -> None:
        self.largest = 0

    def add(self, index: ExtentIndex) -> None:
        if len(index.rows):
            self.largest = max(self.largest, int(index.rows["leader_epoch"].max()))
