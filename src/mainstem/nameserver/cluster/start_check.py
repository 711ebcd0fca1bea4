"""A node shows its start to the other nodes, and finds out whether it has forgotten something.

Before the node says anything else, it has asked a majority of the nodes that may share a Raft group with it, itself
included, and tried all others: without a majority nothing could be agreed on anyway, and one node that knows is
enough. It asks nodes that were away as soon as they answer. If one of them knows better after all, the node cannot
take back what it said meanwhile: it ends its part in everything, and its next start knows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from mainstem.nameserver.cluster_ports import ClusterPorts
from mainstem.nameserver.disk.metadata_files import VOTE
from mainstem.nameserver.disk.starts import is_older
from mainstem.nameserver.disk.starts_file import StartsFile
from mainstem.nameserver.errors import NameserverError
from mainstem.prompt_future import PromptFuture
from mainstem.rpc.errors import NotServed, RpcError
from mainstem.rpc.messages.starts import METADATA_FORGOT, SHOW_START, MemberForgot, Remembered
from mainstem.rpc.raft.raft_member import METADATA_QUORUM

ATTEMPT_SECONDS_MAX = 1.0
COME_BACK_SECONDS_MAX = 3.0
"""The leader commits an entry before it answers."""
PAUSE_SECONDS = 0.2
PAUSE_LATER_SECONDS = 1.0
"""Between attempts at nodes that were away at the start."""
OLDER_COPY = "it runs on an older copy of its directories"
TELL_SECONDS = 5.0
"""A longer wait is logged, and logged again after as long."""

log = logging.getLogger(__name__)


async def come_back(node_id: int, voters: Iterable[int], ports: ClusterPorts) -> tuple[int, Remembered]:
    """Ask for a leader of the metadata quorum to help this node, which has forgotten something; returns the
    leader's node id and its answer. Waits as long as there is none."""
    others = sorted(set(voters) - {node_id})
    rounds = 0
    while True:
        for other in others:
            try:
                reply = await ports.calls.call(
                    other, METADATA_FORGOT, MemberForgot(METADATA_QUORUM), timeout_seconds=COME_BACK_SECONDS_MAX
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
    """This node has forgotten votes and entries, and found out after it had spoken: only the next start can
    mend that."""


class StartCheck:
    """Shows this start to the others: `before_all` first, then `run` as a task."""

    def __init__(self, node_id: int, starts: StartsFile, ports: ClusterPorts) -> None:
        self._node_id = node_id
        self.starts = starts
        self._ports = ports
        self.found_late: PromptFuture[OldCopy] = PromptFuture()
        """Settled when the node learns only after it has spoken that it has forgotten something."""
        self._waiting: set[int] = set()
        """Nodes that have not answered since this start, or cannot judge it yet."""
        self._matched: set[int] = set()
        """Nodes that have judged this start, and found nothing."""
        self._undecided: set[int] = set()
        """Of the nodes waited for: those that run on an older copy of their own directories."""

    async def check_vote(self, nonce: bytes) -> None:
        """Compare the metadata's vote file: a start whose nonce begins with `nonce` wrote it last."""
        if is_older(self.starts.remembers, VOTE, nonce):
            await self._forgot(f"{VOTE} is an older copy of itself", copied=False)

    async def before_all(self, node_ids: Iterable[int]) -> None:
        """Show the start; returns when this node may speak. By then `StartsFile` knows what the node has
        forgotten."""
        others = set(node_ids) - {self._node_id}
        self._waiting = set(others)
        self._matched.clear()
        quorum = (len(others) + 1) // 2 + 1
        rounds = 0
        while True:
            answers = await asyncio.gather(*map(self._show, sorted(self._waiting)))
            rounds += 1
            if any(matches is False for matches in answers):
                await self._forgot()
                self._waiting = set(others)  # they must learn that this node knows of its loss
                self._matched.clear()
                continue
            if len(others) + 1 - len(self._waiting) >= quorum:
                if len(self._matched) + 1 >= quorum:
                    self.starts.found_believed()
                return
            if rounds % round(TELL_SECONDS / PAUSE_SECONDS) == 0:
                log.warning(
                    "this node waits for a majority, to learn whether it runs on an older copy of its directories: "
                    "%s; if nobody else is left: mainstem cluster recover",
                    "; ".join(map(self._why_waiting, sorted(self._waiting))),
                )
            await self._ports.sleep(PAUSE_SECONDS)

    async def run(self) -> None:
        """Ask the nodes that were away. Raises `OldCopy`."""
        while self._waiting:
            await self._ports.sleep(PAUSE_LATER_SECONDS)
            for node_id in sorted(self._waiting):
                if await self._show(node_id) is False:
                    await self._forgot()
                    error = OldCopy(
                        f"node {node_id} has seen a start of this node that its directories do not know: they are an "
                        "older copy. Start the node again: it catches up before it votes"
                    )
                    self.found_late.set_result(error)
                    raise error

    def _why_waiting(self, node_id: int) -> str:
        if node_id in self._undecided:
            return f"node {node_id} runs on an older copy of its own, and cannot tell before it has caught up"
        return f"node {node_id} did not answer"

    async def _show(self, node_id: int) -> bool | None:
        """Whether the node has seen only starts that this one knows; None: no answer, or one without a
        verdict."""
        try:
            reply = await self._ports.calls.call(
                node_id, SHOW_START, self.starts.shown(), timeout_seconds=ATTEMPT_SECONDS_MAX
            )
        except NotServed as error:  # the node's version does not remember starts
            log.debug("node %d does not judge starts: %s", node_id, error)
            self._waiting.discard(node_id)
            return True
        except RpcError as error:
            log.debug("node %d did not see this start yet: %s", node_id, error)
            self._undecided.discard(node_id)
            return None
        if reply.message.outdated:
            self._undecided.add(node_id)
            return None
        self._undecided.discard(node_id)
        self._waiting.discard(node_id)
        if reply.message.matches:
            self._matched.add(node_id)
        return reply.message.matches

    async def _forgot(self, why: str = OLDER_COPY, *, copied: bool = True) -> None:
        await self.starts.forgot_all(why, copied=copied)
        log.error(
            "this node has forgotten votes it gave and messages it acknowledged: %s. It votes for nobody and counts "
            "for nothing until it has caught up with a majority of the others; if those are lost for good: mainstem "
            "cluster recover",
            why,
        )
