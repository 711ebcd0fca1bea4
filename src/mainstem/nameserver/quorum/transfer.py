"""The leader offers its snapshot to a member that is too far behind, and the member fetches it.

The member pulls the leader's state of that moment, in parts, into memory (a few tens of MB at the most), and
only then tells its core; a transfer that breaks off begins anew when the leader offers again.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing

from mainstem.nameserver.cluster_ports import ClusterPorts
from mainstem.nameserver.errors import MetadataUnavailable
from mainstem.nameserver.quorum.metadata_quorum import MetadataQuorum
from mainstem.nameserver.quorum.quorum_snapshots import ReceivedSnapshot
from mainstem.raft import Membership, Snapshot
from mainstem.raft.messages import InstallSnapshot
from mainstem.rpc.errors import RpcError
from mainstem.rpc.handlers import RpcCall
from mainstem.rpc.messages.metadata import (
    FETCH_SNAPSHOT,
    OFFER_SNAPSHOT,
    FetchSnapshot,
    OfferSnapshot,
    SnapshotPart,
    SnapshotRefused,
)
from mainstem.rpc.wire.method import Nothing, Reply

TRANSFER_SECONDS_MAX = 120.0
PART_BYTES = 256 * 1024
COMMANDS_MAX = 2_000_000
"""More than the metadata of a full cluster has."""

log = logging.getLogger(__name__)


async def offer_snapshot(ports: ClusterPorts, message: InstallSnapshot) -> bool:
    """A leader offers its snapshot and waits; returns whether the member has it."""
    try:
        await ports.calls.call(
            message.to, OFFER_SNAPSHOT, OfferSnapshot(message.term), timeout_seconds=TRANSFER_SECONDS_MAX
        )
    except RpcError as error:
        log.info("node %d took no snapshot of the metadata: %s", message.to, error)
        return False
    return True


class Transfer:
    """Gives this node's snapshot to members that were offered it, and takes what is offered to this node."""

    def __init__(self, group: MetadataQuorum, ports: ClusterPorts) -> None:
        self._group = group
        self._ports = ports

    # the leader

    async def give(self, call: RpcCall[FetchSnapshot]) -> AsyncIterator[Reply[SnapshotPart]]:
        """Stream the state to the member. Raises `SnapshotRefused`."""
        try:
            name, commands = await self._group.snapshots.to_give()
        except MetadataUnavailable as error:
            raise SnapshotRefused(str(error)) from error
        for part in parts(name, commands):
            yield Reply(part)

    # the member

    async def take(self, call: RpcCall[OfferSnapshot]) -> Reply[Nothing]:
        """Fetch the snapshot that the leader offers. Raises `SnapshotRefused`."""
        assert call.node is not None, "the method is for nodes only"
        sender = call.node.node_id
        try:
            received = await self.fetch(sender)
        except (RpcError, ValueError) as error:
            raise SnapshotRefused(f"the snapshot could not be fetched: {error}") from error
        self._group.received_snapshot(sender, call.request.term, received)
        return Reply(Nothing())

    async def fetch(self, node_id: int) -> ReceivedSnapshot:
        """Raises `RpcError`, and ValueError for a stream that is no whole snapshot."""
        stream = self._ports.calls.stream(
            node_id, FETCH_SNAPSHOT, FetchSnapshot(), timeout_seconds=TRANSFER_SECONDS_MAX
        )
        async with aclosing(stream) as replies:
            return await joined(reply.message async for reply in replies)


def parts(name: Snapshot, commands: Iterable[bytes]) -> Iterable[SnapshotPart]:
    voters, learners = sorted(name.membership.voters), sorted(name.membership.learners)
    total, size = 0, 0
    held: list[bytes] = []
    for command in commands:
        held.append(command)
        total += 1
        size += len(command)
        if size >= PART_BYTES:
            yield SnapshotPart(name.index, name.term, voters, learners, held)
            held, size = [], 0
    yield SnapshotPart(name.index, name.term, voters, learners, held, total)


async def joined(received: AsyncIterator[SnapshotPart]) -> ReceivedSnapshot:
    """Raises ValueError for a stream that is no whole snapshot."""
    name: Snapshot | None = None
    commands: list[bytes] = []
    async for part in received:
        membership = Membership.of(part.voters, part.learners)
        named = Snapshot(part.index, part.term, membership)
        if name not in (None, named) or not membership.voters or membership.voters & membership.learners:
            raise ValueError(f"a part of snapshot {named} in snapshot {name}")
        name = named
        commands += part.commands
        if len(commands) > COMMANDS_MAX:
            raise ValueError(f"a snapshot of more than {COMMANDS_MAX} commands")
        if part.total >= 0:
            if part.total != len(commands):
                raise ValueError(f"{len(commands)} of {part.total} commands of a snapshot")
            return ReceivedSnapshot(name, commands)
    raise ValueError("a snapshot without its last part")
