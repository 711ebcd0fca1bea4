"""Waiting for the metadata: until this node has applied all that was committed, or until something has become so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from mainstem.nameserver.cluster_ports import ClusterPorts
from mainstem.nameserver.errors import MetadataUnavailable
from mainstem.nameserver.quorum.follow import Follower
from mainstem.nameserver.quorum.metadata_quorum import MetadataQuorum
from mainstem.nameserver.state.replica import MetadataReplica
from mainstem.rpc.errors import RpcError
from mainstem.rpc.messages.metadata import COMMITTED
from mainstem.rpc.wire.method import Nothing

READ_SECONDS_MAX = 1.0
"""After so long a read is repeated, since its message may be lost."""
FOLLOW_SECONDS_MAX = 1.0
"""How long one member may take to tell of an entry that another node has applied: it takes milliseconds."""
FOLLOW_TRIES = 3
"""Members that are followed in turn: of the usual three, one at least is among those that the leader counts on."""
PAUSE_SECONDS = 0.1

log = logging.getLogger(__name__)


class MetadataWaits:
    """Waits until this node's replica has what is asked for."""

    def __init__(
        self,
        quorum: MetadataQuorum,
        replica: MetadataReplica,
        sleep: Callable[[float], Awaitable[None]],
        wait_seconds_max: float,
        ports: ClusterPorts | None,
        follower: Follower | None = None,
    ) -> None:
        """`ports` and `follower` None: there are no other nodes."""
        self._ports = ports
        self._quorum = quorum
        self._replica = replica
        self._sleep = sleep
        self._wait_seconds_max = wait_seconds_max
        self._follower = follower
        self._gave_up_at: int | None = None

    async def current(self) -> None:
        """Wait until this node has applied all that was committed before the call: its lookups then answer as
        the leader's would have. Raises `MetadataUnavailable`."""
        reason = "no leader of the metadata quorum is known"
        try:
            async with asyncio.timeout(self._wait_seconds_max):
                while True:
                    try:
                        async with asyncio.timeout(READ_SECONDS_MAX):
                            return await self._read()
                    except TimeoutError:
                        reason = "the leader of the metadata quorum does not answer"
                    except MetadataUnavailable as error:
                        reason = str(error)
                        if self._quorum.failure is not None:
                            raise
                    await self._sleep(PAUSE_SECONDS)
        except TimeoutError:
            raise MetadataUnavailable(f"the metadata cannot be read safely now: {reason}; try again") from None

    async def _read(self) -> None:
        """A member asks its leader; a node that is none asks a member, and waits until it has followed so far."""
        if self._ports is None or self._quorum.is_member:
            await self._quorum.read()
            return
        member = self._quorum.whom_to_ask()
        try:
            reply = await self._ports.calls.call(member, COMMITTED, Nothing(), timeout_seconds=READ_SECONDS_MAX)
        except RpcError as error:
            self._quorum.asked_in_vain()
            raise MetadataUnavailable(f"node {member}: {error}") from error
        index = reply.message.index
        await self.until(lambda: self._replica.applied_index >= index)

    @property
    def is_behind(self) -> bool:
        """Whether this node has gone on without entries of the metadata that it knows of, and has heard nothing
        since."""
        return self._gave_up_at == self._replica.applied_index

    async def followed(self, index: int) -> None:
        """Wait until this node has applied an entry that another node has applied, a few seconds at most: it goes on
        with what it knows where no member tells of that entry, and waits no more until it has heard of something. A
        member that is silent about it is left for another one meanwhile."""
        replica = self._replica
        for _ in range(FOLLOW_TRIES):
            if replica.applied_index >= index or self.is_behind:
                return
            try:
                async with asyncio.timeout(FOLLOW_SECONDS_MAX):
                    await self.until(lambda: replica.applied_index >= index)
            except TimeoutError:
                if self._follower is not None:
                    self._follower.leave_member()
            except MetadataUnavailable:
                return  # the metadata has failed, which others tell
        if replica.applied_index >= index:
            return
        log.warning(
            "no member of the metadata quorum tells of entry %d: this node goes on with %d",
            index,
            replica.applied_index,
        )
        self._gave_up_at = replica.applied_index

    async def deleted(self, topic_numbers: Sequence[int]) -> None:
        """Wait until this node has heard that the topics of these numbers are deleted. Raises
        `MetadataUnavailable`."""
        await self.until(lambda: all(map(self._replica.state.was_deleted, topic_numbers)))

    async def placed(self) -> Mapping[int, tuple[int, ...]]:
        """Returns the nodes of each write group's replicas once all are placed, which is when as many nodes have
        registered as the first quorum has. Raises `MetadataUnavailable`."""
        await self.until(lambda: bool(self._replica.state.placements))
        return dict(self._replica.state.placements)

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until `is_so`. Raises `MetadataUnavailable` once the metadata has failed, so that it cannot
        come true."""
        while not is_so():
            if self._quorum.failure is not None:
                raise MetadataUnavailable(f"the metadata failed: {self._quorum.failure}")
            await self._quorum.changed_since(self._quorum.version)
