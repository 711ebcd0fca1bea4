"""Which connections wait for turns while tenants share the store, and who gives way to whom."""

from __future__ import annotations

import asyncio

import pytest
from tests.fakes.clock import FakeClock
from tests.server.scripted import ScriptedDispatcher, run

from mainstem.ports import Session
from mainstem.server import turns_at_the_door
from mainstem.server.config import ServerConfig
from mainstem.server.connection import Connection
from mainstem.server.kafka_server import KafkaServer
from mainstem.server.shared import Shared
from mainstem.server.turns_at_the_door import (
    LIGHT_BYTES_MAX,
    PASSED_BYTES_LEAST,
    PASSED_BYTES_MAX,
    PASSED_BYTES_MOST,
    PASSED_SECONDS,
)


class Bringer(Connection):
    """A connection that counts the turns it has, and brings nothing in them unless it is told to."""

    def __init__(self, server: KafkaServer, dispatcher: ScriptedDispatcher, tenant: str) -> None:
        super().__init__(server, Shared(server.config, server.clock, lambda: None), dispatcher)
        self.session = Session("test", 0, 0)
        self.session.tenant = tenant
        self.turns = 0
        self.brings = 0
        """Bytes, in each turn."""

    def room_available(self, light: bool = False) -> int:
        self.turns += 1
        return self.brings


def sharing() -> tuple[KafkaServer, ScriptedDispatcher, FakeClock]:
    """A server whose store several tenants share, and has room for all."""
    clock, dispatcher = FakeClock(), ScriptedDispatcher()
    server = KafkaServer(ServerConfig(), clock)
    server.dispatcher = dispatcher
    dispatcher.takes_turns = True
    return server, dispatcher, clock


def test_a_tenant_that_brings_little_does_not_wait_for_turns() -> None:
    server, dispatcher, clock = sharing()
    quiet, other = Bringer(server, dispatcher, "quiet"), Bringer(server, dispatcher, "other")
    assert server.lets_past(quiet, PASSED_BYTES_MAX // 2, complete=True)
    assert server.lets_past(quiet, PASSED_BYTES_MAX // 2, complete=True)
    assert not server.lets_past(quiet, 1, complete=True), "it has brought so much already"
    assert server.lets_past(other, 1, complete=True), "another has not"
    clock.advance(PASSED_SECONDS)
    assert server.lets_past(quiet, 1, complete=True)
    assert not server.lets_past(other, PASSED_BYTES_MAX + 1, complete=True)


def test_many_small_requests_are_not_little() -> None:
    server, dispatcher, _clock = sharing()
    flood = Bringer(server, dispatcher, "flood")
    passed = [server.lets_past(flood, 100, complete=True) for _ in range(100)]
    assert passed == [number < PASSED_BYTES_MAX // PASSED_BYTES_LEAST for number in range(100)]


def test_a_crowd_of_names_is_not_let_past_beyond_what_all_may_have() -> None:
    server, dispatcher, clock = sharing()
    crowd = [Bringer(server, dispatcher, f"{number}") for number in range(50)]
    passed = [server.lets_past(each, PASSED_BYTES_MAX, complete=True) for each in crowd]
    assert passed == [number < PASSED_BYTES_MOST // PASSED_BYTES_MAX for number in range(50)]
    clock.advance(PASSED_SECONDS)
    assert server.lets_past(crowd[-1], PASSED_BYTES_MAX, complete=True)


def test_what_sharers_brought_is_forgotten_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_at_the_door, "SHARERS_KEPT_MAX", 5)
    server, dispatcher, clock = sharing()
    dispatcher.room, dispatcher.room_for_light = False, True
    flood = Bringer(server, dispatcher, "flood")
    for _ in range(LIGHT_BYTES_MAX // PASSED_BYTES_MAX):
        assert server.lets_past(flood, PASSED_BYTES_MAX, complete=True)
        clock.advance(PASSED_SECONDS)
    for number in range(5):
        assert not server.lets_past(flood, PASSED_BYTES_MAX, complete=True), "it is not light any more"
        assert server.lets_past(Bringer(server, dispatcher, f"{number}"), 1, complete=True)
        clock.advance(PASSED_SECONDS)
    assert server.lets_past(flood, PASSED_BYTES_MAX, complete=True)


def test_nobody_is_let_past_a_store_without_any_room_or_where_one_tenant_is_alone() -> None:
    server, dispatcher, _clock = sharing()
    quiet = Bringer(server, dispatcher, "quiet")
    dispatcher.room = False
    assert not server.lets_past(quiet, 1, complete=True)
    dispatcher.room_for_light = True
    assert server.lets_past(quiet, 1, complete=True)
    dispatcher.room, dispatcher.takes_turns = True, False
    assert not server.lets_past(quiet, 1, complete=True)


def test_a_request_takes_its_turn_once_it_has_come_as_a_whole() -> None:
    """Until then it is read on, as long as the store has room for all."""
    server, dispatcher, _clock = sharing()
    flood = Bringer(server, dispatcher, "flood")
    assert server.lets_past(flood, 10 * PASSED_BYTES_MAX, complete=False)
    assert not server.lets_past(flood, 10 * PASSED_BYTES_MAX, complete=True)
    dispatcher.room, dispatcher.room_for_light = False, True
    assert not server.lets_past(flood, 10 * PASSED_BYTES_MAX, complete=False)


def test_turns_are_put_off_once_for_whoever_was_let_past() -> None:
    """However many are let past, the others have their turn in every second turn of the event loop."""

    async def scenario() -> None:
        server, dispatcher, clock = sharing()
        flood, quiet = Bringer(server, dispatcher, "flood"), Bringer(server, dispatcher, "quiet")
        turns = []
        for _ in range(6):
            if flood not in server.waiting_for_room:
                server.wait_for_room(flood)
            assert server.lets_past(quiet, 1, complete=True)
            clock.advance(PASSED_SECONDS)
            await asyncio.sleep(0)
            turns.append(flood.turns)
        assert turns == [0, 1, 1, 2, 2, 3]

    run(scenario())


@pytest.mark.parametrize("count", [1, 2])
def test_who_brings_much_leaves_the_next_turn_of_the_loop_to_what_it_brought(count: int) -> None:
    async def scenario() -> None:
        server, dispatcher, _clock = sharing()
        floods = [Bringer(server, dispatcher, "flood") for _ in range(count)]
        turns = []
        for flood in floods:
            flood.brings = LIGHT_BYTES_MAX + 1
        for _ in range(6):
            for flood in floods:
                if flood not in server.waiting_for_room:
                    server.wait_for_room(flood)
            await asyncio.sleep(0)
            turns.append(sum(flood.turns for flood in floods))
        assert turns == [1, 1, 2, 2, 3, 3]
        dispatcher.takes_turns = False
        for _ in range(4):
            await asyncio.sleep(0)
        left = [[4], [3, 2]][count - 1]
        assert [flood.turns for flood in floods] == left, (
            "each that waits has one more, a turn of the loop after the other"
        )
        assert not server.waiting_for_room

    run(scenario())


def test_nobody_rests_any_more_once_connections_take_no_turns() -> None:
    async def scenario() -> None:
        server, dispatcher, _clock = sharing()
        flood, other = (Bringer(server, dispatcher, tenant) for tenant in ("flood", "other"))
        flood.brings = LIGHT_BYTES_MAX + 1
        server.wait_for_room(flood)
        await asyncio.sleep(0)
        assert flood.turns == 1
        dispatcher.takes_turns = False
        server.wait_for_room(other)
        await asyncio.sleep(0)
        assert other.turns == 1

    run(scenario())
