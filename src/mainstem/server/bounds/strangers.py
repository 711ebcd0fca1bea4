"""Connections of listeners with SASL whose clients have not shown who they are.

They are few, in all and per address, and have little time. If one too many comes, the oldest of them goes: a client
that shows who it is takes milliseconds, so that a crowd that does not cannot keep it out for long."""

from __future__ import annotations

from typing import Protocol

from mainstem.ports import Session


class Stranger(Protocol):
    session: Session


class Strangers:
    """`seconds_max`: how long a client may take."""

    def __init__(self, strangers_max: int, per_host_max: int, seconds_max: float) -> None:
        self._strangers_max = strangers_max
        self._per_host_max = per_host_max
        self._seconds_max = seconds_max
        self._since: dict[Stranger, float] = {}  # in the order in which they came
        self._by_host: dict[str, dict[Stranger, None]] = {}

    def __len__(self) -> int:
        """Those that have become known since may be among them until somebody looks."""
        return len(self._since)

    def add(self, stranger: Stranger, now: float) -> Stranger | None:
        """A connection came. Returns the one that is to be closed for it, if there are too many."""
        host = stranger.session.host
        there = self._by_host.setdefault(host, {})
        if len(there) >= self._per_host_max:
            self._drop_known(tuple(there))
        elif len(self._since) >= self._strangers_max:
            self._drop_known(tuple(self._since))
        there = self._by_host.setdefault(host, {})
        oldest = None
        if len(there) >= self._per_host_max:
            oldest = next(iter(there))
        elif len(self._since) >= self._strangers_max:
            oldest = next(iter(self._since))
        if oldest is not None:
            self.forget(oldest)
        self._since[stranger] = now
        self._by_host.setdefault(host, {})[stranger] = None
        return oldest

    def overdue(self, now: float) -> list[Stranger]:
        """Those whose time is over; they are forgotten here."""
        self._drop_known(tuple(self._since))
        found = []
        for stranger, since in self._since.items():
            if now - since < self._seconds_max:
                break
            found.append(stranger)
        for stranger in found:
            self.forget(stranger)
        return found

    def forget(self, stranger: Stranger) -> None:
        """A connection is closed, or not strange any more."""
        if self._since.pop(stranger, None) is None:
            return
        host = stranger.session.host
        there = self._by_host[host]
        del there[stranger]
        if not there:
            del self._by_host[host]

    def _drop_known(self, strangers: tuple[Stranger, ...]) -> None:
        for stranger in strangers:
            if stranger.session.authenticated:
                self.forget(stranger)
