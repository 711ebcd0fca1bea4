"""TLS handshakes under way: bounded in number, each with a deadline, and their steps take turns (`PacedSteps`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mainstem.server.paced_steps import PacedSteps

SECONDS_MAX = 10.0
"""For a whole handshake, its waiting included: as long as Kafka's clients wait for a connection
(`socket.connection.setup.timeout.ms`)."""

WAITING_MAX = 1024
"""Connections without TLS yet: about 20 KiB each. As many again wait in the kernel (`server.backlog`)."""


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

    def __init__(self, steps: PacedSteps, may_begin: Callable[[str], bool]) -> None:
        """`may_begin` says whether one more connection of an address is accepted."""
        self._steps = steps
        self._may_begin = may_begin
        self._open: set[Handshake] = set()
        self._per_host: dict[str, int] = {}

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
        self._steps.wait(handshake)

    def end(self, handshake: Handshake) -> None:
        """A handshake is over, whichever way; telling it twice does no harm."""
        if handshake not in self._open:
            return
        self._open.remove(handshake)
        self._steps.leave(handshake)
        host = handshake.host
        self._per_host[host] -= 1
        if not self._per_host[host]:
            del self._per_host[host]

    def abort(self) -> None:
        """End all connections that have no TLS yet."""
        for handshake in tuple(self._open):
            handshake.abort()
