"""A start shows itself to the other nodes, and finds out whether it has forgotten something.

Before anything else is said, a majority of the nodes that may be in a Raft group with this one has been asked, this one
counted, and everybody else was tried: without a majority nothing could be agreed on anyway, and one node that knows is
enough. Those that were away are asked as soon as they answer. Where one of them knows better after all, what was said
meanwhile cannot be taken back: the node ends its part in everything, and its next start knows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from mainstem.nameserver.cluster_ports import ClusterPorts
from mainstem.nameserver.errors import NameserverError
from mainstem.nameserver.metadata_files import VOTE
from mainstem.nameserver.starts import is_older
from mainstem.nameserver.starts_file import StartsFile
from mainstem.rpc.errors import NotServed, RpcError
from mainstem.rpc.raft_member import METADATA_GROUP
from mainstem.rpc.starts import METADATA_FORGOT, SHOW_START, MemberForgot, Remembered

ATTEMPT_SECONDS_MAX = 1.0
COME_BACK_SECONDS_MAX = 3.0
"""The leader commits an entry before it answers."""
PAUSE_SECONDS = 0.2
PAUSE_LATER_SECONDS = 1.0
"""Between attempts at nodes that were away when this one began."""
OLDER_COPY = "it runs on an older copy of its directories"
TELL_SECONDS = 5.0
"""A wait that takes longer is told, as often."""

log = logging.getLogger(__name__)


async def come_back(node_id: int, voters: Iterable[int], ports: ClusterPorts) -> tuple[int, Remembered]:
    """What a leader of the metadata group answers one that has forgotten something; and who that is. Waits for as long
    as there is none."""
    others = sorted(set(voters) - {node_id})
    rounds = 0
    while True:
        for other in others:
            try:
                reply = await ports.calls.call(
                    other, METADATA_FORGOT, MemberForgot(METADATA_GROUP), timeout_seconds=COME_BACK_SECONDS_MAX
                )
            except RpcError as error:
                log.debug("node %d does not help this one come back: %s", other, error)
            else:
                return other, reply.message
        rounds += 1
        if rounds % round(TELL_SECONDS / PAUSE_SECONDS) == 1:
            log.warning(
                "this node has forgotten votes and entries of the metadata, and waits for a majority of the other "
                "members (%s) to lead it on; if they are lost for good: mainstem cluster recover",
                ", ".join(map(str, others)),
            )
        await ports.sleep(PAUSE_SECONDS)


class OldCopy(NameserverError):
    """This node has forgotten votes and entries, and found out too late for this life."""


class StartCheck:
    """`before_all`, then `run` as a task."""

    def __init__(self, node_id: int, starts: StartsFile, ports: ClusterPorts) -> None:
        self._node_id = node_id
        self.starts = starts
        self._ports = ports
        self.found_late: Callable[[OldCopy], None] = lambda error: None
        self._waiting: set[int] = set()
        """Nodes that have not answered in this life."""

    async def check_vote(self, nonce: bytes) -> None:
        """Term and vote in the metadata were written last by a start whose nonce begins so."""
        if is_older(self.starts.remembers, VOTE, nonce):
            await self._forgot(f"{VOTE} is an older copy of itself")

    async def before_all(self, node_ids: Iterable[int]) -> None:
        """Show the start; returns when this node may speak. What it has forgotten is known to `StartsFile` then."""
        others = set(node_ids) - {self._node_id}
        self._waiting = set(others)
        quorum = (len(others) + 1) // 2 + 1
        rounds = 0
        while True:
            answers = await asyncio.gather(*map(self._show, sorted(self._waiting)))
            rounds += 1
            if any(matches is False for matches in answers):
                await self._forgot()
                self._waiting = set(others)  # they are to know that this one knows
                continue
            if len(others) + 1 - len(self._waiting) >= quorum:
                return
            if rounds % round(TELL_SECONDS / PAUSE_SECONDS) == 0:
                log.warning(
                    "this node waits for a majority, to learn whether it runs on an older copy of its directories: "
                    "node %s did not answer",
                    ", ".join(map(str, sorted(self._waiting))),
                )
            await self._ports.sleep(PAUSE_SECONDS)

    async def run(self) -> None:
        """Ask those who were away. Raises `OldCopy`."""
        while self._waiting:
            await self._ports.sleep(PAUSE_LATER_SECONDS)
            for node_id in sorted(self._waiting):
                if await self._show(node_id) is False:
                    await self._forgot()
                    error = OldCopy(
                        f"node {node_id} has seen a start of this node that its directories do not know: they are an "
                        "older copy. Start the node again: it catches up before it votes"
                    )
                    self.found_late(error)
                    raise error

    async def _show(self, node_id: int) -> bool | None:
        """Whether the node has seen no start that this one does not know; None: no answer."""
        try:
            reply = await self._ports.calls.call(
                node_id, SHOW_START, self.starts.shown(), timeout_seconds=ATTEMPT_SECONDS_MAX
            )
        except NotServed as error:  # a version that remembers no starts
            log.debug("node %d does not judge starts: %s", node_id, error)
            self._waiting.discard(node_id)
            return True
        except RpcError as error:
            log.debug("node %d did not see this start yet: %s", node_id, error)
            return None
        self._waiting.discard(node_id)
        return reply.message.matches

    async def _forgot(self, why: str = OLDER_COPY) -> None:
        await self.starts.forgot_all(why)
        log.error(
            "this node has forgotten votes it gave and messages it acknowledged: %s. It votes for nobody and counts "
            "for nothing until it has caught up with a majority of the others; if those are lost for good: mainstem "
            "cluster recover",
            why,
        )
