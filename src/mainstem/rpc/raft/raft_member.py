"""The port between the exchange of Raft messages and a node's part in a Raft group; each driver of a
`RaftCore` implements it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from mainstem.model import Buffer
from mainstem.raft.entry import Entry
from mainstem.raft.messages import Message

METADATA_QUORUM = 0xFFFF
"""The number of the metadata quorum; write groups count from 0."""


class Carried(NamedTuple):
    """An entry on the wire, without term, index and kind."""

    numbers: tuple[int, ...]
    """Each fits 64 bits, with or without a sign."""
    buffers: Sequence[Buffer]
    """Buffers that travel as they lie, one after the other. They must not change until they are released."""


class RaftMember(Protocol):
    """One per Raft group and node. Called on the event loop only; each call must be brief."""

    def received(self, messages: Sequence[Message]) -> None:
        """Takes messages for this Raft group, in the order of their arrival. Never blocks."""
        ...

    def carried(self, entry: Entry) -> Carried | None:
        """The wire form of an entry; None: it is not in memory, and `load` gets it."""
        ...

    async def load(self, entries: Sequence[Entry]) -> list[Carried]:
        """The entries of a message, in their order, when `carried` lacked some of them. Raises a
        `MainstemError` or OSError when they cannot be read: the message is dropped."""
        ...

    def entry(self, term: int, index: int, kind: int, numbers: tuple[int, ...], attachment: memoryview) -> Entry:
        """The entry at the receiving end. `attachment` is a view of the memory it was received into: keeping
        it keeps that whole frame. Raises ValueError for nonsense."""
        ...

    def unreachable(self, node_id: int) -> None:
        """Messages to this node were dropped, or may be lost."""
        ...

    def gone(self, node_id: int) -> None:
        """The connection to this node was lost, and no process listens at its address any more: the node's
        process has ended, or a host in between says so."""
        ...
