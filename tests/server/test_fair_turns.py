"""Turns among sharers, against what they may expect of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.raw_client import RawClient
from tests.server.scripted import PIPELINED, run, serving, until

from mainstem.ports import Session
from mainstem.server import fair_turns
from mainstem.server.fair_turns import FairTurns
from mainstem.server.turns_at_the_door import LIGHT_BYTES_MAX


def test_one_sharer_has_its_turns_in_the_order_of_arrival() -> None:
    turns = FairTurns[int]()
    for number in range(5):
        turns.add(number, "")
    turns.remove(2)
    turns.remove(2)
    taken = []
    while turns:
        taken.append(turns.take())
        turns.charge("", 1_000)
    assert taken == [0, 1, 3, 4]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 100)), min_size=1, max_size=200))
def test_nobody_gets_more_than_a_turn_ahead_of_others_that_wait(costs: list[tuple[str, int]]) -> None:
    """Three sharers always wait, with any number of items and any costs."""
    turns = FairTurns[int]()
    sharers = {number: "abc"[number % 3] for number in range(9)}
    for number, sharer in sharers.items():
        turns.add(number, sharer)
    had = dict.fromkeys("abc", 0)
    for _, cost in costs:
        item = turns.take()
        sharer = sharers[item]
        assert had[sharer] == min(had.values())
        turns.add(item, sharer)  # as a connection with more to bring does within its turn
        turns.charge(sharer, cost)
        had[sharer] += cost


def test_who_was_away_has_saved_up_nothing() -> None:
    turns = FairTurns[str]()
    turns.add("late", "late")
    assert turns.take() == "late"
    turns.charge("late", 10)
    order = []
    turns.add("flood", "flood")
    turns.add("other", "other")
    for step in range(12):
        if step == 6:
            turns.add("late", "late")
        item = turns.take()
        order.append(item)
        turns.add(item, item)
        turns.charge(item, 100)
    assert order[:6] == ["flood", "other"] * 3
    assert order[6:].count("late") == 2


@pytest.mark.parametrize("taken_up", [True, False])
def test_what_a_sharer_had_counts_while_it_takes_up_what_they_share(taken_up: bool) -> None:
    turns = FairTurns[str]()
    turns.add("first", "flood")
    turns.take()
    turns.charge("flood", 100, taken_up=taken_up)
    turns.add("second", "flood")
    turns.add("other", "other")
    assert turns.next_sharer == ("other" if taken_up else "flood")


def test_sharers_that_come_and_go_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_turns, "SHARERS_KEPT_MAX", 10)
    turns = FairTurns[str]()
    turns.add("stays", "stays")
    for number in range(100):
        turns.add(f"{number}", f"{number}")
        sharer = turns.take()
        if sharer == "stays":
            turns.add("stays", "stays")
        turns.charge(sharer, 1 + number % 3)
    while turns:
        turns.charge(turns.take(), 5)


def of_tenant(session: Session, name: str) -> None:
    session.tenant = name


def of_user(session: Session, name: str) -> None:
    session.principal = f"User:{name}"


def of_client(session: Session, name: str) -> None:
    session.client_part = 1 + sum(name.encode())


ALL_SHARERS = pytest.mark.parametrize("belongs", [of_tenant, of_user, of_client])


@ALL_SHARERS
def test_a_sharer_that_brings_little_does_not_wait_for_room_that_others_wait_for(
    belongs: Callable[[Session, str], None],
) -> None:
    async def scenario() -> None:
        async with serving() as (server, dispatcher):
            flood = [await RawClient.connect(server.addresses[0]) for _ in range(3)]
            quiet = await RawClient.connect(server.addresses[0])
            known: set[Session] = set()
            for number, client in enumerate([*flood, quiet]):
                await client.send_frame(b"e" + bytes([number]))
                await until(lambda number=number: len(dispatcher.sessions) == number + 1)
                known |= (newest := dispatcher.sessions - known)
                belongs(newest.pop(), "flood" if number < len(flood) else "quiet")
            dispatcher.takes_turns, dispatcher.room, dispatcher.room_for_light = True, False, True
            before = len(dispatcher.seen)
            await flood[0].send_frame(PIPELINED + b"first" + bytes(LIGHT_BYTES_MAX))  # more than is little
            await dispatcher.until_seen(before + 1)
            for number, client in enumerate(flood):
                await client.send_frame(PIPELINED + b"flood")
                await until(lambda number=number: len(server.waiting_for_room) == number + 1)
            for count in range(2, 5):
                await quiet.send_frame(PIPELINED + b"quiet")
                await dispatcher.until_seen(before + count)
            assert [content[1:6] for content in dispatcher.seen[before:]] == [b"first", *[b"quiet"] * 3]
            await quiet.send_frame(PIPELINED + bytes(LIGHT_BYTES_MAX))
            await dispatcher.until_seen(before + 5)
            await quiet.send_frame(PIPELINED + b"not so quiet")
            await until(lambda: len(server.waiting_for_room) == len(flood) + 1)
            dispatcher.make_room()
            await dispatcher.until_seen(before + 5 + len(flood) + 1)
            for client in [*flood, quiet]:
                await client.reset()

    run(scenario())


@ALL_SHARERS
def test_a_sharer_with_many_connections_has_no_more_turns_than_one_with_one(
    belongs: Callable[[Session, str], None],
) -> None:
    async def scenario() -> None:
        async with serving() as (server, dispatcher):
            crowd = [await RawClient.connect(server.addresses[0]) for _ in range(5)]
            alone = await RawClient.connect(server.addresses[0])
            known: set[Session] = set()
            for number, client in enumerate([*crowd, alone]):
                await client.send_frame(b"e" + bytes([number]))
                await until(lambda number=number: len(dispatcher.sessions) == number + 1)
                known |= (newest := dispatcher.sessions - known)
                belongs(newest.pop(), "crowd" if number < len(crowd) else "alone")
            dispatcher.takes_turns, dispatcher.room = True, False
            before = len(dispatcher.seen)
            for client in [*crowd, alone]:
                await client.send_frame(PIPELINED + (b"alone" if client is alone else b"crowd"))
            await until(lambda: len(server.waiting_for_room) == len(crowd) + 1)
            dispatcher.make_room()
            await dispatcher.until_seen(before + len(crowd) + 1)
            order = [content[1:] for content in dispatcher.seen[before:]]
            assert b"alone" in order[:2]
            for client in [*crowd, alone]:
                await client.reset()

    run(scenario())
