"""Incremental fetch sessions (KIP-227): the broker remembers the partitions that a consumer follows, so that requests
carry only changes, and responses only partitions with news.

A session is known by a random id and moves from epoch to epoch, one per request. The three kinds of requests,
by (session id, epoch):

=====  ==============  ==========================================================================
id     epoch           meaning
=====  ==============  ==========================================================================
any    -1 (FINAL)      close the session, if any; answer in full, without a session
any    0 (INITIAL)     close the session, if any; answer in full, open a new session if there is room
id     its epoch       apply the changes, answer what is news
=====  ==============  ==========================================================================

Sessions hold at most `sessions_max` entries and `partitions_max` partitions, each of them
`PARTITIONS_PER_SESSION_MAX`: clients of more partitions name all of them each time. At either bound a new session may
evict the one used least recently, if that has been idle for `idle_ms_min`; else its client goes on without one. No
I/O, no clock: callers pass the time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from mainstem.kernel import FetchPlan

NO_SESSION = 0
FINAL_EPOCH = -1
INITIAL_EPOCH = 0
_EPOCH_MAX = 2**31 - 1

PARTITIONS_PER_SESSION_MAX = 60_000
"""When a client changes what it follows, one turn of the event loop looks through all of it: ten
milliseconds."""

Forgotten = Sequence[tuple[str | bytes, Sequence[int]]]
"""Partitions by topic, as `scan_fetch` has them."""


@dataclass(slots=True)
class FetchSession:
    session_id: int
    by_id: bool
    """Its topics are identified by id (versions from 13), not by name."""
    used_at_ms: int
    plan: FetchPlan
    """The partitions it follows, in the order in which they take their turn when a response is full, and what
    its client was told about each."""
    epoch: int = 1
    """The epoch that the next request has to carry."""

    def advance(self) -> None:
        self.epoch = 1 if self.epoch == _EPOCH_MAX else self.epoch + 1


class FetchSessions:
    def __init__(self, *, sessions_max: int, idle_ms_min: int, partitions_max: int, random: Random) -> None:
        self._sessions_max = sessions_max
        self._idle_ms_min = idle_ms_min
        self._partitions_max = partitions_max
        self._random = random
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        """Ordered by last use, the oldest first."""
        self.partitions_held = 0
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, session_id: int, now_ms: int) -> FetchSession | None:
        """The session of that id; it counts as used now."""
        session = self._sessions.get(session_id)
        if session is not None:
            session.used_at_ms = now_ms
            self._sessions.move_to_end(session_id)
        return session

    def open(self, plan: FetchPlan, now_ms: int, *, by_id: bool) -> FetchSession | None:
        """A new session that keeps the plan and follows its partitions; None when there is no room or nothing
        to follow."""
        if not len(plan) or not self._make_room(len(plan), now_ms):
            return None
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._random.randrange(1, 2**31)
        plan.remember()
        session = FetchSession(session_id, by_id, now_ms, plan)
        self._sessions[session_id] = session
        self.partitions_held += len(plan)
        return session

    def update(self, session: FetchSession, changed: FetchPlan, forgotten: Forgotten) -> bool:
        """Apply an incremental request to a session: partitions added or asked for again, and partitions
        dropped. False when the additions do not fit; nothing has changed then."""
        plan = session.plan
        additions = plan.additions(changed)
        if self.partitions_held + additions > self._partitions_max:
            return False
        if len(plan) + additions > PARTITIONS_PER_SESSION_MAX:
            return False
        before = len(plan)
        plan.update(changed, forgotten)
        self.partitions_held += len(plan) - before
        return True

    def close(self, session_id: int) -> None:
        """Forget a session; an unknown id is no error."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.partitions_held -= len(session.plan)

    def limit(self, sessions_max: int) -> None:
        """So many sessions are remembered from now on; what is too many goes as new ones come."""
        self._sessions_max = sessions_max

    def _make_room(self, partitions: int, now_ms: int) -> bool:
        if self._sessions_max == 0 or partitions > min(self._partitions_max, PARTITIONS_PER_SESSION_MAX):
            return False
        while len(self._sessions) >= self._sessions_max or self.partitions_held + partitions > self._partitions_max:
            oldest = next(iter(self._sessions.values()))
            if now_ms - oldest.used_at_ms < self._idle_ms_min:
                return False
            self.close(oldest.session_id)
            self.evictions += 1
        return True
