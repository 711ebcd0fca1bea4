"""Handshakes take their turns: whoever publishes does not feel how many clients connect.

A handshake is a millisecond of the event loop with the larger keys, and anybody can ask for it. So each of its steps
waits for a turn: one step in a turn of the loop, as long as all steps together take no more than their share of the
time. Addresses take turns, whatever each asks for. The number of those that wait is bounded, and each has a deadline.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from mainstem.ports import Clock

SECONDS_MAX = 10.0
"""For a whole handshake, its waiting included: as long as Kafka's clients wait for a connection
(`socket.connection.setup.timeout.ms`)."""

WAITING_MAX = 1024
"""Connections without TLS yet: about 20 KiB each. As many again wait in the kernel (`server.backlog`)."""

SHARE = 0.25
"""Of the event loop's time: some hundred handshakes a second."""

SAVED_SECONDS = 0.02
"""Time that handshakes may take at once when there were none for a while: clients of a node that is not flooded do not
wait."""


class Handshake(Protocol):
    """A connection that has no TLS yet."""

    @property
    def host(self) -> str: ...

    def step(self) -> None:
        """Go on with what has come from the peer."""
        ...

    def abort(self) -> None:
        """End the connection."""
        ...


class Handshakes:
    """Those of all listeners of a server."""

    def __init__(self, clock: Clock, may_begin: Callable[[str], bool]) -> None:
        """`may_begin` says whether one more connection of an address is accepted."""
        self._clock = clock
        self._may_begin = may_begin
        self._open: set[Handshake] = set()
        self._per_host: dict[str, int] = {}
        self._waiting: dict[str, deque[Handshake]] = {}
        """By address, the one whose turn it is first."""
        self._turn_due = False
        self._saved = SAVED_SECONDS
        self._saved_at = clock.monotonic()

    def __len__(self) -> int:
        return len(self._open)

    def of(self, host: str) -> int:
        """How many of an address are under way."""
        return self._per_host.get(host, 0)

    def begin(self, handshake: Handshake) -> bool:
        """Whether a connection may stay for its handshake."""
        host = handshake.host
        if not self._may_begin(host):
            return False
        self._open.add(handshake)
        self._per_host[host] = self.of(host) + 1
        return True

    def wait(self, handshake: Handshake) -> None:
        """Have `handshake.step` called when it is its turn."""
        self._waiting.setdefault(handshake.host, deque()).append(handshake)
        if not self._turn_due:
            self._turn_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def end(self, handshake: Handshake) -> None:
        """A handshake is over, whichever way; telling it twice does no harm."""
        if handshake not in self._open:
            return
        self._open.remove(handshake)
        host = handshake.host
        self._per_host[host] -= 1
        if not self._per_host[host]:
            del self._per_host[host]

    def abort(self) -> None:
        """End all connections that have no TLS yet."""
        for handshake in tuple(self._open):
            handshake.abort()

    def _turn(self) -> None:
        self._turn_due = False
        loop = asyncio.get_running_loop()
        began = self._clock.monotonic()
        self._saved = min(SAVED_SECONDS, self._saved + SHARE * (began - self._saved_at))
        self._saved_at = began
        try:
            if self._saved > 0 and (handshake := self._next()) in self._open:
                handshake.step()
                self._saved -= self._clock.monotonic() - began
        finally:
            if self._waiting:
                self._turn_due = True
                if self._saved > 0:
                    loop.call_soon(self._turn)
                else:
                    loop.call_later(-self._saved / SHARE + 0.001, self._turn)

    def _next(self) -> Handshake:
        host = next(iter(self._waiting))
        queue = self._waiting.pop(host)
        handshake = queue.popleft()
        if queue:
            self._waiting[host] = queue  # behind the other addresses
        return handshake
