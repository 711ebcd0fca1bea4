"""The same question to the HTTP ports of all nodes of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from mainstem.address import Address, AddressError, parsed
from mainstem.cli.clients.client_settings import http_address
from mainstem.cli.clients.http_node import HttpNode
from mainstem.cli.errors import CommandLineError
from mainstem.console.views.of_cluster import NodeView

T = TypeVar("T")

NODES_ASKED_AT_ONCE = 16


def of_every_node(
    asked: str, nodes: Sequence[NodeView], question: Callable[[HttpNode], T], *, timeout_seconds: float
) -> dict[int, T | None]:
    """The answers of `nodes`, by node id; None of those that give none in time, or have no HTTP port. `asked`: the
    address of the node that told of them; what lets a visitor in there is shown to the others, too."""

    def answer(node: NodeView) -> T | None:
        if node.http is None:
            return None
        address = http_address(asked).beside(reached_at(node, node.http))
        try:
            return question(HttpNode(address, timeout_seconds=timeout_seconds))
        except CommandLineError:
            return None

    with ThreadPoolExecutor(NODES_ASKED_AT_ONCE) as pool:
        found = list(pool.map(answer, nodes))
    return {node.node_id: it for node, it in zip(nodes, found, strict=True)}


def reached_at(node: NodeView, http: str) -> str:
    """The address at which others reach a node's HTTP port: one that listens on all interfaces tells no host of its
    own."""
    try:
        address = parsed(http)
    except AddressError:  # of another version: asked as it is told
        return http
    return str(Address(node.host, address.port)) if address.host in ("0.0.0.0", "::") else http
