"""A bound on what clients' requests hold in memory: the buffers they are received into, and what handlers keep of them.

A connection is charged for its buffer beyond the size every connection has, and for a request from its dispatch to its
answer if its handler keeps it. What is held is charged and nothing else: a request that has been appended, or waits in
a consumer group (which charges for what it keeps), is not.

Buffers grow by permission. Small ones need none, so that who asks for little is served whatever others hold. Usual ones
may take all there is, large ones half of it, and one address half of either, so that no client and no size of request
can take it from all others. Who may not grow waits, in the order of asking; the one that has been growing for longest
may always go on, so that no set of half-read requests can wait for each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from mainstem.server.receive_buffer import START_BYTES

USUAL_BYTES_MAX = 2 * 1024 * 1024
"""What a buffer grows to for a Produce request with a batch of the largest default size (1 MiB) and some more; larger
ones are large."""

LARGE_SHARE = 2
"""Large buffers get one part in so many of the whole."""

HOST_SHARE = 2
"""One address gets one part in so many of the whole, and of what large buffers get."""

SMALL_BYTES_MAX = START_BYTES
"""A request of this size or less is not charged while its handler keeps it: a connection has one at a time."""


class Account:
    """What one connection holds."""

    __slots__ = ("buffered", "host", "kept")

    def __init__(self, host: str) -> None:
        self.host = host
        self.buffered = 0
        """The size of its buffer beyond the size every connection has."""
        self.kept = 0
        """Requests of this connection that handlers keep."""

    @property
    def held(self) -> int:
        return self.buffered + self.kept

    @property
    def large(self) -> int:
        """What it has of that part which large buffers get."""
        return self.buffered if self.buffered > USUAL_BYTES_MAX else 0


class RequestBudget:
    """Of all connections of a node."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_taken = 0
        self.bytes_most = 0
        """Taken at any time since this was last set."""
        self._large_taken = 0
        self._by_host: Counter[str] = Counter()
        self._large_by_host: Counter[str] = Counter()
        self._growing: dict[Account, None] = {}
        """Accounts with a buffer beyond the usual start, the oldest first."""
        self._waiting: dict[Account, tuple[int, Callable[[], object]]] = {}
        """To which size each wants to grow, and how it is told."""

    @property
    def scarce(self) -> bool:
        """Somebody waits."""
        return bool(self._waiting)

    def grow(self, account: Account, capacity: int) -> bool:
        """Charge an account for a buffer of `capacity` bytes; False, and nothing is charged, when that is more than
        there is for it now (then `wait`)."""
        if not self._may_grow(account, capacity):
            return False
        self.resized(account, capacity)
        return True

    def resized(self, account: Account, capacity: int) -> None:
        """A buffer has `capacity` bytes now."""
        buffered = max(0, capacity - START_BYTES)
        if buffered == account.buffered:
            return
        large = account.large
        change, account.buffered = buffered - account.buffered, buffered
        if buffered:
            self._growing.setdefault(account)
        else:
            self._growing.pop(account, None)
        self._change(account, change, account.large - large)

    def keep(self, account: Account, size_bytes: int) -> None:
        """A handler keeps a request of so many bytes, until `give`."""
        account.kept += size_bytes
        self._change(account, size_bytes, 0)

    def give(self, account: Account, size_bytes: int) -> None:
        """A request is answered, whether or not its connection is still there."""
        account.kept -= size_bytes
        self._change(account, -size_bytes, 0)

    def drop(self, account: Account) -> None:
        """The connection is gone, and its buffer with it."""
        self._waiting.pop(account, None)
        self.resized(account, 0)

    def wait(self, account: Account, capacity: int, woken: Callable[[], object]) -> None:
        """Have `woken` called, once, when `grow` is worth another try. It may call `wait` again."""
        self._waiting[account] = capacity, woken

    def _may_grow(self, account: Account, capacity: int) -> bool:
        buffered = capacity - START_BYTES
        more = buffered - account.buffered
        if more <= 0 or account is next(iter(self._growing), account):
            return True
        if (
            self.bytes_taken + more > self.bytes_max
            or self._by_host[account.host] + more > self.bytes_max // HOST_SHARE
        ):
            return False
        if buffered <= USUAL_BYTES_MAX:
            return True
        more_large, large_max = buffered - account.large, self.bytes_max // LARGE_SHARE
        return (
            self._large_taken + more_large <= large_max
            and self._large_by_host[account.host] + more_large <= large_max // HOST_SHARE
        )

    def _change(self, account: Account, more: int, more_large: int) -> None:
        host = account.host
        self.bytes_taken += more
        self.bytes_most = max(self.bytes_most, self.bytes_taken)
        self._by_host[host] += more
        if not self._by_host[host]:
            del self._by_host[host]
        if more_large:
            self._large_taken += more_large
            self._large_by_host[host] += more_large
            if not self._large_by_host[host]:
                del self._large_by_host[host]
        assert self.bytes_taken >= 0, "gave back more than was taken"
        if self._waiting and more < 0:
            self._wake()

    def _wake(self) -> None:
        """Those who may grow now, in the order they came. They ask again, in turns of their own."""
        for account, (capacity, woken) in tuple(self._waiting.items()):
            if self._may_grow(account, capacity):
                del self._waiting[account]
                woken()
