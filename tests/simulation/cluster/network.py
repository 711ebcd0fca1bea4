"""The network between the nodes of a cluster: it carries Raft's messages as `rpc.RaftExchange` does, in their wire
form, and loses, delays, repeats and reorders them.

The messages of a node's groups in one turn leave at its end. Messages become bytes there and are made anew from bytes
where they arrive, so no object is shared between nodes. A message made no sense of where it arrives is a bug."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec
from tests.simulation.cluster.lives import ClusterLoop, Life
from tests.simulation.oracle import Violation

from mainstem.errors import MainstemError
from mainstem.raft import Message
from mainstem.raft.messages import Append
from mainstem.rpc.raft.raft_member import Carried, RaftMember
from mainstem.rpc.raft.raft_messages import Delivery, append_pieces, attachment_bytes, from_wire, to_wire

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Delivery)

PIECE_BYTES_MAX = 20_000
"""Appends are cut, as large ones are in production."""


def caused(what: str, error: Exception) -> Violation:
    """The messages that must not arrive, with where it comes from."""
    violation = Violation(f"{what}: {type(error).__name__}: {error}")
    violation.__cause__ = error
    return violation


@dataclass
class Quality:
    """How the network is today. Probabilities per delivery, delays in seconds."""

    loss: float = 0.0
    repeats: float = 0.0
    late: float = 0.0
    """Held back for up to `late_seconds`, so that others overtake."""
    late_seconds: float = 1.0
    delay_seconds: float = 0.001
    tells: float = 0.9
    """Of what is lost, how much the sender hears about."""


class SimulatedNetwork:
    """All links. `trouble` is told of what must never happen."""

    def __init__(
        self,
        loop: ClusterLoop,
        rng: random.Random,
        trouble: Callable[[Exception], None],
        sent: Callable[[int, int, Sequence[Message]], None] = lambda _node_id, _group, _messages: None,
    ) -> None:
        """`sent` is told which messages of which write group leave which node."""
        self.loop = loop
        self.sent = sent
        self.rng = rng
        self.trouble = trouble
        self.quality = Quality()
        self.cut: set[tuple[int, int]] = set()
        """(sender, receiver) that nothing gets through between."""
        self.mute: set[int] = set()
        """Write groups of which nothing gets through anywhere."""
        self.slow: dict[tuple[int, int], float] = {}
        """Seconds more."""
        self.exchanges: dict[int, SimulatedExchange] = {}
        self.delivered = 0

    def attach(self, life: Life) -> SimulatedExchange:
        """A node comes up."""
        exchange = self.exchanges[life.node_id] = SimulatedExchange(self, life)
        return exchange

    def carry(self, sender: SimulatedExchange, to: int, content: bytes, attachment: bytes) -> bool:
        """Send a delivery on its way; False: it will not arrive, and the sender notices."""
        rng, quality = self.rng, self.quality
        way = (sender.life.node_id, to)
        if way in self.cut or rng.random() < quality.loss:
            return rng.random() >= quality.tells
        target = self.exchanges.get(to)
        if target is None or not target.life.alive:
            return False
        for _ in range(1 + (rng.random() < quality.repeats)):
            delay = quality.delay_seconds * rng.random() + self.slow.get(way, 0.0)
            if rng.random() < quality.late:
                delay += rng.random() * quality.late_seconds
            self.loop.call_later(delay, self.arrive, way, target, content, attachment, context=target.life.context)
        return True

    def arrive(self, way: tuple[int, int], target: SimulatedExchange, content: bytes, attachment: bytes) -> None:
        if way not in self.cut and target.life.alive:
            self.delivered += 1
            target.deliver(way[0], content, attachment)


class SimulatedExchange:
    """The view that a node has of the network; has the surface of `rpc.RaftExchange` that rooms use."""

    def __init__(self, network: SimulatedNetwork, life: Life) -> None:
        self.life = life
        self._network = network
        self._members: dict[int, RaftMember] = {}
        self._waiting: dict[int, list[tuple[int, Message]]] = {}
        self._flush_soon = False

    def join(self, group: int, member: RaftMember) -> None:
        assert group not in self._members, f"group {group} has a member"
        self._members[group] = member

    def leave(self, group: int) -> None:
        self._members.pop(group, None)

    def send(self, group: int, messages: Iterable[Message]) -> None:
        if not self.life.alive or group in self._network.mute:
            return
        messages = list(messages)
        self._network.sent(self.life.node_id, group, messages)
        for message in messages:
            assert message.to != self.life.node_id, f"a message of group {group} to the node itself"
            self._waiting.setdefault(message.to, []).append((group, message))
        if self._waiting and not self._flush_soon:
            self._flush_soon = True
            self._network.loop.call_soon(self._flush, context=self.life.context)

    def _flush(self) -> None:
        self._flush_soon = False
        waiting, self._waiting = self._waiting, {}
        for to, messages in waiting.items():
            self._deliver_to(to, messages)

    def _deliver_to(self, to: int, messages: Sequence[tuple[int, Message]]) -> None:
        """One delivery or, as chance has it, one per message."""
        apart = self._network.rng.random() < self._network.quality.late
        wires, buffers, groups = [], [], set()
        for group, message in messages:
            groups.add(group)
            if isinstance(message, Append) and message.entries:
                member = self._members.get(group)
                if member is None:
                    continue
                carried = [member.carried(entry) for entry in message.entries]
                present = [one for one in carried if one is not None]
                if len(present) < len(carried):
                    self._load(to, group, member, message)
                    continue
                pieces = self._pieces(group, message, present)
            else:
                pieces = [(to_wire(group, message), b"")]
            for wire, attachment in pieces:
                if apart:
                    self._hand_over(to, {group}, [wire], attachment)
                else:
                    wires.append(wire)
                    buffers.append(attachment)
        if wires:
            self._hand_over(to, groups, wires, b"".join(buffers))

    def _pieces(self, group: int, message: Append, carried: Sequence[Carried]) -> list[tuple[object, bytes]]:
        return [
            (piece, b"".join(bytes(buffer) for buffer in buffers))
            for piece, buffers, _size in append_pieces(group, message, carried, PIECE_BYTES_MAX)
        ]

    def _load(self, to: int, group: int, member: RaftMember, message: Append) -> None:
        self._network.loop.run_in(self.life, self._send_loaded(to, group, member, message), name="load")

    async def _send_loaded(self, to: int, group: int, member: RaftMember, message: Append) -> None:
        try:
            carried = await member.load(message.entries)
        except (MainstemError, OSError):
            self._tell(to, {group})
            return
        for wire, attachment in self._pieces(group, message, carried):
            self._hand_over(to, {group}, [wire], attachment)

    def _hand_over(self, to: int, groups: set[int], wires: Sequence[object], attachment: bytes) -> None:
        content = _encoder.encode(Delivery(list(wires)))  # type: ignore[arg-type]
        if not self._network.carry(self, to, content, attachment):
            self._tell(to, groups)

    def _tell(self, to: int, groups: set[int]) -> None:
        """In a turn of its own, as `send` never calls back."""

        def told() -> None:
            for group in sorted(groups):
                if group in self._members:
                    self._members[group].unreachable(to)

        self._network.loop.call_soon(told, context=self.life.context)

    def deliver(self, sender: int, content: bytes, attachment: bytes) -> None:
        view = memoryview(bytearray(attachment)).toreadonly()
        by_group: dict[int, list[Message]] = {}
        position = 0
        try:
            for wire in _decoder.decode(content).messages:
                start, position = position, position + attachment_bytes(wire)
                member = self._members.get(wire.group)
                if member is not None:
                    message = from_wire(wire, sender, self.life.node_id, member, view[start:position])
                    by_group.setdefault(wire.group, []).append(message)
            for group, received in by_group.items():
                if (member := self._members.get(group)) is not None:
                    member.received(received)
        except Exception as error:
            self._network.trouble(caused(f"node {self.life.node_id}, on a message of node {sender}", error))
            raise
