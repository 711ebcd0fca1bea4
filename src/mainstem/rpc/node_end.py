"""A node's end of its connections with the other nodes: its server, its calls, and the carrier of Raft's
messages."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from random import Random

from mainstem.address import Address
from mainstem.rpc.handlers import Handlers
from mainstem.rpc.node_calls import NodeCalls
from mainstem.rpc.raft.raft_exchange import RaftExchange
from mainstem.rpc.rpc_server import RpcServer
from mainstem.rpc.wire.client_connection import connect_tcp
from mainstem.rpc.wire.hello import Hello
from mainstem.rpc.wire.identity import Identity
from mainstem.rpc.wire.node_certificate import NodeCertificate
from mainstem.supervised import Supervision

log = logging.getLogger(__name__)


class NodeEnd:
    """Holds the three together; made once a node knows its identity."""

    def __init__(
        self,
        identity: Identity,
        handlers: Handlers,
        *,
        random: Random,
        reached_at: str = "",
        certificate: NodeCertificate | None = None,
        supervision: Supervision | None = None,
    ) -> None:
        """`reached_at` is the HOST:PORT for other nodes to use. `certificate`: of TLS with the other nodes; None: no
        TLS."""
        connect = connect_tcp if certificate is None else certificate.connect
        self.identity = identity
        self.handlers = handlers
        self.exchange = RaftExchange(
            identity, random=random, connect=connect, reached_at=reached_at, supervision=supervision
        )
        self.calls = NodeCalls(identity, moved=self._moved, connect=connect)
        self.record_calls = NodeCalls(identity, moved=lambda _addresses: None, connect=connect)
        """Connections of their own for calls that carry records: other calls do not wait behind these."""
        self.server = RpcServer(
            handlers,
            name=f"node {identity.node_id}",
            node=identity,
            certificate=certificate,
            met=self._met,
            supervision=supervision,
        )
        self.exchange.register(handlers)
        self._closing = False

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen. Returns the address; raises OSError."""
        return await self.server.start(host, port)

    def _moved(self, addresses: Mapping[int, Address]) -> None:
        self.exchange.set_peers(addresses)
        for node_id, address in addresses.items():
            self.record_calls.know(node_id, str(address))

    def _met(self, hello: Hello) -> None:
        """Note a node's address although its registration has not come here yet, as after a restart into a
        cluster that changed: without the address that node could lead this one and never get an answer. And have
        messages to a node that was away leave now."""
        if hello.node is None or self._closing:
            return
        if hello.reached_at:
            try:
                self.calls.hear(hello.node.node_id, hello.reached_at)
            except ValueError:
                log.warning("%s says that it is reached at %r: that is no HOST:PORT", hello.node, hello.reached_at)
        self.exchange.called_by(hello.node.node_id)

    async def close(self) -> None:
        self._closing = True
        await self.exchange.close()
        self.calls.close()
        self.record_calls.close()
        await self.server.close()
