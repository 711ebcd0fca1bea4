"""A node's end of its connections with the others: what it serves, what it calls, and Raft's messages."""

from __future__ import annotations

from random import Random

from mainstem.rpc.client_connection import connect_tcp, connect_tls
from mainstem.rpc.handlers import Handlers
from mainstem.rpc.identity import Identity
from mainstem.rpc.node_calls import NodeCalls
from mainstem.rpc.raft_exchange import RaftExchange
from mainstem.rpc.server import Server
from mainstem.rpc.tls import NO_TLS, RpcTlsConfig, context


class NodeEnd:
    """Made once a node knows who it is."""

    def __init__(
        self, identity: Identity, handlers: Handlers, *, random: Random, tls: RpcTlsConfig = NO_TLS
    ) -> None:
        """Raises ConfigError when the files of `tls` cannot be used."""
        calling = context(tls, server_side=False)
        connect = connect_tcp if calling is None else connect_tls(calling)
        self.identity = identity
        self.handlers = handlers
        self.exchange = RaftExchange(identity, random=random, connect=connect)
        self.calls = NodeCalls(identity, moved=self.exchange.set_peers, connect=connect)
        self.server = Server(
            handlers, name=f"node {identity.node_id}", node=identity, tls=context(tls, server_side=True)
        )
        self.exchange.register(handlers)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen. Returns the address; raises OSError."""
        return await self.server.start(host, port)

    async def close(self) -> None:
        await self.exchange.close()
        self.calls.close()
        await self.server.close()
