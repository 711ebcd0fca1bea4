"""When connections take turns: who floods beside whom, and that equals do not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.broker.harness import batch, make_broker
from tests.fakes.clock import FakeClock
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.broker import flood_watch
from mainstem.broker.dispatch.dispatcher import CLIENT_PARTS, BrokerDispatcher
from mainstem.broker.flood_watch import (
    EARLY_PART,
    EARLY_SECONDS,
    EARLY_SHARED_SECONDS,
    FLOOD_BYTES_PER_SECOND,
    LIGHT_PART,
    SHARED_SECONDS,
    WINDOW_SECONDS,
    FloodWatch,
)
from mainstem.broker.throttling import Throttling
from mainstem.ports import Brought, Session
from mainstem.protocol import codec
from mainstem.protocol.headers import RequestHeader, request_frame
from mainstem.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from mainstem.security.quotas.quota_table import QuotaTable

FLOOD_BYTES = int(2 * FLOOD_BYTES_PER_SECOND * WINDOW_SECONDS)


class Windows:
    """A watch, and windows that go by."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.watch = FloodWatch(self.clock.monotonic)
        self._connections: dict[int, Brought] = {}
        self.pass_window({})

    def pass_window(self, sizes: dict[int, int]) -> bool:
        """Whether connections take turns when each of those has brought so much in a window, and the next came."""
        for number, size in sizes.items():
            brought = self._connections.setdefault(number, Brought())
            for _ in range(2):
                self.watch.note(brought, size // 2)
        self.clock.advance(WINDOW_SECONDS)
        self.watch.note(Brought(), 0)  # ends the window
        return self.watch.takes_turns()

    def note_apart(self, number: int, size_bytes: int, seconds: float) -> bool:
        """Whether connections take turns once this one has brought so much twice, so long apart, and another one
        between."""
        brought = self._connections.setdefault(number, Brought())
        self.watch.note(brought, size_bytes)
        self.watch.note(Brought(), 0)
        self.clock.advance(seconds)
        self.watch.note(brought, size_bytes)
        return self.watch.takes_turns()


def test_a_light_connection_beside_a_flood_has_everybody_take_turns_for_a_while() -> None:
    windows = Windows()
    assert not windows.pass_window({1: FLOOD_BYTES, 2: 1_000}), "it may have just begun"
    assert windows.pass_window({1: FLOOD_BYTES, 2: 1_000})
    windows.clock.advance(SHARED_SECONDS - 0.1)
    assert windows.watch.takes_turns()
    windows.clock.advance(0.2)
    assert not windows.watch.takes_turns()


def test_who_meets_a_flood_has_turns_taken_early_and_only_until_it_is_found_light() -> None:
    windows = Windows()
    windows.pass_window({1: FLOOD_BYTES})
    assert not windows.note_apart(2, FLOOD_BYTES // EARLY_PART // 2, 0.99 * EARLY_SECONDS)
    assert windows.note_apart(3, FLOOD_BYTES // EARLY_PART // 2, 1.01 * EARLY_SECONDS)
    windows.clock.advance(EARLY_SHARED_SECONDS - 0.001)
    assert windows.watch.takes_turns()
    windows.clock.advance(0.002)
    assert not windows.watch.takes_turns()


def test_nobody_looks_light_early_who_brings_a_little_of_what_the_heaviest_does_or_meets_no_flood() -> None:
    windows = Windows()
    windows.pass_window({1: FLOOD_BYTES})
    assert not windows.note_apart(2, FLOOD_BYTES // EARLY_PART // 2 + 1, 1.01 * EARLY_SECONDS)
    windows.pass_window({1: 1_000})
    assert not windows.note_apart(3, 10, 1.01 * EARLY_SECONDS)


def test_a_load_that_begins_when_another_one_has_ended_meets_no_flood() -> None:
    windows = Windows()
    windows.pass_window({1: 100 * FLOOD_BYTES})
    windows.watch.note(Brought(), 100 * FLOOD_BYTES)
    windows.clock.advance(3 * WINDOW_SECONDS)
    windows.watch.note(Brought(), 10)
    assert not windows.note_apart(2, 10, 1.01 * EARLY_SECONDS)


def test_windows_in_which_a_light_connection_rests_are_passed_over() -> None:
    windows = Windows()
    windows.pass_window({1: FLOOD_BYTES, 2: 1_000})
    assert not windows.pass_window({1: FLOOD_BYTES})
    assert windows.pass_window({1: FLOOD_BYTES, 2: 1_000})


def test_equals_take_no_turns_though_one_begins_late_and_another_ends_soon() -> None:
    windows = Windows()
    crowd = dict.fromkeys(range(50), FLOOD_BYTES)
    for change in ({1: 1_000}, {2: 1_000}, {3: 1 + 2 * FLOOD_BYTES // LIGHT_PART}, {4: 2 * FLOOD_BYTES}):
        for _ in range(3):
            assert not windows.pass_window({**crowd, **change})
            assert not windows.pass_window(crowd)


def test_what_comes_behind_a_window_counts_for_the_next_one() -> None:
    """Else a load that begins when another has ended would begin as a light one."""
    clock = FakeClock()
    watch, heavy, late = FloodWatch(clock.monotonic), [Brought(), Brought()], Brought()
    watch.note(heavy[0], 0)
    for first in (True, False):
        for brought in heavy:
            watch.note(brought, FLOOD_BYTES)
        clock.advance(WINDOW_SECONDS)
        watch.note(late, 1_000)
        assert not watch.takes_turns(), "first" if first else "it is light in one window"
    for brought in heavy:
        watch.note(brought, FLOOD_BYTES)
    clock.advance(WINDOW_SECONDS)
    watch.note(late, 1_000)
    assert watch.takes_turns()


def test_little_in_all_is_no_flood_and_nor_is_one_alone() -> None:
    windows = Windows()
    for _ in range(4):
        assert not windows.pass_window({1: FLOOD_BYTES // 2 - 4_000, 2: 1_000})
        assert not windows.pass_window({1: 100 * FLOOD_BYTES})


def test_so_many_connections_are_watched_at_once_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flood_watch, "CONNECTIONS_WATCHED_MAX", 3)
    windows = Windows()
    crowd = {**dict.fromkeys(range(3), FLOOD_BYTES), 3: 1_000}
    for _ in range(4):
        assert not windows.pass_window(crowd)
    assert not windows.pass_window(dict(reversed(crowd.items())))
    assert windows.pass_window(dict(reversed(crowd.items())))


@pytest.mark.parametrize("in_bursts", [True, False])
def test_what_clients_of_no_tenant_produce_is_watched(in_bursts: bool) -> None:
    async def scenario() -> None:
        clock = FakeClock()
        fakes = make_broker(clock)
        fakes.broker.throttling = Throttling(QuotaTable, clock)
        await fakes.topic("t")
        flood, quiet = Session("10.0.0.1", 1, 1), Session("10.0.0.1", 2, 2)
        async with BrokerDispatcher(fakes.broker) as dispatcher:

            def produce(session: Session, size_bytes: int) -> None:
                frame = memoryview(produce_frame(size_bytes))
                if in_bursts:
                    assert dispatcher.dispatch_burst(frame, 0, len(frame), 1, len(frame), session) is not None
                else:
                    assert dispatcher.dispatch(frame[4:], session) is not None

            for _ in range(3):
                assert not dispatcher.shared()
                produce(flood, FLOOD_BYTES)
                produce(quiet, 100)
                clock.advance(WINDOW_SECONDS)
            produce(flood, 100)
            assert dispatcher.shared()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_SECONDS))


def produce_frame(size_bytes: int) -> bytes:
    partition = PartitionProduceData(index=0, records=batch(bytes(size_bytes)))
    request = ProduceRequest(
        acks=1, timeout_ms=1, topic_data=(TopicProduceData(name="t", partition_data=(partition,)),)
    )
    return request_frame(RequestHeader(0, 9, 1, "client"), codec.write(request, 9))


def test_clients_share_by_tenant_principal_or_address_and_client_id() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        async with BrokerDispatcher(fakes.broker) as dispatcher:

            def sharer(client_id: str | None, host: str = "10.0.0.1", **session: Any) -> str:
                asking = Session(host, 1, 1, **session)
                request = request_frame(RequestHeader(18, 0, 1, client_id), b"")
                dispatcher.dispatch(memoryview(request)[4:], asking)
                return asking.sharer

            assert sharer("a") == sharer("a")
            assert sharer("a") != sharer("b")
            assert sharer("a") != sharer("a", "10.0.0.2")
            assert sharer(None) == sharer("")
            assert sharer("a", principal="User:alice") == sharer("b", "10.0.0.2", principal="User:alice")
            assert sharer("a", principal="User:alice") != sharer("a", principal="User:bob")
            assert sharer("a", principal="User:alice", tenant="acme") == sharer(
                "b", principal="User:bob", tenant="acme"
            )
            assert len({sharer(str(number)) for number in range(10 * CLIENT_PARTS)}) == CLIENT_PARTS

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_SECONDS))
