"""Nodes of a cluster in one process: Raft messages and calls over a network that loses, delays, repeats and splits.

    network = SimulatedNetwork(seed=7)
    network.loss = 0.1                      of messages, requests and answers, each on its own
    network.split({1}, {2, 3})              nothing passes between the two sides, until `heal`
    network.cut = {frozenset({1, 2})}       nothing passes between these two, until `heal`
    end = network.attach(identity)          `ClusterPorts` of a node; `end.detach()` is its death, `end.close()` one
                                            that the others hear of

Everything that travels is encoded and decoded as on the wire. All chance comes from the seed, all time from the event
loop, which is best a `SimulatedLoop`. An answer that is lost after its call took effect is a fault like any other.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable, Sequence
from typing import Any

import msgspec
from tests.fakes.begun_calls import begun
from tests.fakes.clock import LoopClock

from mainstem.errors import MainstemError
from mainstem.model import Buffer
from mainstem.nameserver.cluster_ports import ClusterPorts
from mainstem.prompt_future import PromptFuture
from mainstem.raft import messages as raft
from mainstem.rpc.errors import CallFailed, ConnectionLost, DeadlineExceeded, NotServed, Refused, RpcError
from mainstem.rpc.handlers import BoundMethod, Handlers, RpcCall
from mainstem.rpc.raft.raft_member import Carried, RaftMember
from mainstem.rpc.raft.raft_messages import AnyWireMessage, Delivery, append_pieces, from_wire, to_wire
from mainstem.rpc.wire.identity import Identity
from mainstem.rpc.wire.method import Method, Reply

APPEND_BYTES_MAX = 64 * 1024


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
        return self.joined(sender, to) and to in self.ends and self.rng.random() >= self.loss

    def joined(self, one: int, other: int) -> bool:
        """Whether nothing cuts these two off from each other."""
        return not any((one in side) != (other in side) for side in self._sides) and {one, other} not in self.cut

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
            present = [one for one in carried if one is not None]
            if len(present) < len(carried):
                self.spawn(self._load(sender, group, member, message))
            else:
                self._send_entries(sender, group, message, present)
        else:
            self._send(sender, to, group, to_wire(group, message), b"")

    async def _load(self, sender: End, group: int, member: RaftMember, message: raft.Append) -> None:
        try:
            carried = await member.load(message.entries)
        except (MainstemError, OSError):
            member.unreachable(message.to)
        else:
            self._send_entries(sender, group, message, carried)

    def _send_entries(self, sender: End, group: int, message: raft.Append, carried: Sequence[Carried]) -> None:
        for piece, buffers, _ in append_pieces(group, message, carried, APPEND_BYTES_MAX):
            self._send(sender, message.to, group, piece, b"".join(bytes(part) for part in buffers))

    def _send(self, sender: End, to: int, group: int, wire: AnyWireMessage, attachment: bytes) -> None:
        if self.ends.get(sender.node_id) is sender:  # it has not ended while entries were loaded
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

    def tell_gone(self, node_id: int) -> None:
        for end in self.ends.values():
            if self.joined(end.node_id, node_id):
                asyncio.get_running_loop().call_later(self.delay(), end.gone, node_id)

    async def call(
        self,
        sender: End,
        to: int,
        method: Method[Any, Any],
        request: Any,
        timeout_seconds: float,
        attached: bytes = b"",
    ) -> Reply[Any]:
        reply: Reply[Any]
        try:
            async with asyncio.timeout(timeout_seconds):
                await asyncio.sleep(self.delay())
                if not self.passes(sender.node_id, to) or self.ends.get(sender.node_id) is not sender:
                    raise ConnectionLost(f"cannot reach node {to}")
                body = msgspec.msgpack.encode(request)
                # a task of the callee's: it goes on when the caller does not wait any more
                answer = self.spawn(self._answer(sender.identity, to, method, body, attached))
                await self._while_there(answer, self.ends[to])
                reply = answer.result()
                await asyncio.sleep(self.delay())
                if method.name in self.lose_answers_of:
                    self.lose_answers_of.discard(method.name)
                    raise ConnectionLost(f"{method.name}: the answer of node {to} was lost")
                if not self.passes(to, sender.node_id) or self.ends.get(sender.node_id) is not sender:
                    raise ConnectionLost(f"{method.name}: the answer of node {to} was lost")
                return reply
        except TimeoutError:
            raise DeadlineExceeded(f"{method.name}: no answer from node {to}") from None

    async def _while_there(self, answering: asyncio.Task[Any], end: End) -> None:
        """Wait for a node's answer. Raises `ConnectionLost` when the node ends before."""
        over = self.spawn(end.over.wait())
        try:
            await asyncio.wait([answering, over], return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
        if not answering.done():
            raise ConnectionLost(f"the connection to node {end.node_id} broke")

    def _begin(
        self, caller: Identity, to: int, method: Method[Any, Any], body: bytes, attached: bytes = b""
    ) -> tuple[BoundMethod, RpcCall[Any]]:
        end = self.ends.get(to)
        found = end.handlers.find(method.number) if end is not None else None
        if found is None:
            raise NotServed(f"{method.name}: node {to} does not know it")
        self.calls_made.append((caller.node_id, to, method.name))
        return found, RpcCall(method.decode_request(body), attached, f"node {caller.node_id}", caller)

    async def _answer(
        self, caller: Identity, to: int, method: Method[Any, Any], body: bytes, attached: bytes
    ) -> Reply[Any]:
        found, call = self._begin(caller, to, method, body, attached)
        try:
            return arrived(method, found.handler(call) if found.prompt else await found.answer(call))
        except Exception as error:
            raise told(method, error) from error

    async def stream(
        self, sender: End, to: int, method: Method[Any, Any], request: Any, timeout_seconds: float
    ) -> AsyncGenerator[Reply[Any], None]:
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        await asyncio.sleep(self.delay())
        end = self.ends.get(to)
        if end is None or not self.passes(sender.node_id, to):
            raise ConnectionLost(f"cannot reach node {to}")
        found, call = self._begin(sender.identity, to, method, msgspec.msgpack.encode(request))
        replies = found.handler(call)
        asked: asyncio.Task[Reply[Any] | None] | None = None
        try:
            while True:
                try:
                    async with asyncio.timeout_at(deadline):
                        asked = self.spawn(following(method, replies))
                        await self._while_there(asked, end)
                        if (reply := asked.result()) is None:
                            return
                        await asyncio.sleep(self.delay())
                except TimeoutError:
                    raise DeadlineExceeded(f"{method.name}: no answer from node {to}") from None
                if self.ends.get(to) is not end or not self.passes(to, sender.node_id):
                    raise ConnectionLost(f"{method.name}: the connection to node {to} broke")
                yield reply
        finally:
            if asked is not None and not asked.done():
                asked.cancel()
                await asyncio.wait([asked])
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
        self.members: dict[int, RaftMember] = {}
        self.addresses: dict[int, str] = {}
        self.cut_off: set[int] = set()
        """Nodes to which the connection has just ended."""
        self.over = asyncio.Event()
        """The node is not there any more."""
        self._network = network

    @property
    def ports(self) -> ClusterPorts:
        return ClusterPorts(self, self, self.handlers, LoopClock(), cut_off=self.cut_off.__contains__)

    def detach(self) -> None:
        if self._network.ends.get(self.node_id) is self:
            del self._network.ends[self.node_id]
        self.over.set()
        self.members.clear()

    def close(self) -> None:
        """The process ends, and its machine says so to those who speak with it."""
        self.detach()
        self._network.tell_gone(self.node_id)

    def gone(self, node_id: int) -> None:
        if node_id not in self._network.ends:
            for member in list(self.members.values()):
                member.gone(node_id)

    # Exchange

    def join(self, group: int, member: RaftMember) -> None:
        self.members[group] = member

    def leave(self, group: int) -> None:
        self.members.pop(group, None)

    def send(self, group: int, messages: Iterable[raft.Message]) -> None:
        for message in messages:
            if group in self.members:
                self._network.deliver(self, group, message)

    # Calls

    async def call(
        self,
        node_id: int,
        method: Method[Any, Any],
        request: Any,
        attachment: Sequence[Buffer] = (),
        *,
        timeout_seconds: float,
    ) -> Reply[Any]:
        attached = b"".join(map(bytes, attachment))
        return await self._network.call(self, node_id, method, request, timeout_seconds, attached)

    def begin(
        self,
        node_id: int,
        method: Method[Any, Any],
        request: Any,
        attachment: Sequence[Buffer] = (),
        *,
        timeout_seconds: float,
    ) -> PromptFuture[Reply[Any]] | None:
        if not self._network.passes(self.node_id, node_id):
            return None
        return begun(self.call(node_id, method, request, attachment, timeout_seconds=timeout_seconds))

    def stream(
        self, node_id: int, method: Method[Any, Any], request: Any, *, timeout_seconds: float
    ) -> AsyncGenerator[Reply[Any], None]:
        return self._network.stream(self, node_id, method, request, timeout_seconds)

    def know(self, node_id: int, address: str) -> None:
        self.addresses[node_id] = address


async def following(method: Method[Any, Any], replies: AsyncIterator[Reply[Any]]) -> Reply[Any] | None:
    """The next reply of a stream, as it arrives; None: there is none."""
    try:
        return arrived(method, await anext(replies))
    except StopAsyncIteration:
        return None
    except Exception as error:
        raise told(method, error) from error


def arrived(method: Method[Any, Any], reply: Reply[Any]) -> Reply[Any]:
    """A reply as it comes out of the wire."""
    attachment = b"".join(bytes(buffer) for buffer in reply.buffers)
    return Reply(method.decode_reply(msgspec.msgpack.encode(reply.message)), attachment)


def told(method: Method[Any, Any], error: Exception) -> RpcError:
    """The text that a caller is told of an error of the handler."""
    if isinstance(error, Refused) and isinstance(error, method.refusals):
        return error
    if isinstance(error, TimeoutError):
        return DeadlineExceeded(f"{method.name}: {error}")
    return CallFailed(f"{method.name}: {type(error).__name__}: {error}")


def addresses(node_ids: Sequence[int]) -> dict[str, str]:
    return {str(node_id): f"10.0.0.{node_id}:9093" for node_id in node_ids}
