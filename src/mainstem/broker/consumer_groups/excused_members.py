"""Members are not judged by time in which the node itself did not serve them.

A member whose request waits for its answer is silent because the node is: its session begins anew when the answer
leaves, and does not end before. A session that ends late ends in a node that was held up: heartbeats may lie in sockets
that nobody has read yet, so the member gets as much time again as was lost, a few times in a row.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from mainstem.broker.consumer_groups.timers import TimerKey, TimerKind, Timers
from mainstem.broker.machines.result import Ticket

ASK_AGAIN_MS = 1_000
"""Until a session whose member waits for an answer is looked at again."""

LATE_MS = 250
"""A node that looks at its timers so late was held up."""

EXCUSES_MAX = 3
"""In a row: a node that is always late would keep the partitions of dead members for good."""


class _Excuse(NamedTuple):
    until_ms: int
    number: int
    """How many in a row this is."""


class ExcusedMembers:
    """Of one machine, by the timers of their sessions."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._asked: dict[Ticket, TimerKey] = {}
        self._waiting: Counter[TimerKey] = Counter()
        """How many answers each member waits for."""
        self._excuses: dict[TimerKey, _Excuse] = {}

    def asked(self, ticket: Ticket, group_id: str, member_id: str) -> None:
        """A member's request is taken; `answered` follows, unless the machine is thrown away."""
        key = TimerKey(TimerKind.SESSION, group_id, member_id)
        self._asked[ticket] = key
        self._waiting[key] += 1

    def answered(self, ticket: Ticket) -> TimerKey | None:
        """An answer has left. Returns the session of a member that waited for it, if it has one."""
        key = self._asked.pop(ticket, None)
        if key is None:
            return None
        self._waiting[key] -= 1
        if not self._waiting[key]:
            del self._waiting[key]
        return key if key in self._timers else None

    def is_excused(self, timer: TimerKey, deadline_ms: int, now_ms: int) -> bool:
        """Whether a session that was to end at `deadline_ms` goes on; it has another deadline then."""
        if timer.kind != TimerKind.SESSION:
            return False
        excuse = self._excuses.pop(timer, None)
        if timer in self._waiting:
            self._timers.set(timer, now_ms + ASK_AGAIN_MS)
            return True
        number = excuse.number if excuse is not None and excuse.until_ms == deadline_ms else 0
        late_ms = now_ms - deadline_ms
        if late_ms < LATE_MS or number >= EXCUSES_MAX:
            return False
        self._excuses[timer] = _Excuse(now_ms + late_ms, number + 1)
        self._timers.set(timer, now_ms + late_ms)
        return True
