"""When the answers of one connection to prompt calls leave: those to small requests together, a moment later.

Nobody but the caller's bound on what is under way waits for them, and each by itself would cost both ends more than the
message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mainstem.model import Buffer

PROMPT_DELAY_SECONDS = 0.005
"""How long the answer to a small prompt call may wait for others: some turns of a busy loop…"""

PROMPT_ANSWERS_MAX = 16
"""…but not for more than these, a quarter of what a caller has under way (`raft_link.DELIVERIES_IN_FLIGHT_MAX`)."""

PROMPT_SMALL_BYTES = 64 * 1024
"""Larger requests are answered at once: windows in bytes are filled fast."""


class PromptAnswers:
    """Of one connection, to which `write` writes."""

    def __init__(self, write: Callable[[list[Buffer]], None]) -> None:
        self._write = write
        self._answers: list[Buffer] = []
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, answer: list[Buffer], request_bytes: int) -> None:
        """One more, to a request with so large an attachment."""
        self._answers += answer
        self._count += 1
        if self._count >= PROMPT_ANSWERS_MAX or request_bytes >= PROMPT_SMALL_BYTES:
            self.send()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PROMPT_DELAY_SECONDS, self.send)

    def send(self) -> None:
        """Write all there are now."""
        self.forget()
        if self._answers:
            answers, self._answers, self._count = self._answers, [], 0
            self._write(answers)

    def forget(self) -> None:
        """Nothing is to be sent later."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
