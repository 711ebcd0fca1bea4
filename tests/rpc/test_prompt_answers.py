"""When answers to prompt calls leave: together, at most a moment later; many, or those to large requests, at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.fakes.simulated_loop import SimulatedLoop

from mainstem.rpc.handlers import Handlers
from mainstem.rpc.rpc_server import (
    PROMPT_ANSWERS_MAX,
    PROMPT_DELAY_SECONDS,
    PROMPT_SMALL_BYTES,
    RpcServer,
    ServerConnection,
)
from mainstem.rpc.wire.call_state import CallAnswer, CallerConnection
from mainstem.rpc.wire.hello import Hello
from mainstem.rpc.wire.method import Method, Nothing, Reply

PING = Method(1, "test.ping", Nothing, Nothing)


class Wire(asyncio.Transport):
    """Keeps what is written, one item per system call."""

    def __init__(self) -> None:
        super().__init__()
        self.sends: list[bytes] = []

    def is_closing(self) -> bool:
        return False

    def writelines(self, list_of_data: Any) -> None:
        self.sends.append(b"".join(list_of_data))


class Caller:
    """A caller whose bytes arrive at once, and a connection that answers it."""

    def __init__(self) -> None:
        handlers = Handlers()
        handlers.prompt(PING, lambda call: Reply(Nothing()))
        self.wire = Wire()
        self._connection = ServerConnection(RpcServer(handlers))
        self._connection.connection_made(self.wire)
        self._core = CallerConnection(Hello(name="caller"))
        self._arrive(b"".join(self._core.hello()))
        self.answers()

    def ping(self, attachment: bytes = b"") -> None:
        _, buffers = self._core.call(PING, Nothing(), [attachment] if attachment else [])
        self._arrive(b"".join(buffers))

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
