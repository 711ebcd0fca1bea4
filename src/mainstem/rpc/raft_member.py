"""What the exchange of Raft messages asks of a node's part in a group: whoever drives a `RaftCore` offers it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from mainstem.model import Buffer
from mainstem.raft.entry import Entry
from mainstem.raft.messages import Message

METADATA_GROUP = 0xFFFF
"""The nameserver's group; write groups count from 0."""


class Carried(NamedTuple):
    """What an entry is on the wire besides term, index and kind."""

    numbers: tuple[int, ...]
    """Each fits 64 bits, with or without a sign."""
    buffers: Sequence[Buffer]
    """Travel as they lie, one after the other. They must not change until they are released."""


class Member(Protocol):
    """One per group and node. All of it is called on the event loop, and must be brief."""

    def received(self, messages: Sequence[Message]) -> None:
        """Messages for this group, in the order of their arrival. Never blocks."""
        ...

    def carried(self, entry: Entry) -> Carried | None:
        """An entry to be sent; None: it is not in memory, `load` gets it."""
        ...

    async def load(self, entries: Sequence[Entry]) -> list[Carried]:
        """The entries of a message, not all of which `carried` had, in their order. Raises a `MainstemError` or
        OSError when they cannot be had: the message is dropped."""
        ...

    def entry(
        self, term: int, index: int, kind: int, numbers: tuple[int, ...], attachment: memoryview
    ) -> Entry:
        """The entry at the receiving end. `attachment` is a view of the memory it was received into: who keeps it
        keeps all of that frame. Raises ValueError for nonsense."""
        ...

    def unreachable(self, node_id: int) -> None:
        """Messages to this node were dropped, or may be lost."""
        ...

    def gone(self, node_id: int) -> None:
        """The connection to this node was lost, and nobody listens at its address any more: its process has ended,
        or somebody in between says so."""
        ...
