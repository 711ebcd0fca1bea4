"""When answers to prompt calls leave: together, at most a moment later; many, or those to large requests, at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.fakes.simulated_loop import SimulatedLoop

from mainstem.rpc.errors import Refused
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.prompt_answers import PROMPT_ANSWERS_MAX, PROMPT_DELAY_SECONDS, PROMPT_SMALL_BYTES
from mainstem.rpc.rpc_server import RpcServer, ServerConnection
from mainstem.rpc.wire.call_state import CallAnswer, CallerConnection
from mainstem.rpc.wire.hello import Hello
from mainstem.rpc.wire.method import DONE, Method, Nothing, Reply


class PingRefused(Refused):
    kind = "ping refused"


PING = Method(1, "test.ping", Nothing, Nothing, (PingRefused,))
SLOW = Method(2, "test.slow", Nothing, Nothing)


class Wire(asyncio.Transport):
    """Keeps what is written, one item per system call."""

    def __init__(self) -> None:
        super().__init__()
        self.sends: list[bytes] = []

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass

    def writelines(self, list_of_data: Any) -> None:
        self.sends.append(b"".join(list_of_data))


class Caller:
    """A caller whose bytes arrive at once, and a connection that answers it."""

    def __init__(self) -> None:
        handlers = Handlers()
        self.heard = 0
        self.fails_at = 0
        """The request that fails, counted from 1; 0: none does."""
        handlers.prompt(PING, self._pinged)
        handlers.unary(SLOW, self._slowly)
        self.wire = Wire()
        self._connection = ServerConnection(RpcServer(handlers))
        self._connection.connection_made(self.wire)
        self._core = CallerConnection(Hello(name="caller"))
        self._arrive(b"".join(self._core.hello()))
        self.answers()

    def _pinged(self, call: RpcCall[Nothing]) -> Reply[Nothing]:
        self.heard += 1
        if self.heard == self.fails_at:
            raise PingRefused(f"request {self.heard}")
        return DONE

    async def _slowly(self, call: RpcCall[Nothing]) -> Reply[Nothing]:
        return DONE

    @property
    def dropped(self) -> bool:
        return self._connection.dropped

    def ping(self, attachment: bytes = b"") -> None:
        _, buffers = self._core.call(PING, Nothing(), [attachment] if attachment else [])
        self._arrive(b"".join(buffers))

    def tell(self, method: Method[Any, Any] = PING) -> None:
        self._arrive(b"".join(self._core.tell(method, Nothing())))

    def _arrive(self, content: bytes) -> None:
        while content:
            room = self._connection.get_buffer(-1)
            count = min(len(room), len(content))
            room[:count] = content[:count]
            self._connection.buffer_updated(count)
            content = content[count:]

    def answers(self) -> list[list[CallAnswer]]:
        """The messages that left since the last look, by system call."""
        sends, self.wire.sends = self.wire.sends, []
        return [self._core.receive(send) for send in sends]

    def lose(self) -> None:
        self._connection.connection_lost(None)


@pytest.fixture
def loop() -> Any:
    loop = SimulatedLoop()
    yield loop
    loop.close()


def test_answers_to_small_calls_leave_together(loop: SimulatedLoop) -> None:
    async def story() -> None:
        caller = Caller()
        for _ in range(3):
            caller.ping()
        assert caller.answers() == []
        await asyncio.sleep(PROMPT_DELAY_SECONDS * 1.01)
        assert [len(answers) for answers in caller.answers()] == [3]
        caller.ping()
        await asyncio.sleep(PROMPT_DELAY_SECONDS * 1.01)
        assert [len(answers) for answers in caller.answers()] == [1]
        caller.ping()
        caller.lose()

    loop.run_until_complete(story())


def test_many_answers_and_those_to_large_calls_leave_at_once(loop: SimulatedLoop) -> None:
    async def story() -> None:
        caller = Caller()
        for _ in range(PROMPT_ANSWERS_MAX):
            caller.ping()
        assert [len(answers) for answers in caller.answers()] == [PROMPT_ANSWERS_MAX]
        caller.ping()
        caller.ping(bytes(PROMPT_SMALL_BYTES))
        assert [len(answers) for answers in caller.answers()] == [2]
        await asyncio.sleep(PROMPT_DELAY_SECONDS * 2)
        assert caller.answers() == [], "each is answered once"
        caller.lose()

    loop.run_until_complete(story())


def test_requests_that_are_told_are_done_and_not_answered(loop: SimulatedLoop) -> None:
    async def story() -> None:
        caller = Caller()
        for _ in range(PROMPT_ANSWERS_MAX - 1):
            caller.tell()
        assert caller.heard == PROMPT_ANSWERS_MAX - 1
        await asyncio.sleep(PROMPT_DELAY_SECONDS * 2)
        assert caller.answers() == []
        caller.ping()
        assert [len(answers) for answers in caller.answers()] == [1], "as many as are answered at once"
        caller.tell()
        caller.lose()

    loop.run_until_complete(story())


def test_a_told_request_that_fails_fails_the_next_answer_and_no_other(loop: SimulatedLoop) -> None:
    async def story() -> None:
        caller = Caller()
        caller.fails_at = 2
        for _ in range(4):
            caller.tell()
        caller.ping()
        caller.ping()
        await asyncio.sleep(PROMPT_DELAY_SECONDS * 1.01)
        ((refused, answered),) = caller.answers()
        assert isinstance(refused.error, PingRefused)
        assert str(refused.error) == "request 2"
        assert answered.error is None
        assert caller.heard == 6, "the one that brings the error is done, too"
        caller.lose()

    loop.run_until_complete(story())


@pytest.mark.parametrize("method", [SLOW, Method(9, "test.unknown", Nothing, Nothing)])
def test_what_takes_time_or_is_not_known_is_not_told(loop: SimulatedLoop, method: Method[Any, Any]) -> None:
    async def story() -> None:
        caller = Caller()
        caller.tell()
        assert not caller.dropped
        caller.tell(method)
        assert caller.dropped
        caller.lose()

    loop.run_until_complete(story())
