"""The names of the deadlines of one consumer group machine."""

from __future__ import annotations

from typing import NamedTuple

from mainstem.broker.machines.deadlines import Deadlines


class TimerKind:
    """The kinds of timers; their order breaks ties between timers due at the same time."""

    SESSION = 0
    JOIN = 1
    SYNC = 2
    EXPIRY = 3
    REVOCATION = 4
    REJOIN = 5
    """A classic member of a group that the coordinator assigns was told to join again."""
    FETCH = 6
    """Such a member has joined, and is to fetch its assignment."""
    WORK = 7
    """Work on all members of a group is not finished."""


class TimerKey(NamedTuple):
    kind: int
    group_id: str = ""
    member_id: str = ""


class Timers(Deadlines[TimerKey]):
    """Deadlines by key, in monotonic milliseconds."""
