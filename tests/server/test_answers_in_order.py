"""Requests over real sockets, on both kinds of event loop: however they come, their answers leave in their order."""

from __future__ import annotations

import asyncio
import struct

import pytest
from tests.fakes.clock import HastyClock
from tests.server.raw_client import RawClient
from tests.server.scripted import ECHO, PROMPT, TOGETHER, framed, run, serving, until

pytestmark = pytest.mark.usefixtures("event_loop_of_the_test")


def test_requests_are_answered_in_order_however_they_are_cut() -> None:
    async def scenario() -> None:
        async with serving() as (server, _):
            client = await RawClient.connect(server.addresses[0])
            stream = b"".join(struct.pack(">i", 3) + ECHO + f"{n:02}".encode() for n in range(50))
            for position in range(0, len(stream), 11):
                await client.send(stream[position : position + 11])
            assert [await client.receive() for _ in range(50)] == [ECHO + f"{n:02}".encode() for n in range(50)]
            await client.close()

    run(scenario())


def test_a_request_that_comes_in_many_pieces_is_looked_at_as_it_begins_and_as_a_whole() -> None:
    async def scenario() -> None:
        async with serving() as (server, dispatcher):
            client = await RawClient.connect(server.addresses[0])
            for kind in (ECHO, TOGETHER):
                content = kind + bytes(200_000)
                stream = framed(content)
                came = server.counters.bytes_in
                for position in range(0, len(stream), 20_000):
                    await client.send(stream[position : position + 20_000])
                    came += len(stream[position : position + 20_000])
                    await until(lambda come=came: server.counters.bytes_in == come)
                if kind == TOGETHER:
                    dispatcher.bursts[0][1].set_result([stream])
                assert await client.receive() == content
            assert dispatcher.bursts_looked_for == 4
            await client.close()

    run(scenario())


@pytest.mark.plain
def test_a_buffer_full_of_requests_does_not_take_one_turn_of_the_loop() -> None:
    """Nor is any of them lost when the client has nothing more to say."""

    async def scenario() -> None:
        async with serving(HastyClock()) as (server, dispatcher):
            client = await RawClient.connect(server.addresses[0])
            requests = [ECHO + b"%d" % number for number in range(100)]
            client.writer.write(framed(*requests))
            client.writer.write_eof()
            most = seen = 0
            while seen < 100:
                await asyncio.sleep(0)
                most, seen = max(most, len(dispatcher.seen) - seen), len(dispatcher.seen)
            assert most < 10
            assert [await client.receive() for _ in requests] == requests
            assert await client.closed_by_server()
            await client.close()

    run(scenario())


def test_replies_of_a_turn_leave_together_and_the_last_in_flight_at_once() -> None:
    async def scenario() -> None:
        async with serving() as (server, dispatcher):
            client = await RawClient.connect(server.addresses[0])
            for number in range(3):
                await client.send_frame(PROMPT + str(number).encode())
            await dispatcher.until_seen(3)
            dispatcher.resolve(0)
            dispatcher.resolve(1)
            assert server.counters.bytes_out == 0  # they wait for the end of the turn
            assert await client.receive() == PROMPT + b"0"
            assert await client.receive() == PROMPT + b"1"
            before = server.counters.bytes_out
            dispatcher.resolve(2)
            assert server.counters.bytes_out == before + 6
            assert await client.receive() == PROMPT + b"2"
            await client.close()

    run(scenario())


def test_behind_the_last_of_a_pipeline_nothing_is_dispatched() -> None:
    async def scenario() -> None:
        async with serving() as (server, dispatcher):
            dispatcher.ends_with = b"2"
            client = await RawClient.connect(server.addresses[0])
            await client.send_frame(TOGETHER + b"1")
            await dispatcher.until_seen(1)
            await client.send_frame(TOGETHER + b"2")
            await dispatcher.until_seen(2)
            await client.send_frame(TOGETHER + b"3")
            dispatcher.resolve_burst(0)
            dispatcher.resolve_burst(1)
            assert await client.receive() == TOGETHER + b"1"
            assert await client.receive() == TOGETHER + b"2"
            assert await client.closed_by_server()
            assert not any(b"3" in content for content in dispatcher.seen)
            await client.close()

    run(scenario())


def test_pipelined_requests_overlap_and_answer_in_order() -> None:
    async def scenario() -> None:
        async with serving() as (server, dispatcher):
            client = await RawClient.connect(server.addresses[0])
            for name in (b"p1", b"p2", b"p3", b"e4"):
                await client.send_frame(name)
            await dispatcher.until_seen(4)
            for index in (2, 0, 1):
                dispatcher.resolve(index)
            assert [await client.receive() for _ in range(4)] == [b"p1", b"p2", b"p3", b"e4"]
            await client.close()

    run(scenario())


def test_bursts_answer_in_the_order_of_their_requests() -> None:
    async def scenario() -> None:
        async with serving() as (server, dispatcher):
            client = await RawClient.connect(server.addresses[0])
            sent = [b"+1", b"+2", b"p3", b"+4", b"+5", b"+6", b"e7", b"+8"]
            await client.send(framed(*sent) + framed(b"+9")[:-1])
            await dispatcher.until_seen(5)
            (connection,) = server.connections
            assert dispatcher.seen == [
                framed(b"+1", b"+2"), b"p3", framed(b"+4", b"+5", b"+6"), b"e7", framed(b"+8")
            ]  # fmt: skip
            assert connection.in_flight == len(sent)
            assert server.counters.requests == len(sent)
            dispatcher.resolve_burst(1)
            dispatcher.resolve(0)
            dispatcher.resolve_burst(0)
            dispatcher.resolve_burst(2)
            assert [await client.receive() for _ in sent] == sent
            await client.send(b"9")
            await dispatcher.until_seen(6)
            dispatcher.resolve_burst(3)
            assert await client.receive() == b"+9"
            assert connection.in_flight == 0
            assert server.budget.bytes_taken == 0
            await client.close()

    run(scenario())


def test_a_burst_takes_no_more_requests_than_may_be_in_flight() -> None:
    async def scenario() -> None:
        async with serving(requests_in_flight_max=3) as (server, dispatcher):
            client = await RawClient.connect(server.addresses[0])
            sent = [b"p0", *(b"+%d" % number for number in range(1, 7))]
            await client.send(framed(*sent))
            await dispatcher.until_seen(2)
            assert dispatcher.seen == [b"p0", framed(b"+1", b"+2")]
            dispatcher.resolve(0)
            await dispatcher.until_seen(3)
            dispatcher.resolve_burst(0)
            dispatcher.resolve_burst(1)
            await dispatcher.until_seen(4)
            assert dispatcher.seen[2:] == [framed(b"+3"), framed(b"+4", b"+5", b"+6")]
            dispatcher.resolve_burst(2)
            assert [await client.receive() for _ in sent] == sent
            await client.close()

    run(scenario())


def test_nothing_is_dispatched_while_a_reply_that_is_not_pipelined_is_pending() -> None:
    async def scenario() -> None:
        async with serving() as (server, dispatcher):
            client, other = [await RawClient.connect(server.addresses[0]) for _ in range(2)]
            for name in (b"n1", b"e2", b"n3", b"e4"):
                await client.send_frame(name)
            await dispatcher.until_seen(1)
            await other.send_frame(b"e0")  # others are served meanwhile
            assert await other.receive() == b"e0"
            await until(lambda: server.counters.bytes_in >= 5 * 6)
            assert dispatcher.seen == [b"n1", b"e0"]
            dispatcher.resolve(0)
            await dispatcher.until_seen(4)
            assert dispatcher.seen == [b"n1", b"e0", b"e2", b"n3"]
            dispatcher.resolve(1)
            assert [await client.receive() for _ in range(4)] == [b"n1", b"e2", b"n3", b"e4"]
            await client.close()
            await other.close()

    run(scenario())


def test_requests_in_flight_are_bounded() -> None:
    async def scenario() -> None:
        async with serving(requests_in_flight_max=3) as (server, dispatcher):
            client = await RawClient.connect(server.addresses[0])
            for number in range(10):
                await client.send_frame(b"p%d" % number)
            await until(lambda: server.counters.bytes_in == 10 * 6)
            assert len(dispatcher.seen) == 3
            for index in range(10):
                await dispatcher.until_seen(min(10, index + 3))
                dispatcher.resolve(index)
            assert [await client.receive() for _ in range(10)] == [b"p%d" % n for n in range(10)]
            await client.close()

    run(scenario())


def test_a_request_without_a_response_holds_nothing_up() -> None:
    async def scenario() -> None:
        async with serving() as (server, _):
            client = await RawClient.connect(server.addresses[0])
            for name in (b"s1", b"s2", b"e3"):
                await client.send_frame(name)
            assert await client.receive() == b"e3"
            await client.close()

    run(scenario())


def test_statistics_add_up() -> None:
    async def scenario() -> None:
        async with serving() as (server, _):
            client = await RawClient.connect(server.addresses[0])
            await client.send_frame(b"e23")
            await client.receive()
            values = {sample.name: getattr(sample, "value", None) for sample in server.samples()}
            assert values["mainstem_server_connections"] == 1
            assert values["mainstem_server_request_frames_total"] == 1
            assert values["mainstem_server_received_bytes_total"] == 7
            assert values["mainstem_server_sent_bytes_total"] == 7
            assert values["mainstem_server_request_bytes_in_flight"] == 0
            await client.close()

    run(scenario())


def test_both_ways_of_dispatching_are_handed_the_session_of_the_connection() -> None:
    async def scenario() -> None:
        async with serving() as (server, dispatcher):
            first = await RawClient.connect(server.addresses[0])
            await first.send_frame(TOGETHER + b"1")
            await dispatcher.until_seen(1)
            dispatcher.resolve_burst(0)
            assert await first.receive() == TOGETHER + b"1"
            await first.send_frame(ECHO)
            assert await first.receive() == ECHO
            (session,) = dispatcher.sessions
            assert (session.listener, session.protocol) in {("PLAINTEXT", "PLAINTEXT"), ("TLS", "SSL")}
            assert session.principal == "User:ANONYMOUS"
            second = await RawClient.connect(server.addresses[0])
            await second.send_frame(ECHO)
            assert await second.receive() == ECHO
            assert len({each.connection_id for each in dispatcher.sessions}) == 2
            await first.close()
            await second.close()
            await until(lambda: set(dispatcher.gone) == dispatcher.sessions)

    run(scenario())
