"""Raft's messages on the wire: each is declared once, as a msgpack array whose first element names its type.

A wire message names its Raft group, but neither sender nor receiver: those are the two ends of the connection, by
their hellos. Its other fields are those of `raft.messages`, under the same names. An entry's bytes lie in the
delivery's attachment, one entry after the other in the order of the messages; the entry says how many are its own.

A decoded message is bounded, typed and consistent, or it is refused with ValueError (`msgspec.DecodeError` is one).
Fields are only ever added at the end, with a default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Annotated, Any

import msgspec

from mainstem.model import Buffer
from mainstem.raft import messages as raft
from mainstem.raft.entry import Entry, Snapshot
from mainstem.raft.membership import Membership
from mainstem.rpc.errors import Refused
from mainstem.rpc.raft.raft_member import Carried, RaftMember
from mainstem.rpc.wire.method import Method, Nothing

MESSAGES_MAX = 4096
"""Messages in one delivery: a turn's heartbeats and acknowledgements of all Raft groups are tens."""

ENTRIES_MAX = 4096
"""Entries in one append; blocks are some hundred kilobytes, and the frame is bounded in bytes."""

NUMBERS_MAX = 1024
"""Numbers in one entry: a membership is one number per node."""

RaftGroupNumber = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)]
Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A term, an index, or the number of a read."""
NodeId = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
NodeIds = Annotated[tuple[NodeId, ...], msgspec.Meta(max_length=NUMBERS_MAX)]


class WireEntry(msgspec.Struct, frozen=True, array_like=True):
    term: Number
    index: Number
    kind: Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)]
    numbers: Annotated[tuple[int, ...], msgspec.Meta(max_length=NUMBERS_MAX)]
    length: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
    """How many bytes of the attachment are this entry's."""


class WireMessage(msgspec.Struct, frozen=True, array_like=True):
    group: RaftGroupNumber
    term: Number


class WireAppend(WireMessage, frozen=True, array_like=True, tag=1):
    previous_index: Number
    previous_term: Number
    commit_index: Number
    entries: Annotated[tuple[WireEntry, ...], msgspec.Meta(max_length=ENTRIES_MAX)]
    may_wait: bool = False


class WireAppendResponse(WireMessage, frozen=True, array_like=True, tag=2):
    match_index: Number
    rejected: bool
    previous_index: Number
    hint_index: Number
    hint_term: Number
    may_wait: bool = False


class WireHeartbeat(WireMessage, frozen=True, array_like=True, tag=3):
    commit_index: Number
    read_context: Number


class WireHeartbeatResponse(WireMessage, frozen=True, array_like=True, tag=4):
    read_context: Number


class WireRequestVote(WireMessage, frozen=True, array_like=True, tag=5):
    last_index: Number
    last_term: Number
    pre_vote: bool
    transfer: bool


class WireVoteResponse(WireMessage, frozen=True, array_like=True, tag=6):
    granted: bool
    pre_vote: bool


class WireInstallSnapshot(WireMessage, frozen=True, array_like=True, tag=7):
    snapshot_index: Number
    snapshot_term: Number
    voters: NodeIds
    learners: NodeIds


class WireInstallSnapshotResponse(WireMessage, frozen=True, array_like=True, tag=8):
    match_index: Number


class WireTimeoutNow(WireMessage, frozen=True, array_like=True, tag=9):
    pass


class WireReadIndex(WireMessage, frozen=True, array_like=True, tag=10):
    request: Number


class WireReadIndexResponse(WireMessage, frozen=True, array_like=True, tag=11):
    request: Number
    index: Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)]


AnyWireMessage = (
    WireAppend
    | WireAppendResponse
    | WireHeartbeat
    | WireHeartbeatResponse
    | WireRequestVote
    | WireVoteResponse
    | WireInstallSnapshot
    | WireInstallSnapshotResponse
    | WireTimeoutNow
    | WireReadIndex
    | WireReadIndexResponse
)


class Delivery(msgspec.Struct, frozen=True, array_like=True):
    """Messages of any Raft groups from one node to another, in order."""

    messages: Annotated[list[AnyWireMessage], msgspec.Meta(max_length=MESSAGES_MAX)]


class DeliveryRefused(Refused):
    """Messages made no sense and were dropped; the rest of the delivery was taken."""

    kind = "delivery refused"


DELIVER = Method(64, "raft.deliver", Delivery, Nothing, (DeliveryRefused,), nodes_only=True)


# --- to the wire and back -------------------------------------------------------------------------------

_PLAIN: dict[type, tuple[Callable[..., AnyWireMessage], Any]] = {
    getattr(raft, wire.__name__.removeprefix("Wire")): (wire, attrgetter(*wire.__struct_fields__[1:]))
    for wire in (
        WireAppendResponse, WireHeartbeat, WireHeartbeatResponse, WireRequestVote, WireVoteResponse,
        WireInstallSnapshotResponse, WireReadIndex, WireReadIndexResponse,
    )
}  # fmt: skip
"""Messages whose fields are numbers and flags in both forms."""

_PLAIN_BACK = {wire: (plain, fields) for plain, (wire, fields) in _PLAIN.items()}


def to_wire(group: int, message: raft.Message) -> AnyWireMessage:
    """The wire form of any message except an append with entries."""
    if (plain := _PLAIN.get(type(message))) is not None:
        wire, fields = plain
        return wire(group, *fields(message))
    if isinstance(message, raft.Append):
        assert not message.entries, "an append with entries is cut into pieces"
        return WireAppend(group, message.term, message.previous_index, message.previous_term, message.commit_index, ())
    if isinstance(message, raft.InstallSnapshot):
        members = message.snapshot.membership
        return WireInstallSnapshot(
            group, message.term, message.snapshot.index, message.snapshot.term,
            tuple(sorted(members.voters)), tuple(sorted(members.learners)),
        )  # fmt: skip
    assert isinstance(message, raft.TimeoutNow), message
    return WireTimeoutNow(group, message.term)


def append_pieces(
    group: int, message: raft.Append, carried: Sequence[Carried], bytes_max: int
) -> Iterator[tuple[WireAppend, list[Buffer], int]]:
    """An append as one or more pieces that follow each other and mean the same, each with at most `bytes_max`
    bytes of entries unless a single entry is larger: (piece, its buffers, their bytes)."""
    term, commit_index, may_wait = message.term, message.commit_index, message.may_wait
    previous_index, previous_term = message.previous_index, message.previous_term
    entries: list[WireEntry] = []
    buffers: list[Buffer] = []
    size = 0
    for entry, (numbers, parts) in zip(message.entries, carried, strict=True):
        length = 0
        for part in parts:
            length += len(part)
        if entries and (size + length > bytes_max or len(entries) == ENTRIES_MAX):
            piece = WireAppend(group, term, previous_index, previous_term, commit_index, tuple(entries), may_wait)
            yield piece, buffers, size
            previous_index, previous_term = entries[-1].index, entries[-1].term
            entries, buffers, size = [], [], 0
        entries.append(WireEntry(entry.term, entry.index, entry.kind, numbers, length))
        buffers.extend(parts)
        size += length
    piece = WireAppend(group, term, previous_index, previous_term, commit_index, tuple(entries), may_wait)
    yield piece, buffers, size


def attachment_bytes(message: AnyWireMessage) -> int:
    length = 0
    if isinstance(message, WireAppend):
        for entry in message.entries:
            length += entry.length
    return length


def from_wire(
    message: AnyWireMessage, sender: int, to: int, member: RaftMember, attachment: memoryview
) -> raft.Message:
    """A message as the core takes it; `attachment` are the bytes of its entries. Raises ValueError."""
    if isinstance(message, WireAppend):
        return _append(message, sender, to, member, attachment)
    if (plain := _PLAIN_BACK.get(type(message))) is not None:
        kind, fields = plain
        made: raft.Message = kind(sender, to, *fields(message))
        return made
    if isinstance(message, WireInstallSnapshot):
        membership = Membership.of(message.voters, message.learners)
        if not membership.voters or membership.voters & membership.learners:
            raise ValueError(f"a snapshot of voters {message.voters} and learners {message.learners}")
        snapshot = Snapshot(message.snapshot_index, message.snapshot_term, membership)
        return raft.InstallSnapshot(sender, to, message.term, snapshot)
    assert isinstance(message, WireTimeoutNow), message
    return raft.TimeoutNow(sender, to, message.term)


def _append(message: WireAppend, sender: int, to: int, member: RaftMember, attachment: memoryview) -> raft.Append:
    entries: list[Entry] = []
    index, term, position = message.previous_index, message.previous_term, 0
    for entry in message.entries:
        index += 1
        if entry.index != index or not term <= entry.term <= message.term:
            raise ValueError(
                f"entry {entry.index} of term {entry.term} where {index} of a term from {term} to {message.term} "
                f"belongs"
            )
        term = entry.term
        stop = position + entry.length
        entries.append(member.entry(entry.term, entry.index, entry.kind, entry.numbers, attachment[position:stop]))
        position = stop
    return raft.Append(
        sender, to, message.term, message.previous_index, message.previous_term, message.commit_index,
        tuple(entries), message.may_wait,
    )  # fmt: skip
