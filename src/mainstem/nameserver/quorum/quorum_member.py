"""The metadata quorum's end of the exchange of Raft messages (`rpc.raft_member.Member`)."""

from __future__ import annotations

from collections.abc import Sequence

from mainstem.nameserver.quorum.metadata_quorum import MetadataQuorum
from mainstem.nameserver.quorum.quorum_log import from_wire, to_wire
from mainstem.raft import Entry, Message
from mainstem.rpc.raft.raft_member import Carried


class QuorumMember:
    def __init__(self, group: MetadataQuorum) -> None:
        self._group = group

    def received(self, messages: Sequence[Message]) -> None:
        self._group.received(messages)

    def carried(self, entry: Entry) -> Carried:
        return to_wire(entry)

    async def load(self, entries: Sequence[Entry]) -> list[Carried]:
        return [to_wire(entry) for entry in entries]

    def entry(self, term: int, index: int, kind: int, numbers: tuple[int, ...], attachment: memoryview) -> Entry:
        """Raises ValueError."""
        if numbers:
            raise ValueError(f"entry {index} of the metadata quorum has numbers")
        return from_wire(term, index, kind, attachment)

    def unreachable(self, node_id: int) -> None:
        self._group.unreachable(node_id)

    def gone(self, node_id: int) -> None:
        self._group.gone(node_id)
