"""Calls to other nodes over TCP: one connection to each, made when first needed (`cluster_ports.Calls`)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping

from mainstem.rpc.client import Client
from mainstem.rpc.errors import ConnectionLost
from mainstem.rpc.identity import Identity
from mainstem.rpc.method import Method, Reply, ReplyT, RequestT
from mainstem.rpc.raft_link import Address

Connector = Callable[[Address, int], Client]
"""A client to the node of this id at an address."""


class PeerCalls:
    """`moved` is told all addresses whenever one changes: Raft's messages go there, too. `close` it."""

    def __init__(
        self, connect: Connector, moved: Callable[[Mapping[int, Address]], None] = lambda addresses: None
    ) -> None:
        self._connect = connect
        self._moved = moved
        self._addresses: dict[int, Address] = {}
        self._clients: dict[int, Client] = {}

    async def call(
        self, node_id: int, method: Method[RequestT, ReplyT], request: RequestT, *, timeout_seconds: float
    ) -> Reply[ReplyT]:
        return await self._client(node_id).call(method, request, timeout_seconds=timeout_seconds)

    def stream(
        self, node_id: int, method: Method[RequestT, ReplyT], request: RequestT, *, timeout_seconds: float
    ) -> AsyncGenerator[Reply[ReplyT], None]:
        return self._client(node_id).stream(method, request, timeout_seconds=timeout_seconds)

    def know(self, node_id: int, address: str) -> None:
        host, _, port = address.rpartition(":")
        known = Address(host.strip("[]"), int(port))
        if self._addresses.get(node_id) == known:
            return
        self._addresses[node_id] = known
        if (client := self._clients.pop(node_id, None)) is not None:
            client.close()
        self._moved(dict(self._addresses))

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def _client(self, node_id: int) -> Client:
        """Raises `ConnectionLost` for a node of no known address."""
        client = self._clients.get(node_id)
        if client is None:
            address = self._addresses.get(node_id)
            if address is None:
                raise ConnectionLost(f"no address of node {node_id} is known")
            client = self._clients[node_id] = self._connect(address, node_id)
        return client


def connector(own: Identity, name: str) -> Connector:
    """Clients that say who this node is and whom they look for."""
    return lambda address, node_id: Client(address.host, address.port, name=name, node=own, seeks=node_id)
