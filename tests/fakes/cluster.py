"""Nodes of a cluster in one process: Raft messages and calls over a network that loses, delays, repeats and splits.

    network = SimulatedNetwork(seed=7)
    network.loss = 0.1                      of messages, requests and answers, each on its own
    network.split({1}, {2, 3})              nothing passes between the two sides, until `heal`
    network.cut = {frozenset({1, 2})}       nothing passes between these two, until `heal`
    end = network.attach(identity)          `ClusterPorts` of a node; `end.detach()` is its death

Everything that travels is encoded and decoded as on the wire. All chance comes from the seed, all time from the event
loop, which is best a `SimulatedLoop`. An answer that is lost after its call took effect is a fault like any other.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from typing import Any

import msgspec

from mainstem.nameserver.cluster_ports import ClusterPorts
from mainstem.raft import messages as raft
from mainstem.rpc.errors import CallFailed, ConnectionLost, DeadlineExceeded, Refused
from mainstem.rpc.handlers import Call, Handlers
from mainstem.rpc.identity import Identity
from mainstem.rpc.method import Method, Reply
from mainstem.rpc.raft_member import Member
from mainstem.rpc.raft_messages import Delivery, append_pieces, from_wire, to_wire

APPEND_BYTES_MAX = 64 * 1024


class LoopTime:
    """`ports.Clock` of the running loop."""

    def now_ms(self) -> int:
        return 1_700_000_000_000 + int(self.monotonic() * 1000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class SimulatedNetwork:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.loss = 0.0
        self.repeats = 0.0
        self.delay_seconds = (0.0005, 0.01)
        self.ends: dict[int, End] = {}
        self.calls_made: list[tuple[int, int, str]] = []
        """(caller, callee, method) of everything that arrived, for tests that count."""
        self.lose_answers_of: set[str] = set()
        """Methods whose next answer is lost, after it took effect."""
        self.cut: set[frozenset[int]] = set()
        """Pairs of nodes that do not hear each other, until `heal`."""
        self._sides: tuple[frozenset[int], ...] = ()
        self._tasks: set[asyncio.Task[Any]] = set()

    def attach(self, identity: Identity) -> End:
        assert identity.node_id not in self.ends, f"node {identity.node_id} runs already"
        self.ends[identity.node_id] = End(self, identity)
        return self.ends[identity.node_id]

    def split(self, *sides: set[int]) -> None:
        self._sides = tuple(frozenset(side) for side in sides)

    def heal(self) -> None:
        self._sides = ()
        self.cut.clear()
        self.loss = self.repeats = 0.0
        self.delay_seconds = (0.0005, 0.01)

    def passes(self, sender: int, to: int) -> bool:
        cut = any((sender in side) != (to in side) for side in self._sides) or {sender, to} in self.cut
        return not cut and to in self.ends and self.rng.random() >= self.loss

    def delay(self) -> float:
        seconds = self.rng.uniform(*self.delay_seconds)
        return seconds * 20 if self.rng.random() < 0.02 else seconds

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the caller may wait no longer

    def deliver(self, sender: End, group: int, message: raft.Message) -> None:
        """Perhaps, and perhaps more than once."""
        to = message.to
        if not self.passes(sender.node_id, to):
            if self.rng.random() < 0.5 and (member := sender.members.get(group)) is not None:
                asyncio.get_running_loop().call_soon(member.unreachable, to)
            return
        member = sender.members[group]
        if isinstance(message, raft.Append) and message.entries:
            carried = [member.carried(entry) for entry in message.entries]
            assert all(it is not None for it in carried)
            pieces = append_pieces(group, message, carried, APPEND_BYTES_MAX)  # type: ignore[arg-type]
            sent = [(piece, b"".join(bytes(part) for part in buffers)) for piece, buffers, _ in pieces]
        else:
            sent = [(to_wire(group, message), b"")]  # type: ignore[list-item]
        for wire, attachment in sent:
            body = msgspec.msgpack.encode(Delivery([wire]))
            for _ in range(2 if self.rng.random() < self.repeats else 1):
                asyncio.get_running_loop().call_later(
                    self.delay(), self._arrive, sender.node_id, to, group, body, attachment
                )

    def _arrive(self, sender: int, to: int, group: int, body: bytes, attachment: bytes) -> None:
        end = self.ends.get(to)
        if end is None or (member := end.members.get(group)) is None:
            return
        (wire,) = msgspec.msgpack.decode(body, type=Delivery).messages
        member.received([from_wire(wire, sender, to, member, memoryview(attachment))])

    async def call(
        self, sender: End, to: int, method: Method[Any, Any], request: Any, timeout_seconds: float
    ) -> Reply[Any]:
        reply: Reply[Any]
        try:
            async with asyncio.timeout(timeout_seconds):
                await asyncio.sleep(self.delay())
                if not self.passes(sender.node_id, to) or self.ends.get(sender.node_id) is not sender:
                    raise ConnectionLost(f"cannot reach node {to}")
                body = msgspec.msgpack.encode(request)
                # a task of the callee's: it goes on when the caller does not wait any more
                answer = self.spawn(self._answer(sender.identity, to, method, body))
                reply = await asyncio.shield(answer)
                await asyncio.sleep(self.delay())
                if method.name in self.lose_answers_of:
                    self.lose_answers_of.discard(method.name)
                    raise ConnectionLost(f"{method.name}: the answer of node {to} was lost")
                if not self.passes(to, sender.node_id) or self.ends.get(sender.node_id) is not sender:
                    raise ConnectionLost(f"{method.name}: the answer of node {to} was lost")
                return reply
        except TimeoutError:
            raise DeadlineExceeded(f"{method.name}: no answer from node {to}") from None

    async def _answer(self, caller: Identity, to: int, method: Method[Any, Any], body: bytes) -> Reply[Any]:
        end = self.ends.get(to)
        found = end.handlers.find(method.number) if end is not None else None
        if found is None:
            raise CallFailed(f"{method.name}: node {to} does not know it")
        self.calls_made.append((caller.node_id, to, method.name))
        call = Call(method.decode_request(body), b"", f"node {caller.node_id}", caller)
        try:
            reply: Reply[Any] = found.handler(call) if found.prompt else await found.handler(call)
        except Refused as error:
            if isinstance(error, method.refusals):
                raise
            raise CallFailed(str(error)) from error
        except Exception as error:
            raise CallFailed(f"{method.name}: {type(error).__name__}: {error}") from error
        return Reply(method.decode_reply(msgspec.msgpack.encode(reply.message)), reply.attachment)

    async def stream(
        self, sender: End, to: int, method: Method[Any, Any], request: Any
    ) -> AsyncGenerator[Reply[Any], None]:
        await asyncio.sleep(self.delay())
        end = self.ends.get(to)
        if end is None or not self.passes(sender.node_id, to):
            raise ConnectionLost(f"cannot reach node {to}")
        found = end.handlers.find(method.number)
        assert found is not None
        self.calls_made.append((sender.node_id, to, method.name))
        body = msgspec.msgpack.encode(request)
        call = Call(method.decode_request(body), b"", f"node {sender.node_id}", sender.identity)
        replies = found.handler(call)
        try:
            async for reply in replies:
                await asyncio.sleep(self.delay())
                if self.ends.get(to) is not end or not self.passes(to, sender.node_id):
                    raise ConnectionLost(f"{method.name}: the connection to node {to} broke")
                yield Reply(method.decode_reply(msgspec.msgpack.encode(reply.message)), reply.attachment)
        finally:
            await replies.aclose()

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class End:
    """One node's: `Exchange` and `Calls`."""

    def __init__(self, network: SimulatedNetwork, identity: Identity) -> None:
        self.identity = identity
        self.node_id = identity.node_id
        self.handlers = Handlers()
        self.members: dict[int, Member] = {}
        self.addresses: dict[int, str] = {}
        self._network = network

    @property
    def ports(self) -> ClusterPorts:
        return ClusterPorts(self, self, self.handlers, LoopTime())

    def detach(self) -> None:
        if self._network.ends.get(self.node_id) is self:
            del self._network.ends[self.node_id]
        self.members.clear()

    # Exchange

    def join(self, group: int, member: Member) -> None:
        self.members[group] = member

    def leave(self, group: int) -> None:
        self.members.pop(group, None)

    def send(self, group: int, messages: Iterable[raft.Message]) -> None:
        for message in messages:
            if group in self.members:
                self._network.deliver(self, group, message)

    # Calls

    async def call(
        self, node_id: int, method: Method[Any, Any], request: Any, *, timeout_seconds: float
    ) -> Reply[Any]:
        return await self._network.call(self, node_id, method, request, timeout_seconds)

    def stream(
        self, node_id: int, method: Method[Any, Any], request: Any, *, timeout_seconds: float
    ) -> AsyncGenerator[Reply[Any], None]:
        return self._network.stream(self, node_id, method, request)

    def know(self, node_id: int, address: str) -> None:
        self.addresses[node_id] = address


def addresses(node_ids: Sequence[int]) -> dict[str, str]:
    return {str(node_id): f"10.0.0.{node_id}:9093" for node_id in node_ids}
