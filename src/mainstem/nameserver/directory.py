"""Opens a node's metadata directory: its log, vote and state, the node it belongs to, and the members of its
quorum.

All files are read and judged before any is written. A new directory is made in the order vote, membership (a
snapshot of nothing, at index 0), log: while the log is missing, the next start begins anew.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from mainstem.model import OWN_LEVELS, LevelRange, NodeRole
from mainstem.nameserver.config import NODE_ID_MAX, NameserverConfig
from mainstem.nameserver.disk.log_format import LogRecordKind
from mainstem.nameserver.disk.metadata_files import DIRECTORY, VOTE, log_path, snapshot_path
from mainstem.nameserver.disk.metadata_log import MetadataLog, MetadataSnapshot
from mainstem.nameserver.disk.metadata_recovery import FoundEntries
from mainstem.nameserver.disk.vote_file import DirectoryOwner, Vote, VoteFile
from mainstem.nameserver.errors import ForeignDirectory, InconsistentCommand, MetadataCorrupt
from mainstem.nameserver.quorum.quorum_log import QuorumLog, decode_membership, encode_membership, from_stored
from mainstem.nameserver.state.changes import COMMANDS_PER_TURN, Ids
from mainstem.nameserver.state.commands import CreateCluster, decode_change, decode_command
from mainstem.nameserver.state.replica import MetadataReplica
from mainstem.nameserver.state.resource_configs.topic_defaults import TopicDefaults
from mainstem.ports import Files
from mainstem.raft import Entry, LoggedMembership, Membership

JOURNAL_DIRECTORY = "journal"
ALONE_AS_NODE_0 = NODE_ID_MAX + 1
"""Raft numbers members from 1: a node 0, which can only be a cluster of its own, goes by this number."""


def member_id(node_id: int) -> int:
    return node_id or ALONE_AS_NODE_0


@dataclass(slots=True)
class Directory:
    """An opened directory. `found`: the files that were there; `replica` has the newest snapshot applied,
    nothing behind it."""

    files: Files
    log: MetadataLog
    found: FoundEntries
    replica: MetadataReplica
    vote_file: VoteFile | None
    """None: the directory is new, or version 0.1 made it."""
    holds_messages_alone: bool = False
    """Whether there are messages and no metadata: as on a node that follows the metadata without a vote, which keeps
    none on disk. Only a cluster that knows this directory can tell to which topics they belong."""
    alone_from: int | None = None
    """From this entry on the membership is `alone`, since the other members were given up, until a later
    entry changes it."""
    alone: Membership | None = None

    @property
    def new(self) -> bool:
        """Whether no member of any metadata quorum has worked here."""
        return self.found.last_index == 0 and (self.vote_file is None or self.vote_file.vote.term == 0)

    @property
    def owned_vote_file(self) -> VoteFile:
        assert self.vote_file is not None, "`take` comes first"
        return self.vote_file

    @property
    def vote(self) -> Vote:
        return self.owned_vote_file.vote

    def memberships(self, first: Membership) -> list[LoggedMembership]:
        """All memberships in the log; `first` is the one a quorum began with that has recorded none."""
        snapshot = self.found.snapshot
        began = first
        if snapshot is not None and snapshot.membership is not None:
            began = decode_membership(snapshot.membership)
        logged = [LoggedMembership(snapshot.index if snapshot is not None else 0, began)]
        for entry in self.found.entries:
            if entry.kind == LogRecordKind.MEMBERSHIP:
                logged.append(LoggedMembership(entry.index, decode_membership(entry.payload)))
        if self.alone_from is not None and self.alone is not None:
            index = max(self.alone_from, logged[0].index)
            before, later = [it for it in logged if it.index < index], [it for it in logged if it.index > index]
            logged = [*before, LoggedMembership(index, self.alone), *later]
        return logged

    def entries(self) -> list[Entry]:
        return [from_stored(entry) for entry in self.found.entries]

    def quorum_log(self) -> QuorumLog:
        snapshot = self.found.snapshot
        term_before = snapshot.term if snapshot is not None else 0
        return QuorumLog(self.found.first_index, term_before, self.entries())

    async def apply_committed(self, *, all_of_it: bool) -> None:
        """Apply the entries known to be committed; on a node alone, all of them are. Raises `MetadataCorrupt`
        naming the entry that makes no sense."""
        hint = self.vote_file.vote.commit if self.vote_file is not None else 0
        for entry in self.found.entries:
            if entry.index > hint and not all_of_it:
                return
            payload = entry.payload if entry.kind == LogRecordKind.CHANGE else b""
            try:
                await self.replica.apply(entry.index, entry.term, payload)
            except (ValueError, InconsistentCommand) as error:
                place = self.found.places[entry.index]
                raise MetadataCorrupt(place.path, place.position, str(error)) from error

    def cluster_id(self) -> str | None:
        """The id of the cluster that the newest entries belong to, committed or not; None: there is no
        cluster yet."""
        cluster = self.replica.state.cluster
        for entry in self.found.entries:
            if cluster is None and entry.kind == LogRecordKind.CHANGE:
                created = [it for it in decode_change(entry.payload).commands if isinstance(it, CreateCluster)]
                cluster = created[0] if created else None
        return cluster.cluster_id if cluster is not None else None

    async def take(self, node_id: int, ids: Ids) -> DirectoryOwner:
        """Make the vote file if there is none: from then on the directory is this node's."""
        if self.vote_file is None:
            # version 0.1 kept no votes: its node was alone, and all it logged is committed
            found = self.found
            term = found.entries[-1].term if found.entries else (found.snapshot.term if found.snapshot else 0)
            owner = DirectoryOwner(node_id, ids.request())
            self.vote_file = await VoteFile.create(self.files, owner, Vote(term, None, found.last_index))
        return self.vote_file.owner

    async def start(self, first: Membership) -> None:
        """Make the missing files, and get ready to append."""
        if self.found.snapshot is None and not self.found.version_1:
            await self.log.begin(MetadataSnapshot(0, 0, encode_membership(first), ()))
        await self.log.start(self.found)

    async def close(self) -> None:
        try:
            await self.log.close()
        finally:
            if self.vote_file is not None:
                await self.vote_file.close()


async def open_directory(files: Files, config: NameserverConfig, levels: LevelRange = OWN_LEVELS) -> Directory:
    """Read and judge the directory; nothing is changed before `Directory.start`. Raises `ForeignDirectory`,
    `MetadataCorrupt`, OSError."""
    log, found = await MetadataLog.open(files, bytes_max=config.log_bytes_max)
    defaults = TopicDefaults(config.topic_defaults, config.node_id)
    replica = MetadataReplica(defaults, levels, has_remote_store=bool(config.remote_dir))
    directory = Directory(files, log, found, replica, None)
    try:
        await _open_vote(directory)
        await _restore(directory)
        if directory.vote_file is not None and directory.vote_file.owner.node_id != config.node_id:
            raise ForeignDirectory(
                f"the directory belongs to node {directory.vote_file.owner.node_id}, "
                f"the configuration says node {config.node_id}: correct node_id, or give node {config.node_id} a "
                f"write_dir and a store_dir of its own"
            )
        changes = (entry for entry in found.entries if entry.kind == LogRecordKind.CHANGE)
        if directory.replica.state.cluster is None and not any(changes) and await files.names(JOURNAL_DIRECTORY):
            if directory.vote_file is None or not config.peers:
                raise ForeignDirectory(
                    "the directory holds messages but no metadata that says to which topics they belong; "
                    "restore its metadata directory, or start in an empty directory"
                )
            directory.holds_messages_alone = True
    except BaseException:
        await directory.close()
        raise
    return directory


async def nodes_named(files: Files, node_id: int) -> list[int]:
    """The other nodes of the cluster that hold something, by the metadata in a stopped node's directory, ascending;
    none where it has no metadata. Raises `ForeignDirectory` where a node runs, `MetadataCorrupt`, OSError."""
    if not await files.names(DIRECTORY):
        return []
    log, found = await MetadataLog.open(files, bytes_max=0)
    directory = Directory(files, log, found, MetadataReplica(TopicDefaults({}, node_id)), None)
    try:
        await _restore(directory)
        await directory.apply_committed(all_of_it=True)
        nodes = directory.replica.state.node_table.nodes.values()
        return sorted(it.node_id for it in nodes if it.node_id != node_id and it.roles != {NodeRole.BROKER})
    finally:
        await directory.close()


async def _open_vote(directory: Directory) -> None:
    found = directory.found
    try:
        directory.vote_file = await VoteFile.open(directory.files)
    except FileNotFoundError:
        if (found.snapshot is not None or found.newest is not None) and not found.version_1:
            raise MetadataCorrupt(VOTE, 0, "the file is missing") from None
        if found.newest is not None and found.newest.version > 1:
            raise MetadataCorrupt(VOTE, 0, "the file is missing") from None
        return
    if found.last_index < directory.vote.commit:
        what = f"entries {found.last_index + 1} to {directory.vote.commit} are missing, which were on the disk"
        raise MetadataCorrupt(log_path(found.newest.first_index if found.newest is not None else 1), 0, what)
    if directory.vote.term and not found.version_1:
        if found.snapshot is None:
            raise MetadataCorrupt(snapshot_path(0), 0, "the file is missing")
        if found.snapshot.index == 0 and found.newest is None:
            raise MetadataCorrupt(log_path(1), 0, "the file is missing")


async def _restore(directory: Directory) -> None:
    """Put the snapshot's state into the replica, and read every entry once."""
    found, replica = directory.found, directory.replica
    if (snapshot := found.snapshot) is not None:
        for number, record in enumerate(snapshot.commands, 1):
            try:
                replica.state.apply(decode_command(record.payload))
            except (ValueError, InconsistentCommand) as error:
                raise MetadataCorrupt(snapshot.path, record.position, str(error)) from error
            if number % COMMANDS_PER_TURN == 0:
                await asyncio.sleep(0)
        await replica.settle()
        replica.applied_index, replica.applied_term = snapshot.index, snapshot.term
        try:
            if snapshot.membership is not None:
                decode_membership(snapshot.membership)
        except ValueError as error:
            raise MetadataCorrupt(snapshot.path, 0, str(error)) from error
    for entry in found.entries:
        try:
            from_stored(entry)
        except ValueError as error:
            place = found.places[entry.index]
            raise MetadataCorrupt(place.path, place.position, str(error)) from error
