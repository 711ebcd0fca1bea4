"""Nodes identify themselves in their hellos, and each end decides whether the two may talk.

Both ends check, each with what it knows, and an end that refuses tells the other why, so that both logs name the
reason. A caller without an identity (a splitter, a command) is a client: it may call every method that is not for
nodes only (`Method.nodes_only`).
"""

from __future__ import annotations

import msgspec

from mainstem.rpc.errors import (
    DuplicateNode,
    IdentityMissing,
    IdentityRefused,
    OtherCluster,
    OwnAddress,
    UnexpectedNode,
)
from mainstem.rpc.wire.frames import FRAME_BYTES_MAX
from mainstem.rpc.wire.identity import ANY_NODE, CLIENT, Identity

PROTOCOL_VERSION = 2
"""From version 2 on there are requests that are not answered (`FrameKind.TELL`)."""
PROTOCOL_VERSION_OLDEST = 1
TELLS_SINCE_VERSION = 2
MAGIC = "mainstem-rpc"


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """The first frame each end sends. From then on both speak the highest version that both know."""

    magic: str = MAGIC
    oldest: int = PROTOCOL_VERSION_OLDEST
    newest: int = PROTOCOL_VERSION
    frame_bytes_max: int = FRAME_BYTES_MAX
    """The sender of this hello accepts no larger frames."""
    name: str = ""
    """The sender's name, for logs."""
    role: str = CLIENT
    """`node`, with an identity, or `client`: a splitter, a command."""
    node: Identity | None = None
    seeks: int = ANY_NODE
    """The id of the node that the caller expects at this address."""
    reached_at: str = ""
    """HOST:PORT at which other nodes reach this one, for nodes that do not know it yet."""


def refusal(own: Hello, peer: Hello, where: str) -> IdentityRefused | None:
    """Why these two must not talk, as `own` sees it; None: they may. `where` is the other end's address."""
    mine, theirs = own.node, peer.node
    if theirs is None:
        if own.seeks == ANY_NODE:
            return None
        return IdentityMissing(
            f"looked for node {own.seeks} at {where}, but what answers does not say which node it is: "
            f"check the address, and the version that runs there"
        )
    if mine is not None:
        if theirs.cluster_id != mine.cluster_id:
            return OtherCluster(
                f"{theirs} at {where} is not of cluster {mine.cluster_id!r}, which node {mine.node_id} belongs to. If "
                f"it should be: nodes that found a cluster need the same nameserver.peers, its id follows from them; "
                f"one that comes later needs an empty write_dir and either the list that its cluster began with or "
                f"nameserver.cluster_id. If not: correct the address in nameserver.peers"
            )
        if theirs.node_id == mine.node_id:
            if theirs.incarnation == mine.incarnation:
                return OwnAddress(
                    f"{where} leads node {mine.node_id} to itself: give the other node's address in nameserver.peers"
                )
            return DuplicateNode(
                f"the node at {where} calls itself node {theirs.node_id} as well, from another write_dir: "
                f"give one of the two another node_id"
            )
    if own.seeks not in (ANY_NODE, theirs.node_id):
        return UnexpectedNode(
            f"looked for node {own.seeks} at {where} and found node {theirs.node_id}: "
            f"correct the address of node {own.seeks} in nameserver.peers"
        )
    if mine is not None and peer.seeks not in (ANY_NODE, mine.node_id):
        return UnexpectedNode(
            f"node {theirs.node_id} at {where} looks for node {peer.seeks} here, and this is node {mine.node_id}: "
            f"correct the address of node {peer.seeks} in its nameserver.peers"
        )
    return None


def duplicate(newcomer: Identity, newcomer_where: str, known: Identity, known_where: str) -> DuplicateNode | None:
    """Why a third node refuses a connection of `newcomer` while one of `known` is open; None: they are one
    node."""
    if newcomer.node_id != known.node_id or newcomer.incarnation == known.incarnation:
        return None
    return DuplicateNode(
        f"two nodes call themselves node {newcomer.node_id}: the one connected from {known_where}, and, with "
        f"another write_dir, the one at {newcomer_where}: give one of the two another node_id"
    )
