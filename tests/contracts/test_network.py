"""Calls and Raft messages between nodes: the simulated networks do, when nothing disturbs them, what rpc does over TCP.

The effect of a call whose caller gives up is left open by all of them, and so is the order in which messages arrive: a
simulated network is worse there than TCP is, on purpose."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, ClassVar

import msgspec
import pytest
from tests.fakes.cluster import SimulatedNetwork
from tests.harness.patience import PATIENCE_SECONDS
from tests.rpc.raft_nodes import Recorder, append, entries_of, heartbeat
from tests.simulation.cluster.calls import Switchboard
from tests.simulation.cluster.lives import ClusterLoop, Life
from tests.simulation.cluster.network import SimulatedNetwork as ClusterNetwork

from mainstem.raft.messages import Message, RequestVote
from mainstem.rpc.errors import CallFailed, ConnectionLost, DeadlineExceeded, NotServed, Refused
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.node_end import NodeEnd
from mainstem.rpc.other_nodes import Calls, RaftTransport
from mainstem.rpc.wire.identity import Identity
from mainstem.rpc.wire.method import Method, Nothing, Reply

GROUP, OTHER_GROUP = 1, 2


class Number(msgspec.Struct, frozen=True):
    value: int
    names: tuple[str, ...] = ()


class TooLarge(Refused):
    kind: ClassVar[str] = "too large"


class Undeclared(Refused):
    kind: ClassVar[str] = "undeclared"


DOUBLE = Method(9001, "double", Number, Number, refusals=(TooLarge,))
AT_ONCE = Method(9002, "at once", Number, Number, refusals=(TooLarge,))
COUNT = Method(9003, "count", Number, Number, refusals=(TooLarge,), streams=True)
WHO = Method(9004, "who", Nothing, Number, nodes_only=True)
NEVER = Method(9005, "never", Nothing, Nothing)
PIECES = Method(9006, "pieces", Nothing, Nothing)
UNKNOWN = Method(9007, "unknown", Nothing, Nothing)
UNKNOWN_STREAM = Method(9008, "unknown stream", Nothing, Nothing, streams=True)


def doubled(number: Number) -> Reply[Number]:
    if number.value > 100:
        raise TooLarge(f"{number.value} is more than 100")
    if number.value == 13:
        raise Undeclared("not that one")
    if number.value == 14:
        raise NotServed("somebody else does not know it")
    if number.value == 15:
        raise TimeoutError("the handler's own")
    if number.value < 0:
        raise ValueError(f"{number.value} is less than nothing")
    return Reply(Number(2 * number.value, number.names), b"%d" % number.value)


class Served:
    """The answer of a node."""

    def __init__(self) -> None:
        self.handlers = Handlers()
        self.callers: list[Identity | None] = []
        self.streams_ended = 0
        self.reached = asyncio.Event()
        self.handlers.unary(DOUBLE, self._double)
        self.handlers.prompt(AT_ONCE, lambda call: doubled(call.request))
        self.handlers.stream(COUNT, self._count)
        self.handlers.unary(WHO, self._who)
        self.handlers.unary(NEVER, self._never)
        self.handlers.unary(PIECES, self._pieces)

    async def _double(self, call: RpcCall[Number]) -> Reply[Number]:
        await asyncio.sleep(0)
        return doubled(call.request)

    async def _count(self, call: RpcCall[Number]) -> AsyncIterator[Reply[Number]]:
        """0, 1, 2 … up to the number, and what comes of doubling that."""
        try:
            for value in range(abs(call.request.value)):
                yield Reply(Number(value), bytes(value % 100))
            yield doubled(call.request)
        finally:
            self.streams_ended += 1

    async def _who(self, call: RpcCall[Nothing]) -> Reply[Number]:
        self.callers.append(call.node)
        assert call.peer, "for logs"
        return Reply(Number(len(self.callers)))

    async def _never(self, call: RpcCall[Nothing]) -> Reply[Nothing]:
        self.reached.set()
        await asyncio.sleep(10 * PATIENCE_SECONDS)
        return Reply(Nothing())

    async def _pieces(self, call: RpcCall[Nothing]) -> Reply[Nothing]:
        return Reply(Nothing(), [b"one", bytearray(b"two"), memoryview(b"three")])


def identity(node_id: int) -> Identity:
    return Identity("cluster", node_id, bytes([node_id]) * 16)


class End:
    """A node's."""

    def __init__(self, calls: Calls, exchange: RaftTransport, served: Served) -> None:
        self.calls, self.exchange, self.served = calls, exchange, served
        self.members: dict[int, Recorder] = {}

    def join(self, *groups: int) -> None:
        for group in groups:
            self.members[group] = Recorder()
            self.exchange.join(group, self.members[group])


class Nodes(ABC):
    """The nodes of a cluster, which know each other's addresses."""

    def __init__(self) -> None:
        self.ends: dict[int, End] = {}

    @abstractmethod
    async def start(self, node_id: int) -> End: ...

    @abstractmethod
    async def stop(self, node_id: int) -> None:
        """The node ends."""

    async def close(self) -> None:
        for node_id in list(self.ends):
            await self.stop(node_id)


class OverTcp(Nodes):
    def __init__(self) -> None:
        super().__init__()
        self._addresses: dict[int, str] = {}
        self._nodes: dict[int, NodeEnd] = {}

    async def start(self, node_id: int) -> End:
        served = Served()
        node = self._nodes[node_id] = NodeEnd(identity(node_id), served.handlers, random=random.Random(node_id))
        host, _, port = self._addresses.get(node_id, "127.0.0.1:0").rpartition(":")
        self._addresses[node_id] = "{}:{}".format(*await node.start(host, int(port)))
        for known in self._nodes.values():
            for other in self._nodes:
                known.calls.know(other, self._addresses[other])
        self.ends[node_id] = End(node.calls, node.exchange, served)
        return self.ends[node_id]

    async def stop(self, node_id: int) -> None:
        del self.ends[node_id]
        await self._nodes.pop(node_id).close()


class Simulated(Nodes):
    """The network of the nameservers' tests."""

    def __init__(self) -> None:
        super().__init__()
        self._network = SimulatedNetwork(7)

    async def start(self, node_id: int) -> End:
        served = Served()
        end = self._network.attach(identity(node_id))
        end.handlers = served.handlers
        self.ends[node_id] = End(end.ports.calls, end.ports.exchange, served)
        return self.ends[node_id]

    async def stop(self, node_id: int) -> None:
        del self.ends[node_id]
        self._network.ends[node_id].close()

    async def close(self) -> None:
        await super().close()
        await self._network.close()


class InCluster(Nodes):
    """The network and the calls of the simulated cluster."""

    def __init__(self, loop: ClusterLoop) -> None:
        super().__init__()
        self._loop = loop
        self._troubles: list[Exception] = []
        self._network = ClusterNetwork(loop, random.Random(7), self._troubles.append)
        self._board = Switchboard(loop, self._network)
        self._lives: dict[int, Life] = {}

    async def start(self, node_id: int) -> End:
        served = Served()
        life = self._lives[node_id] = Life(node_id, 1)
        self._board.serve(life, served.handlers)
        calls = self._board.of(life, identity(node_id))
        self.ends[node_id] = End(calls, self._network.attach(life), served)
        return self.ends[node_id]

    async def stop(self, node_id: int) -> None:
        del self.ends[node_id]
        self._loop.kill(self._lives[node_id])

    async def close(self) -> None:
        await super().close()
        await self._loop.bury(list(self._lives.values()))
        assert not self._troubles


Story = Callable[[Nodes], Awaitable[None]]
Tell = Callable[[Story], None]


@pytest.fixture(params=["tcp", "simulated", "cluster"])
def tell(request: pytest.FixtureRequest) -> Tell:
    return teller(request.param)


@pytest.fixture(params=["tcp", "simulated"])
def tell_ends(request: pytest.FixtureRequest) -> Tell:
    """The kind of node whose process ends with a word of its machine; in the simulated cluster machines fall silent."""
    return teller(request.param)


def teller(kind: str) -> Tell:
    loop = ClusterLoop() if kind == "cluster" else asyncio.new_event_loop()

    def nodes() -> Nodes:
        if isinstance(loop, ClusterLoop):
            return InCluster(loop)
        return OverTcp() if kind == "tcp" else Simulated()

    async def told(story: Story) -> None:
        cluster = nodes()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await cluster.start(1)
                await cluster.start(2)
                await story(cluster)
        finally:
            await cluster.close()

    def run(story: Story) -> None:
        try:
            loop.run_until_complete(told(story))
        finally:
            loop.close()

    return run


def attached(reply: Reply[Any]) -> bytes:
    """All that arrives is one buffer, whatever was sent."""
    assert isinstance(reply.attachment, bytes | bytearray | memoryview)
    return bytes(reply.attachment)


class TestCalls:
    @pytest.mark.parametrize("method", [DOUBLE, AT_ONCE], ids=lambda method: method.name)
    def test_a_call_is_answered(self, tell: Tell, method: Method[Number, Number]) -> None:
        async def story(nodes: Nodes) -> None:
            calls = nodes.ends[1].calls
            reply = await calls.call(2, method, Number(21, ("a", "ü")), timeout_seconds=10)
            assert reply.message == Number(42, ("a", "ü"))
            assert attached(reply) == b"21"
            values = [value for value in range(80) if value not in (13, 14, 15)]
            replies = await asyncio.gather(
                *(calls.call(2, method, Number(value), timeout_seconds=10) for value in values)
            )
            assert [reply.message.value for reply in replies] == [2 * value for value in values]

        tell(story)

    def test_a_handler_knows_who_calls(self, tell: Tell) -> None:
        async def story(nodes: Nodes) -> None:
            for caller, callee in ((1, 2), (2, 1)):
                await nodes.ends[caller].calls.call(callee, WHO, Nothing(), timeout_seconds=10)
                assert nodes.ends[callee].served.callers == [identity(caller)]

        tell(story)

    def test_an_attachment_arrives_as_one_buffer(self, tell: Tell) -> None:
        async def story(nodes: Nodes) -> None:
            reply = await nodes.ends[1].calls.call(2, PIECES, Nothing(), timeout_seconds=10)
            assert attached(reply) == b"onetwothree"

        tell(story)

    @pytest.mark.parametrize("method", [DOUBLE, AT_ONCE], ids=lambda method: method.name)
    def test_refusals_that_are_declared_keep_their_class(self, tell: Tell, method: Method[Number, Number]) -> None:
        async def story(nodes: Nodes) -> None:
            calls = nodes.ends[1].calls
            with pytest.raises(TooLarge, match="101 is more than 100"):
                await calls.call(2, method, Number(101), timeout_seconds=10)
            for value, error in ((13, CallFailed), (14, CallFailed), (-1, CallFailed)):
                with pytest.raises(error) as failed:
                    await calls.call(2, method, Number(value), timeout_seconds=10)
                assert type(failed.value) is error
            assert (await calls.call(2, method, Number(4), timeout_seconds=10)).message.value == 8

        tell(story)

    def test_what_is_not_served_is_told_apart(self, tell: Tell) -> None:
        async def story(nodes: Nodes) -> None:
            with pytest.raises(NotServed):
                await nodes.ends[1].calls.call(2, UNKNOWN, Nothing(), timeout_seconds=10)
            with pytest.raises(NotServed):
                async with aclosing(
                    nodes.ends[1].calls.stream(2, UNKNOWN_STREAM, Nothing(), timeout_seconds=10)
                ) as replies:
                    await anext(replies)

        tell(story)

    def test_nobody_answers_for_a_node_that_is_not_there(self, tell: Tell) -> None:
        async def story(nodes: Nodes) -> None:
            calls = nodes.ends[1].calls
            with pytest.raises(ConnectionLost):
                await calls.call(3, DOUBLE, Number(1), timeout_seconds=10)
            await nodes.stop(2)
            with pytest.raises(ConnectionLost):
                await calls.call(2, DOUBLE, Number(1), timeout_seconds=10)
            with pytest.raises(ConnectionLost):
                async with aclosing(calls.stream(2, COUNT, Number(1), timeout_seconds=10)) as replies:
                    await anext(replies)
            await nodes.start(2)
            assert (await calls.call(2, DOUBLE, Number(4), timeout_seconds=10)).message.value == 8

        tell(story)

    def test_a_call_ends_with_its_time(self, tell: Tell) -> None:
        async def story(nodes: Nodes) -> None:
            with pytest.raises(DeadlineExceeded):
                await nodes.ends[1].calls.call(2, NEVER, Nothing(), timeout_seconds=0.1)

        tell(story)

    def test_a_call_ends_with_the_one_who_is_called(self, tell: Tell) -> None:
        async def story(nodes: Nodes) -> None:
            call = nodes.ends[1].calls.call(2, NEVER, Nothing(), timeout_seconds=PATIENCE_SECONDS / 2)
            calling = asyncio.ensure_future(call)
            await nodes.ends[2].served.reached.wait()
            await nodes.stop(2)
            with pytest.raises((ConnectionLost, CallFailed)):
                await calling

        tell(story)


class TestStreams:
    def test_replies_come_in_order(self, tell: Tell) -> None:
        async def story(nodes: Nodes) -> None:
            found = [
                (reply.message.value, attached(reply))
                async for reply in nodes.ends[1].calls.stream(2, COUNT, Number(50), timeout_seconds=10)
            ]
            assert found == [*((value, bytes(value)) for value in range(50)), (100, b"50")]
            assert nodes.ends[2].served.streams_ended == 1

        tell(story)

    @pytest.mark.parametrize(
        ("value", "error"),
        [(200, TooLarge), (13, CallFailed), (14, CallFailed), (15, DeadlineExceeded), (-3, CallFailed)],
    )
    def test_what_fails_in_the_middle_fails_there(self, tell: Tell, value: int, error: type[Exception]) -> None:
        async def story(nodes: Nodes) -> None:
            found = []
            with pytest.raises(error) as failed:  # noqa: PT012
                async for reply in nodes.ends[1].calls.stream(2, COUNT, Number(value), timeout_seconds=10):
                    found.append(reply.message.value)
            assert type(failed.value) is error
            assert found == list(range(abs(value)))

        tell(story)

    def test_who_stops_listening_ends_it(self, tell: Tell) -> None:
        async def story(nodes: Nodes) -> None:
            served = nodes.ends[2].served
            async with aclosing(nodes.ends[1].calls.stream(2, COUNT, Number(10_000), timeout_seconds=20)) as replies:
                assert [(await anext(replies)).message.value for _ in range(3)] == [0, 1, 2]
            while not served.streams_ended:  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.001)

        tell(story)

    def test_its_time_is_that_of_all_replies(self, tell: Tell) -> None:
        async def story(nodes: Nodes) -> None:
            with pytest.raises(DeadlineExceeded):  # noqa: PT012
                calls = nodes.ends[1].calls
                async with aclosing(calls.stream(2, COUNT, Number(1_000), timeout_seconds=0.2)) as replies:
                    async for _ in replies:
                        await asyncio.sleep(0.05)

        tell(story)


async def until(nodes: Nodes, node_id: int, group: int, true: Callable[[Recorder], bool]) -> None:
    member = nodes.ends[node_id].members[group]
    await member.until(lambda: true(member))


class TestExchange:
    def test_messages_arrive_as_they_were_sent(self, tell: Tell) -> None:
        async def story(nodes: Nodes) -> None:
            for end in nodes.ends.values():
                end.join(GROUP, OTHER_GROUP)
            sent: list[Message] = [
                heartbeat(1, 2, 7),
                RequestVote(1, 2, 3, 8, 2, pre_vote=True, transfer=True),
                heartbeat(1, 2, 9),
            ]
            nodes.ends[1].exchange.send(GROUP, sent)
            nodes.ends[2].exchange.send(OTHER_GROUP, [heartbeat(2, 1, 4)])
            await until(nodes, 2, GROUP, lambda it: len(it.messages) == 3)
            assert sorted(map(repr, nodes.ends[2].members[GROUP].messages)) == sorted(map(repr, sent))
            await until(nodes, 1, OTHER_GROUP, lambda it: len(it.messages) == 1)
            assert nodes.ends[1].members[OTHER_GROUP].messages == [heartbeat(2, 1, 4)]
            assert nodes.ends[1].members[GROUP].messages == nodes.ends[2].members[OTHER_GROUP].messages == []

        tell(story)

    def test_entries_arrive_byte_for_byte_whatever_pieces_they_come_in(self, tell: Tell) -> None:
        async def story(nodes: Nodes) -> None:
            for end in nodes.ends.values():
                end.join(GROUP)
            contents = [bytes([number]) * (number * 3_000) for number in range(30)]
            nodes.ends[1].exchange.send(GROUP, [append(1, 2, 0, *contents)])
            await until(nodes, 2, GROUP, lambda it: len(entries_of(it.messages)) == 30)
            assert sorted(entries_of(nodes.ends[2].members[GROUP].messages)) == list(enumerate(contents, 1))

        tell(story)

    def test_entries_that_are_not_in_memory_are_loaded(self, tell: Tell) -> None:
        async def story(nodes: Nodes) -> None:
            for end in nodes.ends.values():
                end.join(GROUP)
            sender = nodes.ends[1].members[GROUP]
            sender.cold = {2}
            nodes.ends[1].exchange.send(GROUP, [append(1, 2, 0, b"one", b"two", b"three")])
            await until(nodes, 2, GROUP, lambda it: len(entries_of(it.messages)) == 3)
            entries = sorted(entries_of(nodes.ends[2].members[GROUP].messages))
            assert entries == [(1, b"one"), (2, b"two"), (3, b"three")]
            assert sender.loads == 1

        tell(story)

    def test_entries_that_cannot_be_loaded_are_not_sent(self, tell: Tell) -> None:
        async def story(nodes: Nodes) -> None:
            for end in nodes.ends.values():
                end.join(GROUP)
            sender = nodes.ends[1].members[GROUP]
            sender.cold, sender.load_error = {1}, OSError("the disk is gone")
            nodes.ends[1].exchange.send(GROUP, [append(1, 2, 0, b"one")])
            await until(nodes, 1, GROUP, lambda it: it.unreachable_nodes == [2])
            nodes.ends[1].exchange.send(GROUP, [heartbeat(1, 2, 5)])
            await until(nodes, 2, GROUP, lambda it: bool(it.messages))
            assert nodes.ends[2].members[GROUP].messages == [heartbeat(1, 2, 5)]

        tell(story)

    def test_who_has_left_hears_and_says_nothing(self, tell: Tell) -> None:
        async def story(nodes: Nodes) -> None:
            for end in nodes.ends.values():
                end.join(GROUP, OTHER_GROUP)
            nodes.ends[2].exchange.leave(GROUP)
            nodes.ends[2].exchange.leave(GROUP)
            for group in (GROUP, OTHER_GROUP):
                nodes.ends[1].exchange.send(group, [heartbeat(1, 2, 5)])
            await until(nodes, 2, OTHER_GROUP, lambda it: bool(it.messages))
            await asyncio.sleep(0.3)
            assert nodes.ends[2].members[GROUP].messages == []

        tell(story)

    def test_the_sender_hears_of_nodes_that_cannot_be_reached(self, tell: Tell) -> None:
        async def story(nodes: Nodes) -> None:
            for end in nodes.ends.values():
                end.join(GROUP)
            await nodes.stop(2)
            sender = nodes.ends[1]
            while 2 not in sender.members[GROUP].unreachable_nodes:
                sender.exchange.send(GROUP, [heartbeat(1, 2, 5)])
                assert 2 not in sender.members[GROUP].unreachable_nodes, "it is told in a turn of its own"
                await asyncio.sleep(0.01)
            assert set(sender.members[GROUP].unreachable_nodes) == {2}

        tell(story)

    def test_the_sender_hears_of_a_node_that_has_ended(self, tell_ends: Tell) -> None:
        async def story(nodes: Nodes) -> None:
            for end in nodes.ends.values():
                end.join(GROUP)
            nodes.ends[1].exchange.send(GROUP, [heartbeat(1, 2, 5)])
            await until(nodes, 2, GROUP, lambda it: bool(it.messages))
            await nodes.stop(2)
            await until(nodes, 1, GROUP, lambda it: 2 in it.gone_nodes)

        tell_ends(story)
