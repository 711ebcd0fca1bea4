"""Producers wait in their sockets while the store has no room for more batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.server.raw_client import RawClient
from tests.server.scripted import ECHO, PIPELINED, TOGETHER, run, serving, until

from mainstem.ports import Exchange, Session, always

pytestmark = pytest.mark.usefixtures("event_loop_of_the_test")


@pytest.mark.plain
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


@pytest.mark.plain
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

            def one_at_a_time(
                frame: memoryview, session: Session, may_hold: Callable[[int], bool] = always
            ) -> Exchange | None:
                dispatcher.room = False
                return scarce(frame, session)

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
