"""Who is at the other end: what a node says of itself in its hello, and when two ends must not talk.

Both ends check, each with what it knows, and who refuses says so to the other, so that both logs name the
reason. A caller that says nothing of itself (a splitter, a command) is a client: it may call what is not kept
to nodes (`Method.nodes_only`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from mainstem.rpc.errors import (
    DuplicateNode,
    IdentityMissing,
    IdentityRefused,
    OtherCluster,
    OwnAddress,
    UnexpectedNode,
)

if TYPE_CHECKING:
    from mainstem.rpc.method import Hello

NODE = "node"
CLIENT = "client"

ANY_NODE = -1
"""The caller does not mind which node answers."""

INCARNATION_BYTES = 16


class Identity(msgspec.Struct, frozen=True):
    """A node of a cluster. `incarnation` is made with the node's write directory: two nodes that were given the
    same id by mistake differ in it, and so does a node that lost its disk from what it was."""

    cluster_id: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    node_id: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    incarnation: Annotated[bytes, msgspec.Meta(min_length=INCARNATION_BYTES, max_length=INCARNATION_BYTES)]

    def __str__(self) -> str:
        return f"node {self.node_id} of cluster {self.cluster_id!r}"


def refusal(own: Hello, peer: Hello, where: str) -> IdentityRefused | None:
    """Why these two must not talk, seen from `own`; None: they may. `where` is the other end's address."""
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


def duplicate(
    newcomer: Identity, newcomer_where: str, known: Identity, known_where: str
) -> DuplicateNode | None:
    """Why a third node takes no connection of `newcomer` while one of `known` is open; None: they are one node."""
    if newcomer.node_id != known.node_id or newcomer.incarnation == known.incarnation:
        return None
    return DuplicateNode(
        f"two nodes call themselves node {newcomer.node_id}: the one connected from {known_where}, and, with "
        f"another write_dir, the one at {newcomer_where}: give one of the two another node_id"
    )
