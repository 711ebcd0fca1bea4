"""A client that has not shown who it is has the bounds of all clients as well as its own."""

from __future__ import annotations

from tests.fakes.clock import FakeClock
from tests.server.raw_client import RawClient
from tests.server.scripted import ECHO, PENDING, PIPELINED, framed, run, serving

from mainstem.server.listener_config import ListenerConfig

GATED = {"GATED": ListenerConfig(listen="127.0.0.1:0", protocol="SASL_PLAINTEXT")}
MUTED_SECONDS = 0.05


def test_a_stranger_that_a_quota_mutes_waits_with_its_next_request() -> None:
    async def story() -> None:
        clock = FakeClock()
        async with serving(clock, listeners=GATED) as (server, dispatcher):
            client = await RawClient.connect(server.addresses[0])
            await client.send(framed(PENDING, ECHO))
            await dispatcher.until_seen(1)
            [session] = dispatcher.sessions
            assert session.gated
            assert not session.authenticated
            session.muted_until = clock.monotonic() + MUTED_SECONDS
            dispatcher.resolve(0)
            assert await client.receive() == PENDING
            assert dispatcher.seen == [PENDING], "the next request waits"
            clock.advance(MUTED_SECONDS)
            assert await client.receive() == ECHO
            await client.close()

    run(story())


def test_a_stranger_has_no_more_requests_in_flight_than_others() -> None:
    async def story() -> None:
        async with serving(listeners=GATED, requests_in_flight_max=2) as (server, dispatcher):
            client = await RawClient.connect(server.addresses[0])
            requests = [PIPELINED + bytes([number]) for number in range(3)]
            await client.send(framed(*requests))
            await dispatcher.until_seen(2)
            assert dispatcher.seen == requests[:2]
            dispatcher.resolve(0)
            await dispatcher.until_seen(3)
            await client.close()

    run(story())
