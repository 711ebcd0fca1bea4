"""Counts the memory that members of consumer groups hold: their subscriptions, which are bytes of the clients'
choice, and their assignments. All partitions of a node share one account, with a share for each address.

A partition's machine has an account of its own within it, so that all of it is given back when the machine is thrown
away. Joins ask for room before a member is added; state from the log is taken in any case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

HOST_SHARE = 2
"""The members of one address get one part in so many of the whole."""


class Holdings:
    """Bytes held, per client address. `within`: the account that this one is a part of."""

    def __init__(self, bytes_max: int = 0, *, within: Holdings | None = None) -> None:
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self._within = within
        self._by_host: Counter[str] = Counter()

    @property
    def hosts(self) -> Collection[str]:
        """The owners of held bytes."""
        return self._by_host.keys()

    def has_room(self, host: str, more: int) -> bool:
        """Whether the client at this address may hold `more` additional bytes."""
        if more <= 0:
            return True
        if self._within is not None:
            return self._within.has_room(host, more)
        return self.bytes_held + more <= self.bytes_max and self._by_host[host] + more <= self.bytes_max // HOST_SHARE

    def change(self, host: str, more: int) -> None:
        """Note that the client at this address holds `more` additional bytes, or fewer if negative."""
        self.bytes_held += more
        self._by_host[host] += more
        if not self._by_host[host]:
            del self._by_host[host]
        if self._within is not None:
            self._within.change(host, more)

    def give_all_back(self) -> None:
        """Give back all bytes of this account."""
        if self._within is not None:
            for host, size_bytes in self._by_host.items():
                self._within.change(host, -size_bytes)
        self.bytes_held = 0
        self._by_host.clear()
