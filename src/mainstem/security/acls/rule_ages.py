"""Whether rules that another node judged by are older than this node can let pass.

All nodes apply the same log of metadata, so that its index says how new a node's rules are. A node that lags behind, or
stood still, judges by rules that may have been revoked; this node, which has applied the change, knows for how long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

CHANGES_MAX = 1_000
"""Changes of rules that are remembered until they are `staleness_ms` old; more of them count as one, of the newest."""


class RuleAges:
    """`version`: of the rules, another object after each change. `index`: of the newest metadata that this node has
    applied."""

    def __init__(
        self, version: Callable[[], object], index: Callable[[], int], monotonic: Callable[[], float], seconds: float
    ) -> None:
        """Rules may be out of date for `seconds`."""
        self._version = version
        self._index = index
        self._monotonic = monotonic
        self._seconds = seconds
        self._known = version()
        self._changes: deque[tuple[int, float]] = deque()
        """The index of the metadata when a change of the rules was seen, and the time; younger than `seconds`."""
        self._needed = 0
        """A node that judges must have applied the metadata up to here."""

    def look(self) -> None:
        """See whether the rules have changed; to be called now and then."""
        version, now = self._version(), self._monotonic()
        if version is not self._known:
            self._known = version
            if len(self._changes) >= CHANGES_MAX:
                self._changes.pop()
            self._changes.append((self._index(), now))
        while self._changes and now - self._changes[0][1] >= self._seconds:
            self._needed = self._changes.popleft()[0]

    def are_old(self, judged_at: int) -> bool:
        """Whether the rules had changed, longer ago than they may be out of date, at a node that had applied the
        metadata up to this index."""
        self.look()
        return judged_at < self._needed
