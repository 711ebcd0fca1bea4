"""Bounds the memory that clients' requests hold: the buffers they are received into, and the parts that
handlers keep.

A connection is charged for its buffer beyond the size every connection has, and for a request from its dispatch to
its answer if its handler keeps it: for its decoded size, before it is decoded. Only held memory is charged: a request
that has been appended, or waits in a consumer group (which charges for what it keeps), is not.

Buffers grow by permission. Small ones need none, so that a client that asks for little is served whatever others
hold. Usual ones may take all there is, large ones half of it, and one address half of either, so that no client and
no size of request can take it from all others. A buffer that may not grow waits, in the order of asking; the one that
has been growing for longest may always go on, so that no set of half-read requests can wait for each other. The same
holds for requests that take much more memory decoded than they came in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from mainstem.kernel import untrack
from mainstem.ports import ANY_BYTES
from mainstem.server.receive_buffer import START_BYTES, Growth

USUAL_BYTES_MAX = 2 * 1024 * 1024
"""A buffer of this size holds a Produce request with a batch of the largest default size (1 MiB) and some
more; larger buffers count as large."""

LARGE_SHARE = 2
"""Large buffers together get one part in so many of the whole."""

HOST_SHARE = 2
"""One address gets one part in so many of the whole, and of the large buffers' part."""

SMALL_BYTES_MAX = START_BYTES
"""A request of at most this size is not charged while its handler keeps it: a connection has one at a
time."""


class Account:
    """The memory that one connection holds."""

    __slots__ = ("buffer_bytes_max", "buffered", "host", "kept")

    def __init__(self, host: str) -> None:
        self.host = host
        self.buffered = 0
        """The size of its buffer beyond the size every connection has."""
        self.kept = 0
        """Requests of this connection that handlers keep."""
        self.buffer_bytes_max = ANY_BYTES
        """Its buffer gets no larger than this, whatever is left."""
        untrack(self)  # it holds a text and numbers

    @property
    def held(self) -> int:
        return self.buffered + self.kept

    @property
    def large(self) -> int:
        """Its bytes in the large buffers' part."""
        return self.buffered if self.buffered > USUAL_BYTES_MAX else 0


class RequestBudget:
    """The accounts of all connections of a node, and those that wait for memory."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_taken = 0
        self.bytes_most = 0
        """The most bytes taken at any time since this was last set."""
        self._large_taken = 0
        self._by_host: Counter[str] = Counter()
        self._large_by_host: Counter[str] = Counter()
        self._beyond: Account | None = None
        """The account that was let keep more than there is, since it had been growing for longest. No other
        is, until it has given that back: once its request is taken it no longer grows."""
        self._growing: dict[Account, None] = {}
        """Accounts with a buffer beyond the usual start, the oldest first."""
        self._waiting: dict[Account, tuple[Callable[[], bool], Callable[[], object]]] = {}
        """Per waiting account: whether it may have its memory now, and how it is told."""

    @property
    def idle(self) -> bool:
        """Whether nothing is charged to anybody, and nobody is remembered."""
        return not (self.bytes_taken or self._large_taken or self._by_host or self._large_by_host or self._growing)

    @property
    def scarce(self) -> bool:
        """Whether an account waits."""
        return bool(self._waiting)

    @property
    def overdrawn(self) -> bool:
        """Whether more is kept than there is: a request's true size may be known only once it is read."""
        return self.bytes_taken > self.bytes_max

    def grow(self, account: Account, capacity: int) -> bool:
        """Charge an account for a buffer of `capacity` bytes; False, with nothing charged, when that is more
        than it may have now (then `wait`)."""
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

    def may_keep(self, account: Account, size_bytes: int) -> bool:
        """Whether a request that takes so many bytes decoded may be dispatched now; if not, `wait_to_keep`."""
        if self._has_for(account.host, size_bytes):
            return True
        return self._beyond is None and account is next(iter(self._growing), account)

    def keep(self, account: Account, size_bytes: int) -> None:
        """A handler keeps a request that takes so many bytes, until `give`."""
        if not self._has_for(account.host, size_bytes):
            self._beyond = account
        account.kept += size_bytes
        self._change(account, size_bytes, 0)

    def give(self, account: Account, size_bytes: int) -> None:
        """A request is answered, whether or not its connection is still there."""
        account.kept -= size_bytes
        if account is self._beyond and not account.kept:
            self._beyond = None
        self._change(account, -size_bytes, 0)

    def drop(self, account: Account) -> None:
        """The connection is gone, and its buffer with it."""
        self._waiting.pop(account, None)
        self.resized(account, 0)

    def wait(self, account: Account, capacity: int, woken: Callable[[], object]) -> None:
        """Have `woken` called, once, when `grow` is worth another try. It may call `wait` again."""
        self._waiting[account] = lambda: self._may_grow(account, capacity), woken

    def wait_to_keep(self, account: Account, size_bytes: int, woken: Callable[[], object]) -> None:
        """The same for `may_keep`."""
        self._waiting[account] = lambda: self.may_keep(account, size_bytes), woken

    def _may_grow(self, account: Account, capacity: int) -> bool:
        buffered = capacity - START_BYTES
        more = buffered - account.buffered
        if capacity > account.buffer_bytes_max:
            return False
        if more <= 0 or account is next(iter(self._growing), account):
            return True
        if not self._has_for(account.host, more):
            return False
        if buffered <= USUAL_BYTES_MAX:
            return True
        more_large, large_max = buffered - account.large, self.bytes_max // LARGE_SHARE
        return (
            self._large_taken + more_large <= large_max
            and self._large_by_host[account.host] + more_large <= large_max // HOST_SHARE
        )

    def _has_for(self, host: str, more: int) -> bool:
        """Whether `more` bytes are left, and the address may have them."""
        return self.bytes_taken + more <= self.bytes_max and self._by_host[host] + more <= self.bytes_max // HOST_SHARE

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
        """Wake the accounts that may grow now, in the order they came. They ask again, in turns of their
        own."""
        for account, (may_go_on, woken) in tuple(self._waiting.items()):
            if may_go_on():
                del self._waiting[account]
                woken()


class BudgetedGrowth(Growth):
    """Permits the buffer of one connection to grow as far as the budget does."""

    __slots__ = ("_account", "_budget")

    def __init__(self, budget: RequestBudget, account: Account) -> None:
        self._budget = budget
        self._account = account
        untrack(self)  # neither of them knows it

    def may_grow(self, capacity: int) -> bool:
        return self._budget.grow(self._account, capacity)

    def resized(self, capacity: int) -> None:
        self._budget.resized(self._account, capacity)
