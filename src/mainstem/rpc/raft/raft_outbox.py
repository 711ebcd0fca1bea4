"""Holds the messages that wait for one node, and picks those of the next delivery. No I/O but loading
entries.

Two lanes. Appends stay in order, also those without entries: an append that refers to earlier ones makes no sense
ahead of them. All other messages are small, may overtake, and leave first, so that a heartbeat never waits for
megabytes. A message whose entries have to be loaded holds back the appends of its Raft group alone.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from mainstem.errors import MainstemError
from mainstem.model import Buffer
from mainstem.raft.messages import Append, Message
from mainstem.rpc.raft.raft_member import Carried, RaftMember
from mainstem.rpc.raft.raft_messages import (
    MESSAGES_MAX,
    AnyWireMessage,
    WireAppend,
    WireEntry,
    append_pieces,
    to_wire,
)
from mainstem.supervised import Errands, Supervision

log = logging.getLogger(__name__)

DELIVERY_BYTES_MAX = 1024 * 1024
"""Bytes of entries in one delivery, unless a single entry is larger: so much may lie ahead of a heartbeat,
several times at most (`RaftLink`); larger deliveries gain nothing."""

PIECES_MAX = 8
"""Blocks that wait in their wire form, ready to leave: those of all write groups in one turn, if nothing is behind."""

LOADS_MAX = 4
"""Messages to one node whose entries are being loaded; each may be some megabytes."""


class Bounds(NamedTuple):
    """Bounds on what may wait for one node, and for how long. A waiting entry is a handle; its bytes are
    taken when it leaves."""

    messages: int = 16_384
    """Heartbeats and acknowledgements of many seconds, for all Raft groups."""
    bytes: int = 256 * 1024 * 1024
    """Bytes of entries: a few Raft groups that catch up with all that a leader lets be in flight."""
    waits_seconds: float = 0.005
    """An acknowledgement that may wait for another message to the same node does so for this long at most: where the
    members that the leader counts on stand still, clients wait so much longer for the others."""
    delivery_seconds: float = 5.0
    """A peer that takes in nothing for so long is stopped or gone: several elections could have been held."""


@dataclass(slots=True, eq=False)
class _Waiting:
    group: int
    message: Append
    size: int
    carried: Sequence[Carried] | None = None


@dataclass(slots=True)
class Outgoing:
    """The content of one delivery."""

    messages: list[AnyWireMessage] = field(default_factory=list)
    buffers: Sequence[Buffer] = field(default_factory=list)
    size: int = 0
    """Bytes of the buffers."""


class Outbox:
    """The two lanes. `dropped` is told the Raft group of every message that will not leave; `loaded` is
    called when there is something to send again."""

    def __init__(
        self,
        members: Mapping[int, RaftMember],
        dropped: Callable[[int], None],
        loaded: Callable[[], None],
        bounds: Bounds,
        supervision: Supervision,
    ) -> None:
        self.bytes_waiting = 0
        self._members = members
        self._dropped = dropped
        self._loaded = loaded
        self._bounds = bounds
        self._small: deque[AnyWireMessage] = deque()
        self._appends: deque[_Waiting] = deque()
        self._pieces: deque[tuple[WireAppend, Sequence[Buffer], int]] = deque()
        """Pieces of appends: (piece, its buffers, their bytes)."""
        self._held: dict[int, deque[_Waiting]] = {}
        """Per Raft group whose entries are being loaded: the appends behind those."""
        self._loads = Errands(supervision, "entries for another node")

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be sent, but for what is being loaded."""
        return not (self._small or self._appends or self._pieces)

    @property
    def messages_waiting(self) -> int:
        if not self._held:
            return len(self._small) + len(self._appends) + len(self._pieces)
        held = sum(len(waiting) for waiting in self._held.values())
        return len(self._small) + len(self._appends) + len(self._pieces) + len(self._held) + held

    def put(self, group: int, message: Message) -> None:
        if isinstance(message, Append):
            size = 0
            for entry in message.entries:
                size += entry.size
            too_many = self.messages_waiting >= self._bounds.messages
            if too_many or (self.bytes_waiting and self.bytes_waiting + size > self._bounds.bytes):
                self._dropped(group)
                return
            if self._put_in_wire_form(group, message):
                return
            self.bytes_waiting += size
            waiting = _Waiting(group, message, size)
            if group in self._held:
                self._held[group].append(waiting)
            else:
                self._appends.append(waiting)
        elif len(self._small) >= self._bounds.messages:
            self._dropped(group)
        else:
            self._small.append(to_wire(group, message))

    def _put_in_wire_form(self, group: int, message: Append) -> bool:
        """Have an append of a single block leave next, if nothing waits before it and memory has the block. Returns
        whether it does."""
        member = self._members.get(group)
        if (
            len(message.entries) != 1
            or self._appends
            or self._held
            or len(self._pieces) >= PIECES_MAX
            or member is None
        ):
            return False
        (entry,) = message.entries
        try:
            carried = member.carried(entry)
        except Exception:  # comes again, and is told of
            return False
        if carried is None:
            return False
        numbers, buffers = carried
        size = 0
        for buffer in buffers:
            size += len(buffer)
        wire = WireEntry(entry.term, entry.index, entry.kind, numbers, size)
        piece = WireAppend(
            group, message.term, message.previous_index, message.previous_term, message.commit_index, (wire,),
            message.may_wait,
        )  # fmt: skip
        self._pieces.append((piece, buffers, size))
        self.bytes_waiting += size
        return True

    def take(self, *, appends: bool) -> Outgoing | None:
        """The next delivery, without appends if they must wait; None: there is nothing to send."""
        small = self._small
        if not small and not self._appends:
            if not self._pieces:
                return None
            if appends and len(self._pieces) == 1:
                message, buffers, size = self._pieces.popleft()
                self.bytes_waiting -= size
                return Outgoing([message], buffers, size)
        out = Outgoing()
        if small and len(small) <= MESSAGES_MAX:
            out.messages += small
            small.clear()
        while small and len(out.messages) < MESSAGES_MAX:
            out.messages.append(small.popleft())
        pieces, gathered = self._pieces, list[Buffer]()
        while appends and len(out.messages) < MESSAGES_MAX and (pieces or self._make_pieces()):
            message, buffers, size = pieces[0]
            if out.size and out.size + size > DELIVERY_BYTES_MAX:
                break
            pieces.popleft()
            self.bytes_waiting -= size
            out.messages.append(message)
            gathered += buffers
            out.size += size
        out.buffers = gathered
        return out if out.messages else None

    def drop_all(self) -> None:
        """Drop everything that waits."""
        groups = [message.group for message in self._small]
        groups += [waiting.group for waiting in self._appends]
        groups += [piece.group for piece, _buffers, _size in self._pieces]
        for loading, held in self._held.items():
            groups += [loading] * (1 + len(held))
        self._clear()
        for group in groups:
            self._dropped(group)

    def _clear(self) -> None:
        self._loads.cancel()
        self._small.clear()
        self._appends.clear()
        self._pieces.clear()
        self._held.clear()
        self.bytes_waiting = 0

    async def close(self) -> None:
        """Drop everything without calling `dropped`, and wait for the loads to end."""
        self._clear()
        await self._loads.ended()

    def _make_pieces(self) -> bool:
        """Cut the next append into pieces. Returns whether there is one that can leave."""
        while self._appends:
            waiting = self._appends[0]
            group = waiting.group
            member = self._members.get(group)
            if member is None:
                self._forget(self._appends.popleft())
            elif (carried := waiting.carried or self._carried(member, waiting)) is not None:
                self._forget(self._appends.popleft())
                made = list(append_pieces(group, waiting.message, carried, DELIVERY_BYTES_MAX))
                self._pieces += made
                self.bytes_waiting += sum(size for _piece, _buffers, size in made)
                return True
            elif len(self._held) < LOADS_MAX:
                self._load(member, waiting)
            else:
                return False  # the load that is under way will call
        return False

    def _forget(self, waiting: _Waiting) -> None:
        self.bytes_waiting -= waiting.size

    def _carried(self, member: RaftMember, waiting: _Waiting) -> Sequence[Carried] | None:
        """The wire form of a message's entries; None: memory does not have all of them."""
        try:
            found = list(map(member.carried, waiting.message.entries))
        except Exception:
            log.exception("entries of group %d for node %d cannot be sent", waiting.group, waiting.message.to)
            return None  # `load` will say what is wrong
        return None if None in found else cast(list[Carried], found)

    def _load(self, member: RaftMember, waiting: _Waiting) -> None:
        """Load the entries of a message, and hold back the appends of its Raft group that follow."""
        group = waiting.group
        held = deque(other for other in self._appends if other.group == group and other is not waiting)
        self._appends = deque(other for other in self._appends if other.group != group)
        self._held[group] = held
        self._loads.start(self._loading(member, waiting, held))

    async def _loading(self, member: RaftMember, waiting: _Waiting, held: deque[_Waiting]) -> None:
        group, entries = waiting.group, waiting.message.entries
        try:
            loaded = await member.load(entries)
            assert len(loaded) == len(entries), f"{len(loaded)} of {len(entries)} entries were loaded"
            waiting.carried = loaded
        except (MainstemError, OSError) as error:
            log.warning("entries of group %d for node %d cannot be had: %s", group, waiting.message.to, error)
        except Exception:
            log.exception("loading entries of group %d for node %d failed", group, waiting.message.to)
        if self._held.get(group) is not held:
            return  # cleared meanwhile
        del self._held[group]
        if waiting.carried is None:
            self._forget(waiting)
            self._dropped(group)
        else:
            held.appendleft(waiting)
        self._appends.extendleft(reversed(held))
        self._loaded()
