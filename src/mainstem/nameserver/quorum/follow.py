"""A node that is no member of the metadata quorum follows it: a member streams to it every change that it
applies.

A follower begins with a snapshot, then takes entry after entry; it keeps nothing on disk. When the stream breaks, it
asks another member and goes on from the entry it has reached.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from mainstem.nameserver.cluster_ports import ClusterPorts
from mainstem.nameserver.errors import InconsistentCommand, MetadataUnavailable
from mainstem.nameserver.quorum.metadata_quorum import MetadataQuorum
from mainstem.nameserver.quorum.transfer import joined, parts
from mainstem.nameserver.state.replica import MetadataReplica
from mainstem.raft import KIND_DATA
from mainstem.rpc.errors import RpcError
from mainstem.rpc.messages.metadata import FOLLOW, Follow, FollowPart, SnapshotPart
from mainstem.rpc.wire.method import Reply

STREAM_SECONDS_MAX = 600.0
"""Even a stream without faults ends after this long, and the follower asks for a new one."""
PAUSE_SECONDS = 0.2
BYTES_MAX = 1024 * 1024
KEEP_ALIVE_SECONDS = 1.0
"""After so long without a change a member repeats the last entry's index, so that silence means a broken
stream."""
SILENCE_SECONDS_MAX = 5.0
MEMBER_SECONDS_MIN = 0.9
"""A member has so long to send what it has before it may be left: less than anybody waits for an entry
(`waits.FOLLOW_SECONDS_MAX`), and longer than many entries take."""

log = logging.getLogger(__name__)


class Feed:
    """The member's end: streams a snapshot and entries to one follower."""

    def __init__(self, group: MetadataQuorum, replica: MetadataReplica) -> None:
        self._group = group
        self._replica = replica

    async def parts(self, index: int) -> AsyncIterator[FollowPart]:
        """The parts that follow entry `index`, without end. Raises `MetadataUnavailable`."""
        if not self._group.is_member:
            raise MetadataUnavailable("this node is no member of the metadata quorum itself; ask another")
        while True:
            if self._group.failure is not None:
                raise MetadataUnavailable(f"the metadata of this node failed: {self._group.failure}")
            if self._group.leader_id == 0:
                raise MetadataUnavailable("this node knows no leader of the metadata quorum; ask another")
            if self._group.waits_for_room and self._group.leader_id != self._group.node_id:
                raise MetadataUnavailable("this node's disk has no room for changes of the metadata; ask another")
            version = self._group.version
            if index < self._group.entries.first_index():
                name, commands = await self._group.snapshots.to_give()
                for part in parts(name, commands):
                    yield FollowPart(name.index, snapshot=part)
                index = name.index + 1
            elif index <= self._replica.applied_index:
                last = self._replica.applied_index
                for entry in self._group.entries.entries(index, last, BYTES_MAX):
                    payload = entry.data if entry.kind == KIND_DATA else b""
                    assert isinstance(payload, bytes), "changes are logged encoded"
                    yield FollowPart(entry.index, payload)
                    index = entry.index + 1
            else:
                try:
                    async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                        await self._group.changed_since(version)
                except TimeoutError:
                    yield FollowPart(index - 1)


class Follower:
    """The follower's end: applies what a member streams to it; `run` is a task."""

    def __init__(self, group: MetadataQuorum, replica: MetadataReplica, ports: ClusterPorts) -> None:
        self._group = group
        self._replica = replica
        self._ports = ports
        self._asked_last = 0
        self._silence: asyncio.Timeout | None = None
        """How long the member that is followed may be silent yet, while it is."""
        self._began = 0.0

    async def run(self) -> None:
        """Follow whenever this node is no member itself."""
        while True:
            version = self._group.version
            if self._group.is_member:
                await self._group.changed_since(version)
                continue
            voters = sorted(self._group.membership.voters)
            self._asked_last += 1
            self._began = self._ports.clock.monotonic()
            member = voters[self._asked_last % len(voters)]
            try:
                await self._follow(member)
            except (RpcError, TimeoutError, ValueError, InconsistentCommand) as error:
                log.info("following the metadata by node %d ended: %s", member, error)
            await self._ports.sleep(PAUSE_SECONDS)

    def leave_member(self) -> None:
        """The member that is followed lacks what another node has: follow another one, unless this one was asked a
        moment ago."""
        if self._silence is not None and self._ports.clock.monotonic() - self._began >= MEMBER_SECONDS_MIN:
            self._silence.reschedule(asyncio.get_running_loop().time())

    async def _follow(self, member: int) -> None:
        replica = self._replica
        first = replica.applied_index + 1 if replica.applied_index else 0
        stream = self._ports.calls.stream(member, FOLLOW, Follow(first), timeout_seconds=STREAM_SECONDS_MAX)
        async with aclosing(stream) as replies:
            received = self._heard(replies)
            async for part in received:
                if part.snapshot is not None:
                    await self._restore(part.snapshot, received)
                elif part.index > replica.applied_index + 1:
                    raise ValueError(f"entry {part.index} where {replica.applied_index + 1} belongs")
                else:
                    await replica.apply(part.index, replica.applied_term, part.payload)
                self._group.tell()
                if self._group.is_member:
                    return

    async def _restore(self, first: SnapshotPart, rest: AsyncIterator[FollowPart]) -> None:
        async def whole() -> AsyncIterator[SnapshotPart]:
            yield first
            async for part in rest:
                if part.snapshot is None:
                    raise ValueError("a snapshot ends in the middle")
                yield part.snapshot

        snapshot = await joined(whole())
        state = await self._replica.restored(snapshot.commands)
        await self._replica.replace(state, snapshot.name.index, snapshot.name.term)

    async def _heard(self, replies: AsyncGenerator[Reply[FollowPart], None]) -> AsyncIterator[FollowPart]:
        """The stream's parts. Raises TimeoutError when the member falls silent, or is left."""
        while True:
            async with asyncio.timeout(SILENCE_SECONDS_MAX) as self._silence:
                try:
                    reply = await anext(replies)
                except StopAsyncIteration:
                    return
                finally:
                    self._silence = None
            yield reply.message
