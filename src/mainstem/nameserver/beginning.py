"""The steps before a nameserver runs: its directory is judged and taken, it meets the other nodes, and shows them its
start.

A node that has forgotten votes or entries learns from the others up to which entry it must abstain.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable
from typing import NamedTuple

from mainstem.nameserver.cluster import bootstrap
from mainstem.nameserver.cluster.start_check import StartCheck, come_back
from mainstem.nameserver.cluster_ports import ClusterPorts, Connect, Facts
from mainstem.nameserver.config import NameserverConfig
from mainstem.nameserver.directory import Directory, member_id
from mainstem.nameserver.disk.metadata_files import VOTE
from mainstem.nameserver.disk.starts_file import StartsFile
from mainstem.nameserver.disk.vote_file import STAMP_BYTES, Vote
from mainstem.nameserver.errors import ForeignDirectory
from mainstem.nameserver.service import Introducer
from mainstem.nameserver.state.changes import Ids
from mainstem.nameserver.state.node_table import check_own_levels
from mainstem.raft import Membership
from mainstem.rpc.raft.raft_member import METADATA_QUORUM
from mainstem.rpc.wire.identity import Identity

log = logging.getLogger(__name__)


class Link(NamedTuple):
    """The parts of a nameserver that talk to other nodes."""

    identity: Identity
    ports: ClusterPorts
    introducer: Introducer


class Beginning(NamedTuple):
    """The state that a nameserver starts from."""

    directory: Directory
    """Taken and started: it is this node's, and ready to append."""
    first: Membership
    """The members that the quorum begins with, where its log has recorded none."""
    link: Link | None
    """None: there are no other nodes."""
    start_check: StartCheck | None
    abstains_to: int
    """The entry up to which this node has forgotten what it voted or held: until then it does not vote."""


async def begin(
    directory: Directory,
    randomness: random.Random,
    config: NameserverConfig,
    connect: Connect | None,
    facts: Facts,
    starts: StartsFile | None,
) -> Beginning:
    """Take an opened directory, and meet the other nodes where there are any. Raises as `Nameserver.open`."""
    node_id, peers = config.node_id, config.peer_addresses
    me = Membership.of([member_id(node_id)])
    first = me if directory.found.version_1 or not peers else Membership.of(peers)
    members = directory.memberships(first)[-1].membership.members
    if connect is None and members != me.members:
        raise ForeignDirectory(
            f"the directory belongs to a cluster of nodes {', '.join(map(str, sorted(members)))}; "
            f"give their addresses (nameserver.peers)"
        )
    await directory.apply_committed(all_of_it=members == me.members)
    check_own_levels(directory.replica.state.feature_level, facts.levels)
    _check_owner(directory, config)
    new = directory.new
    owner = await directory.take(node_id, Ids(randomness))
    link = start_check = None
    abstains_to = 0
    if connect is not None:
        cluster_id = directory.cluster_id() or config.cluster_id or bootstrap.cluster_id_of(peers)
        identity = Identity(cluster_id, node_id, owner.identity)
        ports = await connect(identity)
        for peer, address in peers.items():
            if peer != node_id:
                ports.calls.know(peer, address)
        link = Link(identity, ports, Introducer(node_id, directory.replica, ports.handlers))
        if new and peers:
            first = await bootstrap.first_members(identity, peers, ports, facts.levels)
        if starts is not None:
            placed = {node for replicas in directory.replica.state.placements.values() for node in replicas}
            directory.alone_from = await starts.alone_from(METADATA_QUORUM, directory.found.last_index)
            directory.alone = me
            voters = directory.memberships(first)[-1].membership.voters
            if directory.alone_from is not None and voters == me.voters:
                placed = set()  # no other node is left to ask
            start_check = StartCheck(node_id, starts, ports)
            await start_check.check_vote(directory.owned_vote_file.written_in)
            await start_check.before_all(voters | placed)
            if starts.has_lost(METADATA_QUORUM):
                abstains_to = await _come_back(directory, node_id, voters, ports)
            directory.owned_vote_file.stamp = starts.nonce[:STAMP_BYTES]
            await directory.owned_vote_file.write(directory.vote)
            await starts.wrote(VOTE)
    await directory.start(first)
    return Beginning(directory, first, link, start_check, abstains_to)


async def _come_back(directory: Directory, node_id: int, voters: Iterable[int], ports: ClusterPorts) -> int:
    """Rejoin the metadata quorum after votes and entries were forgotten; returns the entry up to which to
    abstain. In the term of the leader that answered, this node's vote is known: it went to that leader."""
    leader, remembered = await come_back(node_id, voters, ports)
    before = directory.vote
    if before.term < remembered.term or (before.term == remembered.term and before.vote is None):
        await directory.owned_vote_file.write(Vote(remembered.term, leader, before.commit))
    log.info("the metadata is caught up with node %d, up to entry %d, before this node votes", leader, remembered.index)
    return remembered.index


def _check_owner(directory: Directory, config: NameserverConfig) -> None:
    state = directory.replica.state
    found = directory.cluster_id()
    if found is None:
        return
    if config.cluster_id is not None and config.cluster_id != found:
        raise ForeignDirectory(
            f"the directory belongs to cluster {found}, the configuration says {config.cluster_id}: leave "
            f"nameserver.cluster_id out to go on in {found}, or give a directory that is empty"
        )
    node_ids = [node.node_id for node in state.nodes]
    if directory.found.version_1 and node_ids and config.node_id not in node_ids:
        raise ForeignDirectory(
            f"the directory belongs to node {node_ids[0]} of cluster {found}, "
            f"the configuration says node {config.node_id}: start it as node {node_ids[0]}, or give an empty directory"
        )
