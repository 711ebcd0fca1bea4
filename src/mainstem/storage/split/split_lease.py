"""The split lease lets one splitter work at a time and fences off all others. No I/O; the clock is given.

A lease is proved by its random id and ordered by its epoch: the node's incarnation (a number that every start raises,
such as its term) above a count of grants. Leases live in memory only, so a restart ends them all: a splitter from
before is refused because its id is unknown, and the next lease has a larger epoch because the incarnation has. Time
only decides when a silent holder is given up; splits that it still hands in are refused by its id, and
compare-and-set at the manifest would refuse them once more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from mainstem.ports import Clock
from mainstem.rpc.messages.split import HeldLease, Lease, LeaseHeld, LeaseLost

LEASE_SECONDS = 15.0
"""Long enough to ride out a stalled process, short enough to wait for after a crash."""


class LeaseState(NamedTuple):
    holder: str
    epoch: int
    expires_in_seconds: float


@dataclass(slots=True)
class _Holding:
    lease: Lease
    holder: str
    yields: bool
    ends: float
    """By the monotonic clock."""


class SplitLease:
    """The node's one split lease. `incarnation` (below 2^31) must be larger at every start of the node."""

    def __init__(self, clock: Clock, incarnation: int, new_id: Callable[[], str]) -> None:
        self._clock = clock
        self._new_id = new_id
        self._incarnation = incarnation
        self._grants = 0
        self._holding: _Holding | None = None
        self._waiting: list[str] = []

    @property
    def holder(self) -> str:
        """The holder of the lease; empty when there is none."""
        if self._holding is not None and self._clock.monotonic() >= self._holding.ends:
            self._holding = None
        return self._holding.holder if self._holding else ""

    @property
    def held(self) -> LeaseState | None:
        """The lease in force, for status pages; None when there is none."""
        if not self.holder or self._holding is None:
            return None
        left = self._holding.ends - self._clock.monotonic()
        return LeaseState(self._holding.holder, self._holding.lease.epoch, left)

    def acquire(self, holder: str, *, yields: bool) -> Lease:
        """Grant the lease. Raises `LeaseHeld`, naming the holder, while another splitter has it."""
        if current := self.holder:
            raise LeaseHeld(f"the split lease is held by {current}")
        assert self._grants < 1 << 32
        self._grants += 1
        epoch = self._incarnation << 32 | self._grants
        lease = Lease(lease_id=self._new_id(), epoch=epoch, seconds=LEASE_SECONDS)
        self._holding = _Holding(lease, holder, yields, self._clock.monotonic() + LEASE_SECONDS)
        return lease

    def check(self, held: HeldLease) -> None:
        """Raises `LeaseLost` unless `held` is the lease now in force."""
        holder = self.holder
        current = self._holding.lease if self._holding else None
        if current is None or (current.lease_id, current.epoch) != (held.lease_id, held.epoch):
            now = f"{holder} holds epoch {current.epoch}" if current else "no splitter holds it"
            raise LeaseLost(f"the split lease of epoch {held.epoch} has ended; {now}")

    def is_in_force(self, held: HeldLease) -> bool:
        """Whether `held` is the lease now in force."""
        try:
            self.check(held)
        except LeaseLost:
            return False
        return True

    def renew(self, held: HeldLease) -> str:
        """Prolong the lease. Returns the name of a splitter that waits for it, if it yields. Raises `LeaseLost`."""
        self.check(held)
        assert self._holding is not None
        self._holding.ends = self._clock.monotonic() + LEASE_SECONDS
        return self._waiting[0] if self._waiting and self._holding.yields else ""

    def release(self, held: HeldLease) -> None:
        """Give the lease back; nothing happens when it is no longer in force."""
        try:
            self.check(held)
        except LeaseLost:
            return
        self._holding = None

    def wait(self, holder: str) -> None:
        """Announce that `holder` waits, so that a holder that yields gives way."""
        self._waiting.append(holder)

    def leave(self, holder: str) -> None:
        self._waiting.remove(holder)
