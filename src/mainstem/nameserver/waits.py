"""Waiting for the metadata: until this node has applied all that was committed, or until something has become so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from mainstem.nameserver.cluster_ports import ClusterPorts
from mainstem.nameserver.errors import MetadataUnavailable
from mainstem.nameserver.quorum.metadata_quorum import MetadataQuorum
from mainstem.nameserver.state.replica import MetadataReplica
from mainstem.rpc.errors import RpcError
from mainstem.rpc.messages.metadata import COMMITTED
from mainstem.rpc.wire.method import Nothing

READ_SECONDS_MAX = 1.0
"""After so long a read is repeated, since its message may be lost."""
PAUSE_SECONDS = 0.1


class MetadataWaits:
    """Waits until this node's replica has what is asked for."""

    def __init__(
        self,
        quorum: MetadataQuorum,
        replica: MetadataReplica,
        sleep: Callable[[float], Awaitable[None]],
        wait_seconds_max: float,
        ports: ClusterPorts | None,
    ) -> None:
        """`ports` None: there are no other nodes."""
        self._ports = ports
        self._quorum = quorum
        self._replica = replica
        self._sleep = sleep
        self._wait_seconds_max = wait_seconds_max

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
