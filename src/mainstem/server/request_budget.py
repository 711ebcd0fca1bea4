"""A bound on the bytes of all requests that are being read or answered, shared by all connections.

A request is charged for its bytes as they arrive, so that who announces much and sends little takes nothing
from others; it gives them back when it is answered. When nothing is left everyone waits, except the request
that has been half read for longest: it may overdraw by the rest of its frame, so no set of half-read frames
can wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainstem.server.connection import Connection


class RequestBudget:
    """A connection receives one request at a time; those it has handed on are only bytes to give back."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_taken = 0
        self._receiving: dict[Connection, int] = {}
        """The bytes each request that is being received is charged with, the oldest first."""
        self._waiting: dict[Connection, Callable[[], object]] = {}

    @property
    def exhausted(self) -> bool:
        return self.bytes_taken >= self.bytes_max

    def take(self, connection: Connection, size_bytes: int) -> bool:
        """Charge the request that a connection receives with `size_bytes` in all; False when there is nothing
        left (then `wait`)."""
        held = self._receiving.get(connection, 0)
        if size_bytes > held:
            if self.exhausted and connection is not self._oldest():
                return False
            self.bytes_taken += size_bytes - held
            self._receiving[connection] = size_bytes
        return True

    def take_whole(self, connection: Connection, size_bytes: int) -> bool:
        """`take` and `hand_on` a request that has arrived as a whole."""
        if self._waiting or self.bytes_taken >= self.bytes_max or connection in self._receiving:
            if not self.take(connection, size_bytes):
                return False
            self.hand_on(connection)
        else:  # as nearly always
            self.bytes_taken += size_bytes
        return True

    def ample(self, size_bytes: int) -> bool:
        """Whether so much could be charged at once, and nobody waits."""
        return self.bytes_taken + size_bytes <= self.bytes_max and not self._waiting

    def take_at_once(self, connection: Connection, size_bytes: int) -> None:
        """While it is `ample`: charge and hand on requests that have arrived as a whole, `size_bytes` in all."""
        held = self._receiving.pop(connection, 0) if self._receiving else 0
        self.bytes_taken += size_bytes - held

    def hand_on(self, connection: Connection) -> None:
        """The request is whole. Its bytes stay taken until somebody gives them back."""
        self._leave(connection)

    def drop(self, connection: Connection) -> None:
        """The connection is gone, and with it the request it was receiving."""
        self._waiting.pop(connection, None)
        self.give(self._leave(connection))

    def give(self, size_bytes: int) -> None:
        """Return bytes taken earlier and wake, in the order they came, as many waiters as may find some."""
        self.bytes_taken -= size_bytes
        assert self.bytes_taken >= 0, "gave back more than was taken"
        if not self._waiting:
            return
        for connection in tuple(self._waiting):
            if self.exhausted:
                break
            self._wake(connection)

    def wait(self, connection: Connection, woken: Callable[[], object]) -> None:
        """Have `woken` called, once, when `take` is worth another try. It may call `wait` again."""
        self._waiting[connection] = woken

    def _oldest(self) -> Connection | None:
        return next(iter(self._receiving), None)

    def _leave(self, connection: Connection) -> int:
        """The bytes it was charged with. The next in age may overdraw from now on."""
        held = self._receiving.pop(connection, 0)
        if self._waiting:
            oldest = self._oldest()
            if oldest in self._waiting:
                self._wake(oldest)
        return held

    def _wake(self, connection: Connection) -> None:
        woken = self._waiting.pop(connection, None)
        if woken is not None:
            woken()
