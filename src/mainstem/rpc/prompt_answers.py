"""The answers to prompt calls of one connection leave together.

A prompt call is answered while its bytes are being received; its caller waits for nothing else than its own bound on
calls under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mainstem.model import Buffer

PROMPT_DELAY_SECONDS = 0.005
"""The answer to a small prompt call waits for others at most this long: some turns of a busy loop…"""

PROMPT_ANSWERS_MAX = 16
"""…and until there were so many requests, those told included: a quarter of what a caller has under way
(`raft_link.DELIVERIES_IN_FLIGHT_MAX`)."""

PROMPT_SMALL_BYTES = 64 * 1024
"""Larger requests are answered at once: windows in bytes fill fast."""


class PromptAnswers:
    """Gathers the answers to small prompt calls on one connection, and sends them together a moment later by `write`:
    only the caller's bound on calls under way waits for these answers, and each by itself would cost both ends more
    than the message."""

    def __init__(self, write: Callable[[list[Buffer]], None]) -> None:
        self._write = write
        self._answers: list[Buffer] = []
        self.requests = 0
        """Requests since answers left last."""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, answer: list[Buffer], request_bytes: int) -> None:
        """Add an answer; `request_bytes` is the size of its request's attachment."""
        self._answers += answer
        self.requests += 1
        if self.requests >= PROMPT_ANSWERS_MAX or request_bytes >= PROMPT_SMALL_BYTES:
            self.send()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PROMPT_DELAY_SECONDS, self.send)

    def send(self) -> None:
        """Write all waiting answers."""
        self.forget()
        if self._answers:
            answers, self._answers, self.requests = self._answers, [], 0
            self._write(answers)

    def forget(self) -> None:
        """Drop the waiting answers, and send nothing later."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
