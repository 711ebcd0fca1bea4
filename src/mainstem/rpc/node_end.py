"""A node's end of its connections with the others: what it serves, what it calls, and Raft's messages."""

from __future__ import annotations

from random import Random

from mainstem.rpc.identity import Identity
from mainstem.rpc.node_calls import NodeCalls
from mainstem.rpc.raft_exchange import RaftExchange
from mainstem.rpc.server import Handlers, Server


class NodeEnd:
    """Made once a node knows who it is."""

    def __init__(self, identity: Identity, handlers: Handlers, *, random: Random) -> None:
        self.identity = identity
        self.handlers = handlers
        self.exchange = RaftExchange(identity, random=random)
        self.calls = NodeCalls(identity, moved=self.exchange.set_peers)
        self.server = Server(handlers, name=f"node {identity.node_id}", node=identity)
        self.exchange.register(handlers)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen. Returns the address; raises OSError."""
        return await self.server.start(host, port)

    async def close(self) -> None:
        await self.exchange.close()
        self.calls.close()
        await self.server.close()
