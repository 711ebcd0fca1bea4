"""Carries the Raft messages of all Raft groups of a node to the other nodes, and theirs to its groups.

The Raft groups' messages of one turn of the event loop leave at its end, all messages for one node in one delivery
(large backlogs in several): the heartbeats of all groups share it. Messages may get lost, which Raft expects; the
exchange then tells the Raft group that the node is unreachable, in a turn of its own, so that `send` never calls back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from random import Random
from types import MappingProxyType

from mainstem.address import Address
from mainstem.model import HistogramSample, Sample
from mainstem.raft.messages import AppendResponse, Message
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.raft.raft_link import Backoff, RaftLink
from mainstem.rpc.raft.raft_member import METADATA_QUORUM, Carried, RaftMember
from mainstem.rpc.raft.raft_messages import (
    DELIVER,
    AnyWireMessage,
    Delivery,
    DeliveryRefused,
    attachment_bytes,
    from_wire,
)
from mainstem.rpc.raft.raft_outbox import Bounds
from mainstem.rpc.wire.client_connection import Connect, connect_tcp
from mainstem.rpc.wire.frames import FRAME_BYTES_MAX
from mainstem.rpc.wire.hello import Hello
from mainstem.rpc.wire.identity import NODE, Identity
from mainstem.rpc.wire.method import DONE, Nothing, Reply
from mainstem.supervised import Errands, Supervision

__all__ = ["METADATA_QUORUM", "Address", "Bounds", "Carried", "Identity", "RaftExchange", "RaftMember"]

log = logging.getLogger(__name__)


class RaftExchange:
    """Holds one link per node and one member per Raft group. Made and used on the event loop. `set_peers`
    makes the links; `close` ends them."""

    def __init__(
        self,
        node: Identity,
        *,
        random: Random,
        connect: Connect = connect_tcp,
        name: str = "",
        reached_at: str = "",
        bounds: Bounds | None = None,
        supervision: Supervision | None = None,
    ) -> None:
        """`reached_at` is the HOST:PORT at which other nodes reach this one."""
        self.node = node
        self._supervision = supervision or Supervision()
        self._random = random
        self._connect = connect
        self._name = name or f"node {node.node_id}"
        self._reached_at = reached_at
        self._bounds = bounds or Bounds()
        self._members: dict[int, RaftMember] = {}
        self._links: dict[int, RaftLink] = {}
        self._closing = Errands(self._supervision, "raft link that ends")
        self._to_flush: set[int] = set()
        self._waiting: set[int] = set()
        """Nodes to which something waits for another message to go with."""
        self._waits: asyncio.TimerHandle | None = None
        self._flush_soon = False
        self._unreachable: set[tuple[int, int]] = set()
        """(node, Raft group) pairs that are to be told of lost messages."""
        self._newest_connection: dict[int, int] = {}
        self._strays = 0
        self._received_messages = 0
        self._received_bytes = 0
        self._received_refused = 0
        self._closed = False

    # for the Raft groups

    def join(self, group: int, member: RaftMember) -> None:
        """From now on `member` receives the messages of this Raft group."""
        assert group not in self._members, f"group {group} has a member"
        self._members[group] = member

    def leave(self, group: int) -> None:
        """Receive nothing more for the Raft group; its messages that still wait may not leave."""
        self._members.pop(group, None)

    def send(self, group: int, messages: Iterable[Message]) -> None:
        """Send messages at the end of this turn. Never blocks, never calls back."""
        for message in messages:
            assert message.to != self.node.node_id, f"a message of group {group} to the node itself"
            link = self._links.get(message.to)
            if link is None:
                self._strays += 1
                self._tell(message.to, group)
            else:
                link.outbox.put(group, message)
                if type(message) is AppendResponse and message.may_wait:
                    self._wait(message.to)
                else:
                    self._to_flush.add(message.to)
        if not self._flush_soon and self._to_flush:
            self._schedule()

    def _wait(self, node_id: int) -> None:
        """Have a message leave with the next to the same node, or soon."""
        self._waiting.add(node_id)
        if self._waits is None and not self._closed:
            self._waits = asyncio.get_running_loop().call_later(self._bounds.waits_seconds, self._waited)

    def _waited(self) -> None:
        self._waits = None
        if self._waiting and not self._closed:
            self._to_flush |= self._waiting
            self._flush()

    # for the node

    def set_peers(self, addresses: Mapping[int, Address]) -> None:
        """Set the addresses of the other nodes. Links to nodes that are left out or have moved end; the
        others stay as they are. An entry for the node itself is ignored."""
        assert not self._closed
        wanted = {node_id: Address(*address) for node_id, address in addresses.items() if node_id != self.node.node_id}
        for node_id, link in list(self._links.items()):
            if wanted.get(node_id) != link.address:
                del self._links[node_id]
                self._end(link)
        for node_id, address in wanted.items():
            if node_id not in self._links:
                self._links[node_id] = self._link(node_id, address)
                self._links[node_id].start()

    def register(self, handlers: Handlers) -> None:
        """Serve the other nodes' deliveries."""
        handlers.prompt(DELIVER, self._deliver)

    def called_by(self, node_id: int) -> None:
        """Note that a node has just connected to this one: it can be reached, so the link to it waits no longer."""
        link = self._links.get(node_id)
        if link is not None:
            link.hurry()

    @property
    def links(self) -> Mapping[int, RaftLink]:
        """The present links to the other nodes, by node id."""
        return MappingProxyType(self._links)

    def connected(self, node_id: int) -> bool:
        """Whether there is a connection to this node."""
        link = self._links.get(node_id)
        return link is not None and link.connected

    def cut_off(self, node_id: int) -> bool:
        """Whether the connection to this node has just ended, and was not made again yet."""
        link = self._links.get(node_id)
        return link is not None and link.cut_off

    def trouble(self, node_id: int) -> str:
        """Why nothing gets through to this node, in words; empty: it does, as far as is known."""
        link = self._links.get(node_id)
        return f"no address of node {node_id} is known" if link is None else link.trouble

    async def close(self) -> None:
        """End all links and wait for them. No member is called any more."""
        self._closed = True
        if self._waits is not None:
            self._waits.cancel()
        for link in self._links.values():
            self._end(link)
        self._links.clear()
        self._members.clear()
        await self._closing.ended()

    def samples(self) -> Iterator[Sample | HistogramSample]:
        for node_id, link in tuple(self._links.items()):
            labels = (("peer", str(node_id)),)
            yield from link.counters.samples(labels)
            for name, text, value in (
                ("connected", "1: connected.", float(link.connected)),
                ("deliveries_in_flight", "Deliveries not taken in yet.", link.deliveries_in_flight),
                ("messages_waiting", "Raft messages that wait to be sent.", link.outbox.messages_waiting),
                ("bytes_waiting", "Log entries that wait to be sent.", link.outbox.bytes_waiting),
            ):
                yield Sample(f"mainstem_raft_link_{name}", "gauge", text, value, labels)
        for name, text, value in (
            ("received_messages_total", "Raft messages received.", self._received_messages),
            ("received_bytes_total", "Bytes of log entries received.", self._received_bytes),
            ("received_refused_total", "Raft messages received that made no sense.", self._received_refused),
            ("strays_total", "Raft messages for nodes whose address is not known.", self._strays),
        ):
            yield Sample(f"mainstem_raft_exchange_{name}", "counter", text, value)

    # sending

    def _link(self, node_id: int, address: Address) -> RaftLink:
        hello = Hello(
            name=self._name,
            frame_bytes_max=FRAME_BYTES_MAX,
            role=NODE,
            node=self.node,
            seeks=node_id,
            reached_at=self._reached_at,
        )
        return RaftLink(
            node_id, address, hello, self._members,
            connect=self._connect,
            backoff=lambda first, longest: Backoff(first, longest, self._random),
            dropped=lambda group: self._tell(node_id, group),
            lost=lambda: self._tell_all(node_id),
            gone=lambda: self._gone(node_id),
            bounds=self._bounds,
            supervision=self._supervision,
        )  # fmt: skip

    def _end(self, link: RaftLink) -> None:
        self._closing.start(link.close())

    def _tell(self, node_id: int, group: int) -> None:
        self._unreachable.add((node_id, group))
        self._schedule()

    def _tell_all(self, node_id: int) -> None:
        for group in self._members:
            self._tell(node_id, group)

    def _gone(self, node_id: int) -> None:
        for group, member in tuple(self._members.items()):
            try:
                member.gone(node_id)
            except Exception:
                log.exception("group %d does not take that node %d is gone", group, node_id)

    def _schedule(self) -> None:
        if not self._flush_soon and not self._closed:
            self._flush_soon = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_soon = False
        nodes, self._to_flush = self._to_flush, set()
        self._waiting -= nodes
        for node_id in nodes:
            if (link := self._links.get(node_id)) is not None:
                try:
                    link.flush()
                except Exception:
                    log.exception("sending to node %d failed", node_id)
        unreachable, self._unreachable = self._unreachable, set()
        for node_id, group in unreachable:
            if (member := self._members.get(group)) is not None:
                try:
                    member.unreachable(node_id)
                except Exception:
                    log.exception("group %d does not take that node %d is unreachable", group, node_id)

    # receiving

    def _deliver(self, call: RpcCall[Delivery]) -> Reply[Nothing]:
        """Take in a delivery. Raises `DeliveryRefused` if part of it made no sense; the rest was taken."""
        assert call.node is not None
        sender = call.node.node_id
        if call.connection < self._newest_connection.get(sender, 0):
            return DONE  # the sender's next connection has overtaken this one
        self._newest_connection[sender] = call.connection
        messages = call.request.messages
        attachment = memoryview(call.attachment).toreadonly()
        if len(messages) == 1 and attachment_bytes(messages[0]) == len(attachment):
            self._received_messages += 1
            self._received_bytes += len(attachment)
            message = self._message(messages[0], sender, attachment)
            if isinstance(message, str):
                raise self._makes_no_sense(sender, 1, [message])
            if message is not None:
                self._hand_over(messages[0].group, [message], sender)
            return DONE
        lengths = list(map(attachment_bytes, messages))
        if sum(lengths) != len(attachment):
            self._received_refused += len(messages)
            raise DeliveryRefused(
                f"the entries do not add up to the {len(attachment)} bytes that came with them; nothing was taken"
            )
        by_group: dict[int, list[Message]] = {}
        nonsense: list[str] = []
        position = 0
        for wire, length in zip(messages, lengths, strict=True):
            start, position = position, position + length
            message = self._message(wire, sender, attachment[start:position])
            if isinstance(message, str):
                nonsense.append(message)
            elif message is not None:
                by_group.setdefault(wire.group, []).append(message)
        self._received_messages += len(messages)
        self._received_bytes += len(attachment)
        for group, received in by_group.items():
            self._hand_over(group, received, sender)
        if nonsense:
            raise self._makes_no_sense(sender, len(messages), nonsense)
        return DONE

    def _message(self, wire: AnyWireMessage, sender: int, attachment: memoryview) -> Message | str | None:
        """A message as the core takes it; a string: why it makes no sense; None: its Raft group has no member here."""
        member = self._members.get(wire.group)
        if member is None:
            return None
        try:
            return from_wire(wire, sender, self.node.node_id, member, attachment)
        except ValueError as error:
            return f"{type(wire).__name__} of group {wire.group}: {error}"

    def _hand_over(self, group: int, received: list[Message], sender: int) -> None:
        if (member := self._members.get(group)) is not None:
            try:
                member.received(received)
            except Exception:
                log.exception("group %d failed on messages of node %d", group, sender)

    def _makes_no_sense(self, sender: int, count: int, nonsense: list[str]) -> DeliveryRefused:
        """Note that of `count` messages some make no sense, and why; returns the answer."""
        self._received_refused += len(nonsense)
        log.error("node %d sent %d messages that make no sense: %s", sender, len(nonsense), nonsense[0])
        return DeliveryRefused(f"{len(nonsense)} of {count} messages dropped: {nonsense[0]}")
