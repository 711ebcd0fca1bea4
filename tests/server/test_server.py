"""The server over real sockets on both kinds of event loop, with a dispatcher that the test controls.

A request of the test's dispatcher is one byte that says what becomes of it, and a payload.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from tests.fakes.clock import FakeClock, LoopClock
from tests.server.raw_client import RawClient

from mainstem.errors import ConfigError, MainstemError
from mainstem.event_loop import LOOP_VARIABLE, new_event_loop
from mainstem.ports import Burst, Clock, Exchange, Peer, Reply
from mainstem.prompt_future import PromptFuture
from mainstem.server.config import ServerConfig
from mainstem.server.connection import (
    HALF_READ_SECONDS_MAX,
    SILENT_SECONDS_MAX,
    TRANSPORT_BYTES_HIGH,
    UNREAD_SECONDS_MAX,
)
from mainstem.server.receive_buffer import START_BYTES
from mainstem.server.request_budget import USUAL_BYTES_MAX
from mainstem.server.server import Server

ECHO, PENDING, PIPELINED, SILENT, REFUSED, BROKEN, LARGE = b"e", b"n", b"p", b"s", b"r", b"b", b"l"
PROMPT = b"t"
FINAL, LATE_FINAL = b"f", b"g"
TOGETHER = b"+"

LARGE_REPLY_BYTES = 1_000_000


class RefusedRequest(MainstemError):
    pass


class ScriptedDispatcher:
    """`ports.Dispatcher` that answers by the request's first byte, and keeps pending replies for the test."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.pending: list[tuple[bytes, asyncio.Future[Reply] | PromptFuture[Reply]]] = []
        self.bursts: list[tuple[bytes, Burst]] = []
        self.gone: list[Peer] = []
        self.room = True
        self.waiting_for_room: list[Callable[[], object]] = []
        self.ends_with: bytes | None = None
        """A burst that contains this is the last on its connection."""
        self.arrived = asyncio.Event()

    def dispatch_burst(
        self, frames: memoryview, start: int, stop: int, requests_max: int, frame_bytes_max: int
    ) -> Burst | None:
        """Takes those at the front that begin with `TOGETHER`, and answers each with itself, when told to."""
        taken, at = bytearray(), start
        count = 0
        while count < requests_max and stop - at > 4 and bytes(frames[at + 4 : at + 5]) == TOGETHER:
            (length,) = struct.unpack_from(">i", frames, at)
            if at + 4 + length > stop or length > frame_bytes_max:
                break
            taken += frames[at : at + 4 + length]
            at += 4 + length
            count += 1
        if not count:
            return None
        self.seen.append(bytes(taken))
        self.arrived.set()
        burst = Burst(count, at - start)
        burst.last = self.ends_with is not None and self.ends_with in taken
        self.bursts.append((bytes(taken), burst))
        return burst

    def dispatch(self, frame: memoryview, peer: Peer) -> Exchange:
        content = bytes(frame)
        self.seen.append(content)
        self.arrived.set()
        kind = content[:1]
        if kind == REFUSED:
            raise RefusedRequest("the dispatcher does not like this")
        if kind == BROKEN:
            raise ZeroDivisionError("a fault of ours")
        if kind == FINAL:
            return Exchange(reply_to(content), last=True)
        if kind in (PENDING, PIPELINED, LATE_FINAL):
            future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
            self.pending.append((content, future))
            return Exchange(future, pipelined=kind == PIPELINED, last=kind == LATE_FINAL, keeps=kind == PENDING)
        if kind == PROMPT:
            reply: PromptFuture[Reply] = PromptFuture()
            self.pending.append((content, reply))
            return Exchange(reply, pipelined=True)
        if kind == SILENT:
            return Exchange(None)
        if kind == LARGE:
            return Exchange([struct.pack(">i", LARGE_REPLY_BYTES), memoryview(bytes(LARGE_REPLY_BYTES))])
        return Exchange(reply_to(content))

    def has_room(self) -> bool:
        return self.room

    def brings_batches(self, frames: memoryview, start: int, stop: int) -> bool:
        return stop - start > 4 and bytes(frames[start + 4 : start + 5]) in (TOGETHER, PIPELINED)

    def tell_of_room(self, told: Callable[[], object]) -> None:
        self.waiting_for_room.append(told)

    def make_room(self) -> None:
        """As much as there is asked for now."""
        self.room = True
        waiting, self.waiting_for_room = self.waiting_for_room, []
        for told in waiting:
            told()

    def disconnected(self, peer: Peer) -> None:
        self.gone.append(peer)

    def resolve(self, index: int) -> None:
        content, future = self.pending[index]
        future.set_result(reply_to(content))

    def resolve_burst(self, index: int) -> None:
        content, burst = self.bursts[index]
        burst.set_result([content])

    async def until_seen(self, count: int) -> None:
        while len(self.seen) < count:
            self.arrived.clear()
            await self.arrived.wait()


def reply_to(content: bytes) -> Reply:
    return [struct.pack(">i", len(content)), content]


@asynccontextmanager
async def serving(
    clock: Clock | None = None, **limits: int
) -> AsyncIterator[tuple[Server, ScriptedDispatcher]]:
    dispatcher = ScriptedDispatcher()
    config = ServerConfig(listen=("127.0.0.1:0",), **limits)  # type: ignore[arg-type]
    config.validate()
    server = Server(config, clock or LoopClock())
    server.bind()
    await server.start(dispatcher)
    try:
        yield server, dispatcher
    finally:
        for _, future in dispatcher.pending:
            if not future.done():
                future.set_result(None)
        await server.close()


async def until(condition: object) -> None:
    """Let the loop run until a condition holds; the suite's timeout is the only limit."""
    while not condition():  # type: ignore[operator]  # noqa: ASYNC110
        await asyncio.sleep(0.001)


@pytest.fixture(autouse=True, params=["asyncio", "uvloop"])
def event_loop_of_the_test(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOOP_VARIABLE, request.param)


def run(test: object) -> None:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(asyncio.wait_for(test, 30))  # type: ignore[arg-type]


def test_requests_are_answered_in_order_however_they_are_cut() -> None:
    async def scenario() -> None:
        async with serving() as (server, _):
            client = await RawClient.connect(server.addresses[0])
            stream = b"".join(struct.pack(">i", 3) + ECHO + f"{n:02}".encode() for n in range(50))
            for position in range(0, len(stream), 11):
                await client.send(stream[position : position + 11])
            assert [await client.receive() for _ in range(50)] == [
                ECHO + f"{n:02}".encode() for n in range(50)
            ]
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


@pytest.mark.parametrize("fault", [REFUSED, BROKEN])
def test_a_request_that_fails_gives_back_the_memory_it_was_charged(fault: bytes) -> None:
    async def scenario() -> None:
        async with serving() as (server, _):
            client = await RawClient.connect(server.addresses[0])
            await client.send_frame(fault + b"x" * 1000)
            assert await client.closed_by_server()
            assert server.budget.bytes_taken == 0
            await client.close()

    run(scenario())


def test_without_room_producers_are_not_read_from_and_all_others_are_served() -> None:
    async def scenario() -> None:
        async with serving() as (server, dispatcher):
            dispatcher.room = False
            producer = await RawClient.connect(server.addresses[0])
            await producer.send_frame(ECHO + b"before")
            await producer.send_frame(TOGETHER + b"1")
            await producer.send_frame(ECHO + b"behind")
            assert await producer.receive() == ECHO + b"before"
            await until(lambda: server.waiting_for_room)
            endless = asyncio.create_task(producer.send(bytes(50_000_000)))
            consumer = await RawClient.connect(server.addresses[0])
            for number in range(20):
                await consumer.send_frame(ECHO + str(number).encode())
                assert await consumer.receive() == ECHO + str(number).encode()
            assert not endless.done()
            assert server.counters.bytes_in < 1_000_000
            assert TOGETHER + b"1" not in b"".join(dispatcher.seen)
            dispatcher.make_room()
            await until(lambda: dispatcher.bursts)
            assert dispatcher.seen[-1] == ECHO + b"behind" or ECHO + b"behind" in dispatcher.seen
            endless.cancel()
            await producer.reset()
            await consumer.close()

    run(scenario())


def test_room_is_given_in_the_order_in_which_producers_came_one_request_each() -> None:
    async def scenario() -> None:
        async with serving() as (server, dispatcher):
            dispatcher.room = False
            clients = [await RawClient.connect(server.addresses[0]) for _ in range(4)]
            for number, client in enumerate(clients):
                for again in range(2):
                    await client.send_frame(PIPELINED + f"{number}{again}".encode())
                await until(lambda number=number: len(server.waiting_for_room) == number + 1)
            scarce = dispatcher.dispatch

            def one_at_a_time(frame: memoryview, peer: Peer) -> Exchange:
                dispatcher.room = False
                return scarce(frame, peer)

            for connection in list(server.waiting_for_room):
                connection.dispatcher.dispatch = one_at_a_time  # type: ignore[method-assign]
            for turn in range(8):
                dispatcher.make_room()
                await dispatcher.until_seen(turn + 1)
                await until(lambda: dispatcher.waiting_for_room or not server.waiting_for_room)
            order = [content[1:] for content in dispatcher.seen]
            assert order == [f"{n}{again}".encode() for again in range(2) for n in range(4)]
            for client in clients:
                await client.close()

    run(scenario())


def test_who_hangs_up_while_waiting_for_room_is_forgotten() -> None:
    async def scenario() -> None:
        async with serving() as (server, dispatcher):
            dispatcher.room = False
            client = await RawClient.connect(server.addresses[0])
            await client.send_frame(PIPELINED + b"1")
            await until(lambda: server.waiting_for_room)
            next(iter(server.waiting_for_room)).abort()
            await until(lambda: not server.waiting_for_room)
            dispatcher.make_room()
            assert dispatcher.seen == []
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


def framed(*contents: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(content)) + content for content in contents)


def test_bursts_answer_in_the_order_of_their_requests() -> None:
    async def scenario() -> None:
        async with serving() as (server, dispatcher):
            client = await RawClient.connect(server.addresses[0])
            sent = [b"+1", b"+2", b"p3", b"+4", b"+5", b"+6", b"e7", b"+8"]
            await client.send(framed(*sent) + framed(b"+9")[:-1])
            await dispatcher.until_seen(5)
            (connection,) = server._connections
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


def test_frames_that_wait_fill_the_buffer_and_no_more() -> None:
    async def scenario() -> None:
        async with serving() as (server, dispatcher):
            client = await RawClient.connect(server.addresses[0])
            await client.send_frame(b"n")
            await dispatcher.until_seen(1)
            filler = (struct.pack(">i", 1000) + ECHO * 1000) * 4000
            client.writer.write(filler)
            (connection,) = server._connections
            await until(lambda: connection._buffer.full and not connection._reading)
            assert connection.buffer_bytes <= 256 * 1024
            dispatcher.resolve(0)
            assert await client.receive() == b"n"
            for _ in range(4000):
                assert len(await client.receive()) == 1000
            await client.close()

    run(scenario())


def test_a_reader_that_does_not_read_holds_a_bounded_number_of_bytes() -> None:
    """Counters, not time: of 200 requests for 1 MB only as many are made as fit the bound and the sockets."""
    bound = 2_000_000

    async def scenario() -> None:
        async with serving(response_bytes_unsent_max=bound) as (server, dispatcher):
            client = await RawClient.connect(server.addresses[0])
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            for _ in range(200):
                await client.send_frame(LARGE)
            (connection,) = server._connections
            await until(lambda: connection.bytes_unsent > bound)
            settled = (0, -1)
            while settled[1] != len(dispatcher.seen) or settled[0] < 20:
                settled = (settled[0] + 1 if settled[1] == len(dispatcher.seen) else 0, len(dispatcher.seen))
                await asyncio.sleep(0.005)
            assert connection.bytes_unsent <= bound + LARGE_REPLY_BYTES + 4
            assert len(dispatcher.seen) < 100
            assert server.counters.requests == len(dispatcher.seen)
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            for _ in range(200):
                assert len(await client.receive()) == LARGE_REPLY_BYTES
            await client.close()

    run(scenario())


def test_those_who_do_not_read_are_closed_when_memory_is_short_and_those_who_read_are_served() -> None:
    """Beyond the bound a connection that holds nothing still gets its responses."""

    async def scenario() -> None:
        clock = FakeClock()
        async with serving(clock, response_bytes_max=8_000_000) as (server, _):
            deaf = [await RawClient.connect(server.addresses[0]) for _ in range(30)]
            for client in deaf:
                client.writer.transport.pause_reading()  # type: ignore[attr-defined]
                client.writer.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                for _ in range(20):
                    client.writer.write(framed(LARGE))
            await until(lambda: server.responses.exhausted)
            reader = await RawClient.connect(server.addresses[0])
            for _ in range(10):
                await reader.send_frame(ECHO + b"still here")
                assert await reader.receive() == ECHO + b"still here"
            for connection in server._connections:
                connection.recount()
            held = server.responses.bytes_held
            assert held <= 2 * 8_000_000 + LARGE_REPLY_BYTES * 2
            assert sum(connection.bytes_unsent for connection in server._connections) == held
            server.close_unread()
            assert len(server._connections) == 31  # they have had no time to take anything
            clock.advance(UNREAD_SECONDS_MAX + 1)
            await reader.send_frame(LARGE)
            assert len(await reader.receive()) == LARGE_REPLY_BYTES
            server.close_unread()
            assert 0 < server.counters.unread_closed < 30
            while 2 * server.responses.bytes_held >= 8_000_000:  # those that are left get theirs, and do not read
                await reader.send_frame(ECHO + b"to the end")
                assert await reader.receive() == ECHO + b"to the end"
                clock.advance(UNREAD_SECONDS_MAX + 1)
                server.close_unread()
            assert len(server._connections) > 1
            for client in (*deaf, reader):
                await client.reset()
            await until(lambda: not server._connections)
            assert server.responses.bytes_held == 0

    run(scenario())


def test_many_that_have_something_to_write_do_not_take_one_turn_of_the_loop() -> None:
    class Hasty(LoopClock):
        """Each look at it costs a millisecond."""

        def __init__(self) -> None:
            super().__init__()
            self.looks = 0

        def monotonic(self) -> float:
            self.looks += 1
            return self.looks / 1000

    async def scenario() -> None:
        async with serving(Hasty()) as (server, dispatcher):
            clients = [await RawClient.connect(server.addresses[0]) for _ in range(20)]
            for client in clients:
                for number in range(3):
                    await client.send_frame(PROMPT + str(number).encode())
            await dispatcher.until_seen(60)
            for number in range(60):
                if dispatcher.pending[number][0] != PROMPT + b"2":
                    dispatcher.resolve(number)
            turns = 0
            while server._to_flush:
                turns += 1
                await asyncio.sleep(0)
            assert turns >= 5
            for number in range(60):
                if dispatcher.pending[number][0] == PROMPT + b"2":
                    dispatcher.resolve(number)
            for client in clients:
                assert [await client.receive() for _ in range(3)] == [PROMPT + b"%d" % n for n in range(3)]
                await client.close()

    run(scenario())


def test_memory_is_given_back_when_much_less_is_held_than_before() -> None:
    given: list[int] = []

    async def scenario() -> None:
        server = Server(ServerConfig(listen=("127.0.0.1:0",)), FakeClock(), lambda: given.append(1))
        server.responses.change(300_000_000)
        server.sweep()
        assert given == []
        server.responses.change(-100_000_000)
        server.sweep()
        assert given == []
        server.responses.change(-200_000_000)
        server.sweep()
        server.sweep()
        assert given == [1]
        server.responses.change(20_000_000)
        server.responses.change(-20_000_000)
        server.sweep()
        assert given == [1]

    run(scenario())


def test_a_bound_below_what_a_transport_may_hold_is_refused() -> None:
    """The transport tells when it falls below its own mark, not below ours: the connection would never go on."""
    ServerConfig(response_bytes_unsent_max=TRANSPORT_BYTES_HIGH).validate()
    with pytest.raises(ConfigError, match="response_bytes_unsent_max"):
        ServerConfig(response_bytes_unsent_max=TRANSPORT_BYTES_HIGH - 1).validate()


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


KIB = 1024
USUAL = USUAL_BYTES_MAX // 2
"""A request that needs a buffer beyond the start, and no large one."""


async def send_some(client: RawClient, server: Server, size: int, part: int) -> None:
    """Of a request of `size` bytes that much, once the server has read it."""
    before = server.counters.bytes_in
    await client.send(struct.pack(">i", size) + ECHO * (part - 4))
    await until(lambda: server.counters.bytes_in == before + part)


def test_what_requests_hold_is_bounded_and_small_ones_are_always_served() -> None:
    async def scenario() -> None:
        async with serving(request_bytes_in_flight_max=8 * USUAL) as (server, dispatcher):
            clients = [await RawClient.connect(server.addresses[0]) for _ in range(12)]
            for client in clients:
                client.writer.write(struct.pack(">i", USUAL) + PIPELINED * (USUAL - 1))
            await until(lambda: server.budget.scarce)
            honest = await RawClient.connect(server.addresses[0])
            for number in range(20):
                await honest.send_frame(ECHO * (START_BYTES - 10) + str(number % 10).encode())
                assert len(await honest.receive()) == START_BYTES - 9
                assert server.budget.bytes_taken <= 5 * USUAL  # the share of an address, and one that may always go on
            for client in clients:
                await client.send(PIPELINED)
            await dispatcher.until_seen(20 + len(clients))
            for index in range(len(clients)):
                dispatcher.resolve(index)
            for client in clients:
                assert len(await client.receive()) == USUAL
                await client.close()
            await honest.close()
            await until(lambda: not server._connections)
            assert server.budget.bytes_taken == 0

    run(scenario())


def test_a_request_is_charged_while_its_handler_keeps_it_and_no_longer() -> None:
    async def scenario() -> None:
        async with serving() as (server, dispatcher):
            keeping, handing_on = [await RawClient.connect(server.addresses[0]) for _ in range(2)]
            await keeping.send_frame(b"n" * 100 * KIB)
            await handing_on.send_frame(PIPELINED * 200 * KIB)
            await dispatcher.until_seen(2)
            server.relieve()  # buffers with nothing in them are given up
            assert server.budget.bytes_taken == 100 * KIB
            for index in range(2):
                dispatcher.resolve(index)
            assert len(await keeping.receive()) == 100 * KIB
            assert server.budget.bytes_taken == 0
            for client in (keeping, handing_on):
                await client.close()

    run(scenario())


def test_announcing_much_and_sending_little_takes_nothing_from_others() -> None:
    async def scenario() -> None:
        async with serving(request_bytes_in_flight_max=64 * KIB) as (server, _):
            liars = [await RawClient.connect(server.addresses[0]) for _ in range(5)]
            for liar in liars:
                await send_some(liar, server, 90_000_000, 10)
            assert server.budget.bytes_taken == 0
            client = await RawClient.connect(server.addresses[0])
            await client.send_frame(b"e" * 40_000)
            assert len(await client.receive()) == 40_000
            for each in (*liars, client):
                await each.close()
            await until(lambda: server.budget.bytes_taken == 0)

    run(scenario())


def test_half_read_requests_do_not_wait_for_each_other() -> None:
    async def scenario() -> None:
        async with serving(request_bytes_in_flight_max=100 * KIB) as (server, _):
            clients = [await RawClient.connect(server.addresses[0]) for _ in range(3)]
            size = 90 * KIB
            for client in clients:
                await send_some(client, server, size, 20 * KIB)
            for client in reversed(clients):
                client.writer.write(ECHO * (size + 4 - 20 * KIB))
            for client in clients:
                assert len(await client.receive()) == size
                await client.close()
            await until(lambda: server.budget.bytes_taken == 0)

    run(scenario())


@pytest.mark.parametrize("dribbling", [False, True])
def test_a_request_that_does_not_arrive_gives_way_once_others_wait_for_its_memory(
    dribbling: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        clock = FakeClock()
        async with serving(clock, request_bytes_in_flight_max=100 * KIB) as (server, dispatcher):
            stalled, waiting = [await RawClient.connect(server.addresses[0]) for _ in range(2)]
            await send_some(stalled, server, 200 * KIB, 80 * KIB)
            clock.advance(HALF_READ_SECONDS_MAX + 1)
            server.sweep()
            assert len(server._connections) == 2  # it is let be: nobody is in want
            if dribbling:
                await stalled.send(b"x")
                await until(lambda: max(each.active_at for each in server._connections) == clock.monotonic())
            waiting.writer.write(framed(ECHO * 90 * KIB))
            await until(lambda: len(server._connections) == 1)
            assert await stalled.closed_by_server()
            assert len(await waiting.receive()) == 90 * KIB
            assert len(dispatcher.seen) == 1
            for client in (stalled, waiting):
                await client.close()

    with caplog.at_level(logging.WARNING, "mainstem"):
        run(scenario())
    assert any("others wait for the memory" in record.getMessage() for record in caplog.records)


def test_a_request_that_goes_on_arriving_is_let_be_for_a_while() -> None:
    async def scenario() -> None:
        clock = FakeClock()
        async with serving(clock, request_bytes_in_flight_max=100 * KIB) as (server, _):
            slow, waiting = [await RawClient.connect(server.addresses[0]) for _ in range(2)]
            await send_some(slow, server, 200 * KIB, 80 * KIB)
            waiting.writer.write(framed(ECHO * 90 * KIB))
            await until(lambda: server.budget.scarce)
            for _ in range(4):
                clock.advance(SILENT_SECONDS_MAX - 1)
                server.relieve()
                before = server.counters.bytes_in
                await slow.send(b"x")
                await until(lambda before=before: server.counters.bytes_in > before)
            assert len(server._connections) == 2
            clock.advance(SILENT_SECONDS_MAX + 1)
            server.relieve()
            assert await slow.closed_by_server()
            assert len(await waiting.receive()) == 90 * KIB
            for client in (slow, waiting):
                await client.close()

    run(scenario())


def test_who_waits_for_memory_and_hangs_up_is_noticed_though_nothing_is_read() -> None:
    async def scenario() -> None:
        async with serving(request_bytes_in_flight_max=100 * KIB) as (server, _):
            first, second = [await RawClient.connect(server.addresses[0]) for _ in range(2)]
            await send_some(first, server, 200 * KIB, 80 * KIB)
            second.writer.write(framed(ECHO * 90 * KIB)[:-1])
            await until(lambda: server.budget.scarce)
            connections = list(server._connections)
            await second.close()
            await until(lambda: len(server._connections) == 1)
            assert not server.budget.scarce
            await first.close()
            await until(lambda: server.budget.bytes_taken == 0)
            assert [connection.buffer_bytes for connection in connections] == [0, 0]

    run(scenario())


def test_bytes_of_a_request_whose_client_left_are_given_back_when_it_ends() -> None:
    async def scenario() -> None:
        async with serving() as (server, dispatcher):
            client = await RawClient.connect(server.addresses[0])
            await client.send_frame(b"n" * 50 * KIB)
            await dispatcher.until_seen(1)
            await client.send(struct.pack(">i", 1000) + b"half")
            await client.reset()
            await until(lambda: dispatcher.gone)
            assert server.budget.bytes_taken == 50 * KIB
            dispatcher.resolve(0)
            await until(lambda: server.budget.bytes_taken == 0)

    run(scenario())


@pytest.mark.parametrize(
    ("sent", "logged"),
    [
        (struct.pack(">i", 2**31 - 1), "2147483647 bytes"),
        (struct.pack(">i", -1), "-1 bytes"),
        (struct.pack(">i", 0), "0 bytes"),
        (b"GET / HTTP/1.1\r\n\r\n", "socket.request.max.bytes"),
        (struct.pack(">i", 5) + b"r1234", "does not like"),
        (struct.pack(">i", 5) + b"b1234", "failed unexpectedly"),
    ],
)
def test_what_cannot_be_a_request_closes_its_connection_with_one_line(
    sent: bytes, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with serving() as (server, _):
            bystander = await RawClient.connect(server.addresses[0])
            client = await RawClient.connect(server.addresses[0])
            await client.send(sent)
            assert await client.closed_by_server()
            await bystander.send_frame(b"e")
            assert await bystander.receive() == b"e"
            await bystander.close()
            await client.close()
            assert server.counters.failures == 1

    with caplog.at_level(logging.WARNING, "mainstem"):
        run(scenario())
    (record,) = [record for record in caplog.records if record.name.startswith("mainstem")]
    assert logged in record.getMessage()
    assert "127.0.0.1" in record.getMessage()


def test_a_stream_that_ends_inside_a_frame_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving() as (server, _):
            client = await RawClient.connect(server.addresses[0])
            await client.send(struct.pack(">i", 100) + b"half")
            client.writer.write_eof()
            assert await client.closed_by_server()
            await client.close()

    with caplog.at_level(logging.WARNING, "mainstem"):
        run(scenario())
    assert [record.getMessage().count("unfinished request") for record in caplog.records] == [1]


def test_a_peer_that_ends_its_stream_still_gets_its_answers() -> None:
    async def scenario() -> None:
        async with serving() as (server, dispatcher):
            client = await RawClient.connect(server.addresses[0])
            for name in (b"n1", b"e2"):
                await client.send_frame(name)
            client.writer.write_eof()
            await dispatcher.until_seen(1)
            dispatcher.resolve(0)
            assert [await client.receive(), await client.receive()] == [b"n1", b"e2"]
            assert await client.closed_by_server()
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


def test_connections_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving(connections_max=3, connections_per_host_max=2) as (server, _):
            welcome = [await RawClient.connect(server.addresses[0]) for _ in range(2)]
            for client in welcome:
                await client.send_frame(b"e")
                await client.receive()
            for _ in range(5):
                refused = await RawClient.connect(server.addresses[0])
                assert await refused.closed_by_server()
                await refused.close()
            assert server.counters.refused == 5
            await welcome[0].close()
            await until(lambda: len(server._connections) == 1)
            again = await RawClient.connect(server.addresses[0])
            await again.send_frame(b"e")
            assert await again.receive() == b"e"
            await again.close()
            await welcome[1].close()

    with caplog.at_level(logging.WARNING, "mainstem"):
        run(scenario())
    assert sum("max.connections.per.ip" in record.getMessage() for record in caplog.records) == 1


def test_idle_connections_are_closed_and_busy_ones_kept() -> None:
    async def scenario() -> None:
        clock = FakeClock()
        async with serving(clock, connection_idle_ms_max=60_000) as (server, dispatcher):
            idle, busy, active = [await RawClient.connect(server.addresses[0]) for _ in range(3)]
            await busy.send_frame(b"n1")
            await dispatcher.until_seen(1)
            await idle.send_frame(b"e")
            await idle.receive()
            clock.advance(59)
            server.sweep()
            await active.send_frame(b"e")
            await active.receive()
            clock.advance(1)
            server.sweep()
            assert await idle.closed_by_server()
            assert server.counters.idle_closed == 1
            dispatcher.resolve(0)
            assert await busy.receive() == b"n1"
            await active.send_frame(b"e2")
            assert await active.receive() == b"e2"
            for client in (idle, busy, active):
                await client.close()

    run(scenario())


def test_idle_buffers_shrink() -> None:
    async def scenario() -> None:
        clock = FakeClock()
        async with serving(clock) as (server, _):
            client = await RawClient.connect(server.addresses[0])
            await client.send_frame(ECHO * 500_000)
            await client.receive()
            (connection,) = server._connections
            assert connection.buffer_bytes >= 500_000
            clock.advance(30)
            server.sweep()
            assert connection.buffer_bytes == START_BYTES
            await client.send_frame(ECHO * 100_000)
            assert len(await client.receive()) == 100_000
            await client.close()

    run(scenario())


def test_closing_finishes_what_is_in_flight_and_accepts_nothing_more() -> None:
    async def scenario() -> None:
        async with serving() as (server, dispatcher):
            client = await RawClient.connect(server.addresses[0])
            address = server.addresses[0]
            for name in (b"p1", b"n2", b"e3"):
                await client.send_frame(name)
            await dispatcher.until_seen(2)
            closing = asyncio.ensure_future(server.close())
            await asyncio.sleep(0)
            with pytest.raises(OSError):
                await RawClient.connect(address)
            dispatcher.resolve(1)
            dispatcher.resolve(0)
            assert [await client.receive(), await client.receive()] == [b"p1", b"n2"]
            assert await client.closed_by_server()  # e3 was not begun
            await closing
            await client.close()

    run(scenario())


def test_what_was_asked_before_a_read_that_is_given_up_is_still_answered() -> None:
    async def scenario() -> None:
        async with serving() as (server, dispatcher):
            client = await RawClient.connect(server.addresses[0])
            for name in (b"p1", b"n2"):
                await client.send_frame(name)
            await dispatcher.until_seen(2)
            dispatcher.pending[1][1].cancel()
            await asyncio.sleep(0)
            dispatcher.resolve(0)
            assert await client.receive() == b"p1"
            assert await client.closed_by_server()
            await client.close()

    run(scenario())


def test_the_last_answer_of_a_connection_ends_it_and_none_before_is_lost() -> None:
    async def scenario() -> None:
        async with serving() as (server, dispatcher):
            for last in (b"f2", b"g2"):
                client = await RawClient.connect(server.addresses[0])
                dispatcher.seen.clear()
                first = len(dispatcher.pending)
                for name in (b"p1", last, b"e3"):
                    await client.send_frame(name)
                await dispatcher.until_seen(2)
                for pending in range(len(dispatcher.pending) - 1, first - 1, -1):
                    dispatcher.resolve(pending)
                assert [await client.receive(), await client.receive()] == [b"p1", last]
                assert await client.closed_by_server()
                assert dispatcher.seen == [b"p1", last]
                await client.close()

    run(scenario())


def test_closing_does_not_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving(shutdown_ms_max=10) as (server, dispatcher):
            client = await RawClient.connect(server.addresses[0])
            await client.send_frame(b"n1")
            await dispatcher.until_seen(1)
            await server.close()
            assert await client.closed_by_server()
            await client.close()

    with caplog.at_level(logging.WARNING, "mainstem"):
        run(scenario())
    assert any("did not finish in time" in record.getMessage() for record in caplog.records)


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
