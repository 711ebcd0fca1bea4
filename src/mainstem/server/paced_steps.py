"""Steps on the way in take their turns: whoever publishes does not feel how many clients connect.

A step of a TLS handshake is up to a millisecond of the event loop with the larger keys, one of SASL a fifth of that,
and anybody can ask for them, a thousand clients at once. So each waits for its turn: one step in a turn of the loop, as
long as all steps together take no more than their share of the time, and none just behind a request of a client that is
known. Addresses take turns, whatever each asks for, and so do the connections of an address. Callers bound how many
wait.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Protocol

from mainstem.ports import Clock

SHARE = 0.25
"""Of the event loop's time: some hundred handshakes a second, or as many logins."""

IDLE_SHARE = 0.9
"""While no client that is known asks for anything: nobody feels it, and ten thousand that come back at once are let in
within some seconds."""

IDLE_SECONDS = 0.1
"""For which nobody has asked then."""

BESIDE_SECONDS = 0.0001
"""Charged for each step, for what the event loop does beside it: it reads the request and writes the answer, and has
accepted the connection. A login by SCRAM has three steps of 37 us in 380."""

GIVES_WAY_SECONDS = 0.001
"""After a request of a client that is known: mostly it is answered by then, and has not waited for a step in each turn
of the loop that it takes. Once: however many requests come, steps have their share between them."""

SAVED_SECONDS = 0.02
"""Time that steps may take at once when there were none for a while: clients of a node that is not flooded do not
wait."""


class WaitsForStep(Protocol):
    """A connection whose client is not let in yet."""

    @property
    def host(self) -> str: ...

    def step(self) -> None:
        """Go on with what has come from the peer."""
        ...


class PacedSteps:
    """Those of all listeners of a server."""

    def __init__(self, clock: Clock, asked: Callable[[], int] | None = None) -> None:
        """`asked`: how many requests have come of clients that are known; None: nobody counts them, and somebody may
        feel each step."""
        self._clock = clock
        self._asked = asked
        self._asked_before = 0
        self._asked_at_turn = 0
        """As many as had come at the last turn."""
        self._gave_way = False
        """Whether that turn was put off."""
        self._asked_at = -math.inf
        self._waiting: dict[str, dict[WaitsForStep, None]] = {}
        """By address, the one whose turn it is first."""
        self._turn_due = False
        self._saved = SAVED_SECONDS
        self._saved_at = clock.monotonic()

    def wait(self, one: WaitsForStep) -> None:
        """Have `one.step` called when it is its turn, once."""
        self._waiting.setdefault(one.host, {})[one] = None
        if not self._turn_due:
            self._turn_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def leave(self, one: WaitsForStep) -> None:
        """It does not wait any more, if it did: its connection is over."""
        there = self._waiting.get(one.host)
        if there is not None and there.pop(one, self) is None and not there:
            del self._waiting[one.host]

    def _turn(self) -> None:
        self._turn_due = False
        if not self._waiting:  # all have left
            return
        loop = asyncio.get_running_loop()
        if self._gives_way():
            self._turn_due = True
            loop.call_later(GIVES_WAY_SECONDS, self._turn)
            return
        began = self._clock.monotonic()
        share = self._share(began)
        self._saved = min(SAVED_SECONDS, self._saved + share * (began - self._saved_at))
        self._saved_at = began
        try:
            if self._saved > 0:
                self._next().step()
                self._saved -= self._clock.monotonic() - began + BESIDE_SECONDS
        finally:
            if self._waiting and not self._turn_due:
                self._turn_due = True
                if self._saved > 0:
                    loop.call_soon(self._turn)
                else:
                    loop.call_later(-self._saved / share + 0.001, self._turn)

    def _gives_way(self) -> bool:
        """Whether this turn is put off, since a client that is known has just asked for something."""
        if self._asked is None:
            return False
        asked, before = self._asked(), self._asked_at_turn
        self._asked_at_turn = asked
        self._gave_way = asked != before and not self._gave_way
        return self._gave_way

    def _share(self, now: float) -> float:
        if self._asked is None:
            return SHARE
        asked = self._asked()
        if asked != self._asked_before:
            self._asked_before, self._asked_at = asked, now
        return SHARE if now - self._asked_at < IDLE_SECONDS else IDLE_SHARE

    def _next(self) -> WaitsForStep:
        host = next(iter(self._waiting))
        there = self._waiting.pop(host)
        one = next(iter(there))
        del there[one]
        if there:
            self._waiting[host] = there  # behind the other addresses
        return one
