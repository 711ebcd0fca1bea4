"""The first minutes of a cluster: its id, its first members, and whether a new directory may take part.

The nodes of the first quorum are configured alike, so the cluster's id follows from what they have in common, before
any of them leads. A new directory asks the other nodes before it votes: a cluster may know this node from another
directory. That directory's votes are lost with it, and this node must not vote a second time under the same id.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
from collections.abc import Mapping

from mainstem.model import LevelRange
from mainstem.nameserver.cluster_ports import ClusterPorts
from mainstem.nameserver.errors import ForeignDirectory
from mainstem.nameserver.state.node_table import check_own_levels
from mainstem.raft import Membership
from mainstem.rpc.errors import DuplicateNode, IdentityRefused, OwnAddress, RpcError
from mainstem.rpc.messages.metadata import INTRODUCE, Introduction
from mainstem.rpc.wire.identity import Identity
from mainstem.rpc.wire.method import Nothing

INTRODUCE_SECONDS_MAX = 10.0
"""How long a new node waits for all others of the first quorum; then those who answered decide."""
ATTEMPT_SECONDS_MAX = 2.0
PAUSE_SECONDS = 0.2

log = logging.getLogger(__name__)


def cluster_id_of(peers: Mapping[int, str]) -> str:
    """Nodes that are configured with the same peers compute the same id."""
    lines = "\n".join(f"{node_id}={peers[node_id]}" for node_id in sorted(peers))
    digest = hashlib.sha256(f"mainstem cluster\n{lines}".encode()).digest()
    text = base64.urlsafe_b64encode(digest[:16]).decode().rstrip("=")
    return "m" + text[1:]  # command lines would take a leading '-' for an option


async def first_members(own: Identity, peers: Mapping[int, str], ports: ClusterPorts, levels: LevelRange) -> Membership:
    """The membership with which a node with a new directory begins. Raises `ForeignDirectory`,
    `UnreadableFeatureLevel`; and `IdentityRefused` when a node refuses to talk to this one, or this one to
    it, and no other node answers: most likely this node is configured wrongly. If another node does answer,
    the refusing one is taken for the wrong one, and the others do without it."""
    others = [node_id for node_id in peers if node_id != own.node_id]
    answers = await asyncio.gather(*(_introduction(node_id, ports) for node_id in others))
    refusals = [answer for answer in answers if isinstance(answer, IdentityRefused)]
    if refusals and not any(isinstance(answer, Introduction) for answer in answers):
        raise refusals[0]
    for answer in answers:
        if not isinstance(answer, Introduction) or not answer.voters or not answer.cluster_id:
            continue
        check_own_levels(answer.feature_level, levels)
        known = answer.incarnations.get(own.node_id, b"")
        if known not in (b"", own.incarnation) and own.node_id in answer.voters:
            raise ForeignDirectory(
                f"cluster {answer.cluster_id} knows node {own.node_id} from another directory, whose votes it relies "
                f"on; start it there, or replace it as a member of the metadata quorum and start this one under a "
                f"node_id of its own"
            )
        return Membership.of(answer.voters)
    return Membership.of(peers)


async def _introduction(node_id: int, ports: ClusterPorts) -> Introduction | IdentityRefused | None:
    """Ask one node to introduce itself; None: it did not answer for long enough. Raises `DuplicateNode` when
    it bears this node's id, and `OwnAddress` when it is this node: no other node can be blamed for that."""
    try:
        async with asyncio.timeout(INTRODUCE_SECONDS_MAX):
            while True:
                try:
                    reply = await ports.calls.call(node_id, INTRODUCE, Nothing(), timeout_seconds=ATTEMPT_SECONDS_MAX)
                    return reply.message
                except (DuplicateNode, OwnAddress):
                    raise
                except IdentityRefused as error:
                    return error
                except RpcError as error:
                    log.debug("node %d does not introduce itself yet: %s", node_id, error)
                await ports.sleep(PAUSE_SECONDS)
    except TimeoutError:
        log.warning("node %d did not answer; the metadata begins without its word", node_id)
        return None
