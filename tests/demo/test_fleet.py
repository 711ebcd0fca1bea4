"""The demo's proof of a compaction: it holds for what a compaction leaves, and for nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pytest
from demo.messages.data import Flight
from demo.messages.fleet import Fleet, compare
from demo.messages.ledger import Reading, Sent


class Message(NamedTuple):
    """As much of a consumed message as readings ask for."""

    at: int
    aircraft: bytes
    state: bytes | None

    def key(self) -> bytes:
        return self.aircraft

    def value(self) -> bytes | None:
        return self.state

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self.at


def flight(aircraft: bytes, number: str, *, is_cancelled: bool = False) -> Flight:
    return Flight(aircraft, b"", "2013-01-01", number, "JFK", "BOS", 187, is_cancelled)


def reading(messages: Iterable[Message]) -> Reading:
    found = Reading()
    for message in messages:
        found.add(message)
    return found


FLIGHTS = [
    flight(b"N1", "B61"),
    flight(b"N2", "B62"),
    flight(b"N1", "B63", is_cancelled=True),
    flight(b"N2", "B64"),
    flight(b"N3", "B65", is_cancelled=True),
    flight(b"N3", "B66"),
]


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.fixture
def sent(fleet: Fleet) -> list[Message]:
    return [Message(offset, one.key, fleet.take(one)) for offset, one in enumerate(FLIGHTS)]


def test_a_state_adds_up_the_flights_of_its_aircraft(fleet: Fleet, sent: list[Message]) -> None:
    assert fleet.states == {b"N2": sent[3].state, b"N3": sent[5].state}
    assert sent[3].state == (b'{"at":"BOS","from":"JFK","flight":"B64","day":"2013-01-01","flights":2,"miles":374}')
    assert [message.at for message in sent if message.state is None] == [2, 4]


def test_latest_records_are_what_a_compaction_leaves(fleet: Fleet, sent: list[Message]) -> None:
    found = compare(reading(sent), reading([sent[3], sent[5]]), fleet.states)
    assert found.is_right
    assert (found.records, found.tombstones) == (2, 0)


def test_tombstones_may_be_left(fleet: Fleet, sent: list[Message]) -> None:
    found = compare(reading(sent), reading([sent[2], sent[3], sent[5]]), fleet.states)
    assert found.is_right
    assert (found.records, found.tombstones) == (3, 1)


@pytest.mark.parametrize(
    ("left", "wrong"),
    [
        pytest.param([3], "has_states", id="a key is lost"),
        pytest.param([1, 5], "has_states", id="an older state stays"),
        pytest.param([0, 3, 5], "has_states", id="a deleted key is back"),
        pytest.param([1, 3, 5], "is_once_per_key", id="a key is there twice"),
        pytest.param([3, 5, 5], "is_once_per_key", id="a record comes twice"),
    ],
)
def test_another_compaction_is_wrong(fleet: Fleet, sent: list[Message], left: list[int], wrong: str) -> None:
    found = compare(reading(sent), reading([sent[offset] for offset in left]), fleet.states)
    assert not getattr(found, wrong)
    assert not found.is_right


def test_offsets_must_stay(fleet: Fleet, sent: list[Message]) -> None:
    found = compare(reading(sent), reading([sent[3]._replace(at=2), sent[5]]), fleet.states)
    assert not found.is_in_place
    assert not found.is_right


def test_a_tombstone_is_not_an_empty_value() -> None:
    assert reading([Message(0, b"N1", None)]).fingerprints != reading([Message(0, b"N1", b"")]).fingerprints
    books = Sent(), Sent()
    books[0].add(b"N1", None)
    books[1].add(b"N1", b"")
    assert books[0].digests() != books[1].digests()
