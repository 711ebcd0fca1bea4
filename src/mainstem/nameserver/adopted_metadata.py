"""Makes the metadata directory of a node whose cluster has lost its metadata, of what is known of the cluster
elsewhere: its id, its write groups and its topics. Nodes and placements are not known: nodes register when they start,
and the write groups are placed anew.

Numbers that the lost metadata may have given out are not given again: entries are numbered behind those that there can
have been (a list of topics in the object store is numbered by them), and producer ids are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from mainstem.model import FeatureLevel
from mainstem.nameserver.directory import member_id
from mainstem.nameserver.disk.metadata_log import MetadataLog, MetadataSnapshot
from mainstem.nameserver.disk.vote_file import DirectoryOwner, Vote, VoteFile
from mainstem.nameserver.quorum.quorum_log import encode_membership
from mainstem.nameserver.state.changes import new_cluster
from mainstem.nameserver.state.commands import (
    AdvanceCounters,
    Command,
    CreateTopic,
    RaiseFeatureLevel,
    SlotMoved,
    encode_command,
)
from mainstem.ports import Files
from mainstem.raft import Membership

ENTRIES_BEHIND = 1 << 32
"""More changes of the metadata than were made since the list of topics was written."""

PRODUCER_IDS_BEHIND = 1 << 40
"""More producer ids than a cluster gives out before it is lost: a thousand a second for thirty years."""

TERM = 1 << 16
"""Of the metadata quorum. Nobody outside of the quorum knows its terms, and all its members begin anew."""


class KnownCluster(NamedTuple):
    """The facts that are known of a cluster."""

    cluster_id: str
    write_groups: int
    topics: Iterable[CreateTopic]
    """By their numbers, rising."""
    next_topic_number: int
    version: int
    """The last entry of the lost metadata that anything outside of it is numbered by."""
    losses: int
    """How often the cluster has lost its metadata, this time included."""
    slots: Sequence[int] = ()
    """The write group of each slot; empty: they are in turns."""
    moved: Sequence[SlotMoved] = ()
    """The slots whose queues have records in other write groups."""


async def write_metadata(
    files: Files, node_id: int, members: Iterable[int], identity: bytes, known: KnownCluster
) -> None:
    """Write the metadata directory of node `node_id`, which must be empty; `members`: the nodes of the metadata
    quorum, this one among them; `identity`: 16 random bytes, of this directory alone. Durable when it returns. Raises
    OSError, `MetadataUnavailable`, and `ForeignDirectory` when another process holds the directory."""
    index = known.version + ENTRIES_BEHIND
    membership = Membership.of(map(member_id, members))
    log, found = await MetadataLog.open(files, bytes_max=0)
    try:
        vote_file = await VoteFile.create(files, DirectoryOwner(node_id, identity), Vote(TERM, None, 0))
        await vote_file.close()
        commands = map(encode_command, _commands(known))
        await log.start(found)
        await log.install(MetadataSnapshot(index, TERM, encode_membership(membership), commands))
    finally:
        await log.close()


def _commands(known: KnownCluster) -> Iterable[Command]:
    begun = new_cluster(known.cluster_id, known.write_groups)
    yield replace(begun, slots=list(known.slots)) if known.slots else begun
    yield RaiseFeatureLevel(FeatureLevel.newest())
    yield from known.topics
    yield from known.moved
    yield AdvanceCounters(known.next_topic_number, known.losses * PRODUCER_IDS_BEHIND)
