"""Calls without a task at either end: begun in the order of requests, and over when answered, given up or cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.prompt_future import PromptFuture
from mainstem.rpc import rpc_server as server_module
from mainstem.rpc.client import BEGUN_MAX, Client
from mainstem.rpc.errors import CallFailed, ConnectionLost, DeadlineExceeded, Overloaded, Refused
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.rpc_server import RpcServer
from mainstem.rpc.wire.frames import FRAME_BYTES_MAX
from mainstem.rpc.wire.method import Method, Reply


class Number(msgspec.Struct, frozen=True):
    value: int


class Odd(Refused):
    kind = "odd"


HALVE = Method(1, "test.halve", Number, Number, (Odd,))
AT_ONCE, BY_TASK = 1000, 2000
"""Numbers that are halved at once, and that no handler begins with."""


class Halving:
    """Halves numbers when it is told to; refuses odd ones before."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.answers: list[PromptFuture[Reply[Number]]] = []
        self.handlers = Handlers()
        self.handlers.unary(HALVE, self.halve, self.begin)

    def begin(self, call: RpcCall[Number]) -> PromptFuture[Reply[Number]] | None:
        number = call.request.value
        if number == BY_TASK:
            return None
        if number % 2:
            raise Odd(f"{number} is odd")
        if number == AT_ONCE:
            return PromptFuture.settled(Reply(Number(number // 2)))
        self.begun.append(number)
        self.answers.append(PromptFuture())
        return self.answers[-1]

    async def halve(self, call: RpcCall[Number]) -> Reply[Number]:
        assert call.request.value == BY_TASK
        await asyncio.sleep(0)
        return Reply(Number(call.request.value // 2), call.attachment)

    async def has_begun(self, count: int) -> None:
        while len(self.begun) < count:  # noqa: ASYNC110 - requests come by a socket
            await asyncio.sleep(0.001)

    def end(self) -> None:
        for number, answer in zip(self.begun, self.answers, strict=True):
            if not answer.done():
                answer.set_result(Reply(Number(number // 2)))

    async def all_over(self) -> None:
        while not all(answer.done() for answer in self.answers):  # noqa: ASYNC110 - so do cancels
            await asyncio.sleep(0.001)


def told(test: Callable[[Halving, Client], Awaitable[None]]) -> None:
    """Run the test with a client that is connected."""

    async def run() -> None:
        halving = Halving()
        server = RpcServer(halving.handlers)
        host, port = await server.start("127.0.0.1", 0)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS), Client(host, port) as client:
                assert client.begin(HALVE, Number(4), timeout_seconds=PATIENCE_SECONDS) is None, "no connection yet"
                reply = await client.call(HALVE, Number(AT_ONCE), timeout_seconds=PATIENCE_SECONDS)
                assert reply.message.value == AT_ONCE // 2
                await test(halving, client)
        finally:
            await server.close()
            assert len(asyncio.all_tasks()) == 1, "tasks outlive the server"

    asyncio.run(run())


def begin(client: Client, number: int, seconds: float = PATIENCE_SECONDS) -> PromptFuture[Reply[Number]]:
    answer = client.begin(HALVE, Number(number), timeout_seconds=seconds)
    assert answer is not None
    return answer


def test_calls_begin_in_order_and_are_answered_when_they_end() -> None:
    async def test(halving: Halving, client: Client) -> None:
        answers = [begin(client, number) for number in range(0, 20, 2)]
        awaited = asyncio.create_task(client.call(HALVE, Number(20), timeout_seconds=PATIENCE_SECONDS))
        await halving.has_begun(11)
        assert halving.begun == [*range(0, 20, 2), 20]
        assert not any(answer.done() for answer in answers)
        halving.end()
        assert [(await answer).message.value for answer in answers] == list(range(10))
        assert (await awaited).message.value == 10

    told(test)


def test_what_no_handler_begins_has_a_task() -> None:
    async def test(halving: Halving, client: Client) -> None:
        answer = client.begin(HALVE, Number(BY_TASK), [b"and this"], timeout_seconds=PATIENCE_SECONDS)
        assert answer is not None
        reply = await answer
        assert (reply.message.value, reply.attachment) == (BY_TASK // 2, b"and this")
        assert not halving.begun

    told(test)


def test_refusals_and_failures_reach_the_caller() -> None:
    async def test(halving: Halving, client: Client) -> None:
        with pytest.raises(Odd, match="3 is odd"):
            await begin(client, 3)
        fails, refused, given_up = begin(client, 2), begin(client, 4), begin(client, 6)
        await halving.has_begun(3)
        halving.answers[0].set_exception(RuntimeError("a bug"))
        halving.answers[1].set_exception(Odd("so late"))
        halving.answers[2].cancel()
        with pytest.raises(CallFailed, match="RuntimeError: a bug"):
            await fails
        with pytest.raises(Odd, match="so late"):
            await refused
        with pytest.raises(CallFailed, match="cancelled"):
            await given_up
        with pytest.raises(ValueError, match="larger than"):
            client.begin(HALVE, Number(2), [bytes(FRAME_BYTES_MAX)], timeout_seconds=PATIENCE_SECONDS)

    told(test)


def test_a_deadline_ends_the_call_at_both_ends() -> None:
    async def test(halving: Halving, client: Client) -> None:
        with pytest.raises(DeadlineExceeded, match="not done within"):
            await begin(client, 2, 0.05)
        assert halving.answers[0].cancelled()

    told(test)


def test_a_call_that_is_cancelled_is_so_at_the_other_end() -> None:
    async def test(halving: Halving, client: Client) -> None:
        begun = begin(client, 2)
        awaited = asyncio.create_task(client.call(HALVE, Number(4), timeout_seconds=PATIENCE_SECONDS))
        await halving.has_begun(2)
        begun.cancel()
        awaited.cancel()
        await halving.all_over()
        assert [answer.cancelled() for answer in halving.answers] == [True, True]
        reply = await client.call(HALVE, Number(AT_ONCE), timeout_seconds=PATIENCE_SECONDS)
        assert reply.message.value == AT_ONCE // 2, "the connection goes on"

    told(test)


def test_a_connection_that_ends_ends_its_calls_at_both_ends() -> None:
    async def test(halving: Halving, client: Client) -> None:
        begun = begin(client, 2)
        await halving.has_begun(1)
        client.close()
        with pytest.raises(ConnectionLost):
            await begun
        await halving.all_over()
        assert halving.answers[0].cancelled()
        assert client.begin(HALVE, Number(4), timeout_seconds=PATIENCE_SECONDS) is None, "there is no connection"

    told(test)


def test_no_call_passes_those_that_wait_for_the_connection() -> None:
    async def test(halving: Halving, client: Client) -> None:
        client.close()
        numbers = range(0, 10, 2)
        calls = [
            asyncio.create_task(client.call(HALVE, Number(number), timeout_seconds=PATIENCE_SECONDS))
            for number in numbers
        ]
        begun = None
        while begun is None:
            await asyncio.sleep(0)  # the very turn in which the connection is there
            begun = client.begin(HALVE, Number(20), timeout_seconds=PATIENCE_SECONDS)
        await halving.has_begun(len(calls) + 1)
        assert halving.begun == [*numbers, 20]
        halving.end()
        assert [(await call).message.value for call in calls] == [number // 2 for number in numbers]
        assert (await begun).message.value == 10

    told(test)


def test_a_client_begins_so_many_and_no_more() -> None:
    async def test(halving: Halving, client: Client) -> None:
        begun = [begin(client, 2) for _ in range(BEGUN_MAX)]
        assert client.begin(HALVE, Number(2), timeout_seconds=PATIENCE_SECONDS) is None
        await halving.has_begun(BEGUN_MAX)
        halving.answers[0].set_result(Reply(Number(1)))
        await begun[0]
        begun.append(begin(client, 2))
        await halving.has_begun(BEGUN_MAX + 1)
        halving.end()
        assert [(await answer).message.value for answer in begun] == [1] * (BEGUN_MAX + 1)

    told(test)


def test_a_connection_has_so_many_open_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "CALLS_MAX", 4)

    async def test(halving: Halving, client: Client) -> None:
        begun = [begin(client, 2) for _ in range(5)]
        with pytest.raises(Overloaded, match="4 calls"):
            await begun[4]
        halving.end()
        assert [(await answer).message.value for answer in begun[:4]] == [1] * 4
        begun.append(begin(client, 2))
        await halving.has_begun(5)
        halving.end()
        assert (await begun[-1]).message.value == 1

    told(test)
