"""Raft's messages on the wire: round trips, bytes that stay what they are, nonsense that is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields

from mainstem.raft import messages as raft
from mainstem.raft.entry import Entry, Snapshot
from mainstem.raft.membership import Membership
from mainstem.rpc.raft import raft_messages as wire
from mainstem.rpc.raft.raft_member import Carried
from mainstem.rpc.raft.raft_messages import (
    DELIVER,
    Delivery,
    append_pieces,
    attachment_bytes,
    from_wire,
    to_wire,
)


class Plain:
    """A member whose entries are their bytes."""

    def entry(self, term: int, index: int, kind: int, numbers: tuple[int, ...], attachment: memoryview) -> Entry:
        return Entry(term, index, kind, numbers[0], bytes(attachment))

    def carried(self, entry: Entry) -> Carried:
        assert isinstance(entry.data, bytes)
        return Carried((entry.size,), [entry.data])

    def received(self, messages: Sequence[raft.Message]) -> None:
        raise AssertionError

    async def load(self, entries: Sequence[Entry]) -> list[Carried]:
        raise AssertionError

    def unreachable(self, node_id: int) -> None:
        raise AssertionError

    def gone(self, node_id: int) -> None:
        raise AssertionError


MEMBER = Plain()
NUMBERS = st.integers(0, 2**63 - 1)
KINDS = st.integers(0, 0xFFFF)
NODES = st.integers(1, 2**31 - 1)


@st.composite
def appends(draw: st.DrawFn) -> raft.Append:
    previous_index = draw(st.integers(0, 2**62))
    terms = sorted(draw(st.lists(st.integers(1, 2**62), min_size=1, max_size=6)))
    entries = tuple(
        Entry(term, previous_index + 1 + place, draw(KINDS), draw(NUMBERS), draw(st.binary(max_size=40)))
        for place, term in enumerate(terms[1:])
    )
    return raft.Append(1, 2, terms[-1], previous_index, terms[0], draw(NUMBERS), entries)


def plain(kind: type[Any], **special: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    drawn = {
        field.name: special.get(field.name, st.booleans() if field.type is bool else NUMBERS)
        for field in fields(kind)
        if field.name not in ("sender", "to")
    }
    return st.builds(kind, sender=st.just(1), to=st.just(2), **drawn)


def memberships() -> st.SearchStrategy[Membership]:
    return st.builds(
        lambda voters, learners: Membership.of(voters, learners - voters),
        st.sets(NODES, min_size=1, max_size=7),
        st.sets(NODES, max_size=3),
    )


MESSAGES = st.one_of(
    appends(),
    plain(raft.InstallSnapshot, snapshot=st.builds(Snapshot, NUMBERS, NUMBERS, memberships())),
    plain(raft.ReadIndexResponse, index=st.integers(-1, 2**63 - 1)),
    *(
        plain(kind)
        for kind in get_args(raft.Message)
        if kind not in (raft.Append, raft.InstallSnapshot, raft.ReadIndexResponse)
    ),
)


def sent(message: raft.Message, bytes_max: int = 1 << 20) -> tuple[list[wire.AnyWireMessage], bytes]:
    if isinstance(message, raft.Append) and message.entries:
        carried = [MEMBER.carried(entry) for entry in message.entries]
        pieces = list(append_pieces(7, message, carried, bytes_max))
        return [piece for piece, _, _ in pieces], b"".join(bytes(b) for _, parts, _ in pieces for b in parts)
    return [to_wire(7, message)], b""


def arrived(messages: list[wire.AnyWireMessage], attachment: bytes) -> list[raft.Message]:
    """As they come out of the bytes of a delivery."""
    delivery = DELIVER.decode_request(msgspec.msgpack.encode(Delivery(messages)))
    found, position = [], 0
    for message in delivery.messages:
        assert message.group == 7
        start, position = position, position + attachment_bytes(message)
        found.append(from_wire(message, 1, 2, MEMBER, memoryview(attachment)[start:position]))
    assert position == len(attachment)
    return found


@given(message=MESSAGES)
def test_every_message_arrives_as_it_was_sent(message: raft.Message) -> None:
    assert arrived(*sent(message)) == [message]


def bytes_of(entry: Entry) -> bytes:
    assert isinstance(entry.data, bytes)
    return entry.data


@given(message=appends(), bytes_max=st.integers(1, 100))
def test_a_cut_append_says_the_same(message: raft.Append, bytes_max: int) -> None:
    pieces = [piece for piece in arrived(*sent(message, bytes_max)) if isinstance(piece, raft.Append)]
    assert tuple(entry for piece in pieces for entry in piece.entries) == message.entries
    index, term = message.previous_index, message.previous_term
    for piece in pieces:
        assert (piece.previous_index, piece.previous_term) == (index, term)
        assert (piece.term, piece.commit_index) == (message.term, message.commit_index)
        assert len(piece.entries) <= 1 or sum(len(bytes_of(entry)) for entry in piece.entries) <= bytes_max
        if piece.entries:
            index, term = piece.entries[-1].index, piece.entries[-1].term


def test_all_messages_are_declared_with_the_fields_of_the_core() -> None:
    assert {kind.__name__ for kind in get_args(raft.Message)} == {
        kind.__name__.removeprefix("Wire") for kind in get_args(wire.AnyWireMessage)
    }
    for kind in get_args(raft.Message):
        if kind is not raft.InstallSnapshot:
            names = [field.name for field in fields(kind)]
            assert ["sender", "to", *getattr(wire, f"Wire{kind.__name__}").__struct_fields__[1:]] == names


def test_bytes_on_the_wire_stay_what_they_are() -> None:
    """The messages that nodes of the next version will be sent by nodes of this one."""
    beat = to_wire(3, raft.Heartbeat(1, 2, 9, 100, 4))
    assert msgspec.msgpack.encode(Delivery([beat])).hex() == "919195030309" + "6404"
    (append,), _ = sent(raft.Append(1, 2, 9, 5, 8, 4, (Entry(9, 6, 0, 2, b"xy"),)))
    assert msgspec.msgpack.encode(append).hex() == "98010709050804" + "91" + "9509060091" + "02" + "02" + "c2"
    older = bytes.fromhex("97010709050804" + "91" + "9509060091" + "02" + "02")  # of the version before
    assert msgspec.msgpack.decode(older, type=wire.AnyWireMessage) == append
    snapshot = raft.InstallSnapshot(1, 2, 9, Snapshot(5, 4, Membership.of([3, 1, 2], [4])))
    assert msgspec.msgpack.encode(to_wire(7, snapshot)).hex() == "97070709050493010203" + "9104"


def test_a_field_a_later_version_adds_is_passed_over() -> None:
    later = msgspec.msgpack.encode([[[3, 7, 9, 100, 4, "new"]]])
    assert DELIVER.decode_request(later).messages == [wire.WireHeartbeat(7, 9, 100, 4)]


@pytest.mark.parametrize(
    "messages",
    [
        None,
        5,
        [5],
        [[]],
        [[99, 7, 1]],
        [[3, 7, 1, 2]],
        [[3, 7, -1, 2, 3]],
        [[3, 70_000, 1, 2, 3]],
        [[3, 7, 2**63, 2, 3]],
        [[3, 7, 1, "2", 3]],
        [[3, 7, 1, 2.5, 3]],
        [[1, 7, 9, 0, 0, 0, [[9, 1, 0, [1], -1]]]],
        [[1, 7, 9, 0, 0, 0, [[9, 1, 0, ["x"], 1]]]],
        [[1, 7, 9, 0, 0, 0, [[9, 1, 0, list(range(1025)), 1]]]],
        [[7, 7, 9, 1, 1, [0], []]],
        [[9, 7, 1]] * 4097,
    ],
)
def test_what_is_no_message_is_not_decoded(messages: object) -> None:
    with pytest.raises(msgspec.DecodeError):
        DELIVER.decode_request(msgspec.msgpack.encode([messages]))


@given(data=st.binary(max_size=300))
def test_garbage_is_a_decode_error(data: bytes) -> None:
    try:
        DELIVER.decode_request(data)
    except msgspec.DecodeError:
        pass


@pytest.mark.parametrize(
    ("message", "what"),
    [
        (wire.WireAppend(7, 9, 5, 3, 0, (wire.WireEntry(9, 7, 0, (1,), 0),)), "where 6"),
        (wire.WireAppend(7, 9, 5, 3, 0, (wire.WireEntry(2, 6, 0, (1,), 0),)), "from 3 to 9"),
        (wire.WireAppend(7, 9, 5, 3, 0, (wire.WireEntry(10, 6, 0, (1,), 0),)), "from 3 to 9"),
        (wire.WireInstallSnapshot(7, 9, 5, 3, (), (1,)), "voters"),
        (wire.WireInstallSnapshot(7, 9, 5, 3, (1, 2), (2,)), "voters"),
    ],
)
def test_what_contradicts_itself_is_refused(message: wire.AnyWireMessage, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        from_wire(message, 1, 2, MEMBER, memoryview(b""))
