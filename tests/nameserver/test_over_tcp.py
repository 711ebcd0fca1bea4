"""Three nameservers over the real exchange and real sockets of this machine."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest
from tests.fakes.clock import LoopClock
from tests.fakes.files import PowerLoss, SimulatedFiles
from tests.harness.free_port import HOST, free_port
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.model import NewTopic, Node, Topic
from mainstem.nameserver.cluster_ports import ClusterPorts, Facts
from mainstem.nameserver.config import NameserverConfig
from mainstem.nameserver.errors import MetadataUnavailable, TopicExists
from mainstem.nameserver.nameserver import Nameserver
from mainstem.rpc.client import Client
from mainstem.rpc.errors import OtherCluster, RpcError
from mainstem.rpc.handlers import Handlers
from mainstem.rpc.messages.metadata import CHANGE, INTRODUCE, ChangeRequest, WantDeletions
from mainstem.rpc.node_end import NodeEnd
from mainstem.rpc.wire.identity import Identity
from mainstem.rpc.wire.method import Nothing


class Wired:
    """One node: server, exchange, calls, nameserver."""

    def __init__(
        self, node_id: int, addresses: dict[int, str], disk: SimulatedFiles, peers: Sequence[int] = (1, 2, 3)
    ) -> None:
        """`peers`: those whose addresses it is configured with."""
        self.node_id = node_id
        self.addresses = addresses
        self.disk = disk
        self.peers = {str(peer): addresses[peer] for peer in peers if peer in addresses}
        self.stack = AsyncExitStack()
        self.nameserver: Nameserver

    async def start(self) -> None:
        node = Node(node_id=self.node_id, host="127.0.0.1", port=9092)
        config = NameserverConfig(node_id=self.node_id, peers=self.peers, tick_ms=20)
        facts = Facts(self.addresses[self.node_id])
        self.nameserver = await Nameserver.open(
            self.disk, random.Random(self.node_id), config, node, self.connect, facts
        )
        self.stack.push_async_callback(self.nameserver.close)

    async def connect(self, identity: Identity) -> ClusterPorts:
        handlers = Handlers()
        address = self.addresses[self.node_id]
        end = NodeEnd(identity, handlers, random=random.Random(identity.node_id), reached_at=address)
        self.stack.push_async_callback(end.close)
        host, _, port = address.rpartition(":")
        await end.start(host, int(port))
        return ClusterPorts(end.exchange, end.calls, handlers, LoopClock())

    async def close(self) -> None:
        await self.stack.aclose()

    async def lose_power(self) -> None:
        """Nothing more gets to its disk, not even what a node notes when it stops."""
        self.disk.cut_power(after=1)
        with suppress(PowerLoss, MetadataUnavailable):
            await self.close()
        self.disk.crash()
        self.stack = AsyncExitStack()


def test_a_cluster_over_sockets() -> None:
    async def scenario() -> None:
        addresses = {node_id: f"{HOST}:{free_port()}" for node_id in range(1, 4)}
        nodes = {node_id: Wired(node_id, addresses, SimulatedFiles(node_id)) for node_id in addresses}
        async with asyncio.timeout(PATIENCE_SECONDS), AsyncExitStack() as stack:
            for node in nodes.values():
                stack.push_async_callback(node.close)
            await asyncio.gather(*(node.start() for node in nodes.values()))
            names = [it.nameserver for it in nodes.values()]
            assert len({it.lookups.cluster_id() for it in names}) == 1
            topics = await asyncio.gather(
                *(names[n % 3].administration.create_topic(f"t{n}", 1, 1, {"retention.ms": str(n)}) for n in range(30))
            )
            assert len({topic.number for topic in topics}) == 30
            with pytest.raises(TopicExists, match="exists already"):
                await names[1].administration.create_topic("t3", 1, 1, {})
            many = await names[2].administration.create_topics([NewTopic(f"many{n}", 1, 1, {}) for n in range(5_000)])
            assert all(isinstance(it, Topic) for it in many)
            for it in names:
                await it.waits.current()
                assert len(list(it.lookups.topics())) == 5_030

            leader = names[0].lookups.metadata_leader
            await nodes[leader].close()
            left = [node.nameserver for node_id, node in nodes.items() if node_id != leader]
            await left[0].administration.create_topic("after", 1, 1, {})
            await left[1].waits.current()
            assert left[1].lookups.topic("after") is not None
            nodes[leader].stack = AsyncExitStack()
            await nodes[leader].start()
            await nodes[leader].nameserver.waits.current()
            assert nodes[leader].nameserver.lookups.topic("after") is not None

    asyncio.run(scenario())


def test_a_member_that_lost_power_meets_a_leader_it_was_never_told_of() -> None:
    """Node 4 took the place of node 3, and leads, while node 1 comes back: by its configuration it knows nodes 1 to 3,
    and what its log says of node 4 is not known to be committed before node 4 has heard from it."""

    async def scenario() -> None:
        addresses = {node_id: f"{HOST}:{free_port()}" for node_id in range(1, 5)}
        nodes = {node_id: Wired(node_id, addresses, SimulatedFiles(node_id)) for node_id in addresses}
        async with asyncio.timeout(PATIENCE_SECONDS), AsyncExitStack() as stack:
            for node in nodes.values():
                stack.push_async_callback(node.close)
            await asyncio.gather(*(nodes[node_id].start() for node_id in (1, 2, 3)))
            await nodes[4].start()
            await nodes[3].close()
            await nodes[2].nameserver.operations.change_member(3, 4)
            await nodes[1].lose_power()
            while nodes[2].nameserver.lookups.metadata_leader != 4:
                nodes[2].nameserver.quorum.transfer_leadership(4)
                await asyncio.sleep(0.05)
            await nodes[1].start()
            await nodes[1].nameserver.waits.current()
            assert nodes[1].nameserver.lookups.metadata_voters == {1, 2, 4}

    asyncio.run(scenario())


def test_strangers_may_ask_who_is_there_and_nothing_else() -> None:
    async def scenario() -> None:
        addresses = {node_id: f"{HOST}:{free_port()}" for node_id in range(1, 2)}
        node = Wired(1, addresses, SimulatedFiles(1))
        async with asyncio.timeout(PATIENCE_SECONDS), AsyncExitStack() as stack:
            stack.push_async_callback(node.close)
            await node.start()
            await node.nameserver.administration.create_topic("kept", 1, 1, {})
            host, _, port = addresses[1].rpartition(":")
            client = await stack.enter_async_context(Client(host, int(port)))
            answer = (await client.call(INTRODUCE, Nothing(), timeout_seconds=5)).message
            assert (answer.node_id, answer.cluster_id, answer.voters) == (
                1,
                node.nameserver.lookups.cluster_id(),
                [1],
            )
            request: Any = ChangeRequest(b"x" * 16, WantDeletions(["kept"]))
            with pytest.raises(RpcError):
                await client.call(CHANGE, request, timeout_seconds=5)
            other = Identity("another-cluster", 2, bytes(16))
            foreign = await stack.enter_async_context(Client(host, int(port), node=other))
            with pytest.raises(RpcError, match="cluster"):
                await foreign.call(CHANGE, request, timeout_seconds=5)
            assert node.nameserver.lookups.topic("kept") is not None

    asyncio.run(scenario())


@pytest.mark.parametrize("listed", [(1, 3), (1, 2)], ids=["another list", "itself not in it"])
def test_a_node_with_another_list_of_peers_is_refused_and_the_others_do_without_it(listed: tuple[int, int]) -> None:
    async def scenario() -> None:
        addresses = {node_id: f"{HOST}:{free_port()}" for node_id in range(1, 4)}
        nodes = {node_id: Wired(node_id, addresses, SimulatedFiles(node_id)) for node_id in addresses}
        nodes[3].peers = {str(node_id): addresses[node_id] for node_id in listed}
        async with asyncio.timeout(PATIENCE_SECONDS), AsyncExitStack() as stack:
            for node in nodes.values():
                stack.push_async_callback(node.close)
            started = [asyncio.ensure_future(nodes[node_id].start()) for node_id in (1, 2, 3)]
            with pytest.raises(OtherCluster, match=r"need the same nameserver\.peers"):
                await started[2]
            await asyncio.gather(*started[:2])
            names = [nodes[node_id].nameserver for node_id in (1, 2)]
            topic = await names[0].administration.create_topic("made-without-it", 1, 1, {})
            assert names[1].lookups.cluster_id() == names[0].lookups.cluster_id()
            await names[1].waits.current()
            assert names[1].lookups.topic("made-without-it") == topic

    asyncio.run(scenario())
