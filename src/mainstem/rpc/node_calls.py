"""Calls to other nodes by their id: one connection per node, made when first needed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

from mainstem.address import Address, parsed
from mainstem.model import Buffer
from mainstem.prompt_future import PromptFuture
from mainstem.rpc.client import Client
from mainstem.rpc.errors import ConnectionLost
from mainstem.rpc.wire.client_connection import Connect, connect_tcp
from mainstem.rpc.wire.identity import Identity
from mainstem.rpc.wire.method import Method, Reply, ReplyT, RequestT


class NodeCalls:
    """Holds one client per node. `moved` is told the addresses of all other nodes whenever one is new:
    messages go there as well."""

    def __init__(
        self,
        node: Identity,
        *,
        moved: Callable[[Mapping[int, Address]], None],
        connect: Connect = connect_tcp,
    ) -> None:
        self._node = node
        self._moved = moved
        self._connect = connect
        self._addresses: dict[int, Address] = {}
        self._clients: dict[int, Client] = {}

    def know(self, node_id: int, address: str) -> None:
        """From now on the node is reached at this HOST:PORT. Raises AddressError."""
        known = parsed(address, port_min=0)  # this node's own address may be one that picks a free port
        if node_id == self._node.node_id or self._addresses.get(node_id) == known:
            return
        self._addresses[node_id] = known
        if (client := self._clients.pop(node_id, None)) is not None:
            client.close()
        self._moved(self._addresses)

    def hear(self, node_id: int, address: str) -> None:
        """A node says where it is reached. For nodes that are known, the address registered in the cluster
        counts."""
        if node_id not in self._addresses:
            self.know(node_id, address)

    async def call(
        self,
        node_id: int,
        method: Method[RequestT, ReplyT],
        request: RequestT,
        attachment: Sequence[Buffer] = (),
        *,
        timeout_seconds: float,
    ) -> Reply[ReplyT]:
        """One request, one answer. Raises the method's refusals and `RpcError`."""
        return await self._client(node_id).call(method, request, attachment, timeout_seconds=timeout_seconds)

    def begin(
        self,
        node_id: int,
        method: Method[RequestT, ReplyT],
        request: RequestT,
        attachment: Sequence[Buffer] = (),
        *,
        timeout_seconds: float,
    ) -> PromptFuture[Reply[ReplyT]] | None:
        """The same at once and without a task (`Client.begin`); None: it cannot be begun so."""
        client = self._clients.get(node_id)
        return client.begin(method, request, attachment, timeout_seconds=timeout_seconds) if client else None

    def stream(
        self, node_id: int, method: Method[RequestT, ReplyT], request: RequestT, *, timeout_seconds: float
    ) -> AsyncGenerator[Reply[ReplyT], None]:
        """One request, any number of answers. Raises the method's refusals and `RpcError`."""
        return self._client(node_id).stream(method, request, timeout_seconds=timeout_seconds)

    def close(self) -> None:
        """Calls in flight fail with `ConnectionLost`."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def _client(self, node_id: int) -> Client:
        client = self._clients.get(node_id)
        if client is None:
            address = self._addresses.get(node_id)
            if address is None:
                raise ConnectionLost(f"no address of node {node_id} is known")
            client = self._clients[node_id] = Client(
                *address,
                name=f"node {self._node.node_id}",
                node=self._node,
                seeks=node_id,
                connect=self._connect,
            )
        return client
