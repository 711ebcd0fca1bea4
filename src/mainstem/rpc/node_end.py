"""A node's end of its connections with the others: what it serves, what it calls, and Raft's messages."""

from __future__ import annotations

import logging
from random import Random

from mainstem.rpc.client_connection import connect_tcp, connect_tls
from mainstem.rpc.handlers import Handlers
from mainstem.rpc.identity import Identity
from mainstem.rpc.method import Hello
from mainstem.rpc.node_calls import NodeCalls
from mainstem.rpc.raft_exchange import RaftExchange
from mainstem.rpc.server import Server
from mainstem.rpc.tls import NO_TLS, RpcTlsConfig, context
from mainstem.supervised import Supervision

log = logging.getLogger(__name__)


class NodeEnd:
    """Made once a node knows who it is."""

    def __init__(
        self,
        identity: Identity,
        handlers: Handlers,
        *,
        random: Random,
        reached_at: str = "",
        tls: RpcTlsConfig = NO_TLS,
        supervision: Supervision | None = None,
    ) -> None:
        """`reached_at` is the HOST:PORT that other nodes are to use. Raises ConfigError when the files of `tls` cannot
        be used."""
        calling = context(tls, server_side=False)
        connect = connect_tcp if calling is None else connect_tls(calling)
        self.identity = identity
        self.handlers = handlers
        self.exchange = RaftExchange(
            identity, random=random, connect=connect, reached_at=reached_at, supervision=supervision
        )
        self.calls = NodeCalls(identity, moved=self.exchange.set_peers, connect=connect)
        self.server = Server(
            handlers,
            name=f"node {identity.node_id}",
            node=identity,
            tls=context(tls, server_side=True),
            met=self._met,
        )
        self.exchange.register(handlers)
        self._closing = False

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen. Returns the address; raises OSError."""
        return await self.server.start(host, port)

    def _met(self, hello: Hello) -> None:
        """A node whose registration has not come here yet, as after a restart into a cluster that changed: without its
        address it could lead this node and would never get an answer."""
        if hello.node is not None and hello.reached_at and not self._closing:
            try:
                self.calls.hear(hello.node.node_id, hello.reached_at)
            except ValueError:
                log.warning("%s says that it is reached at %r: that is no HOST:PORT", hello.node, hello.reached_at)

    async def close(self) -> None:
        self._closing = True
        await self.exchange.close()
        self.calls.close()
        await self.server.close()
