"""Share sessions: the partitions that a member of a share group follows on this node, so that its requests name only
what changes.

A session is known by group and member. Its epoch rises with each request: 0 opens a session, in place of one that there
was, and -1 closes it; so does the end of the connection that brought its last request. There are at most
`sessions_max`: a new one evicts the one that was used least recently, if that has been idle for long enough. No I/O, no
clock: callers pass the time.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from mainstem.broker.share_groups.records import SharedPartition
from mainstem.protocol.error_codes import ErrorCode

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_EPOCH_MAX = 2**31 - 1


class ShareMember(NamedTuple):
    group_id: str
    member_id: str


@dataclass(slots=True)
class ShareSession:
    used_at_ms: int
    epoch: int = 1
    """The epoch that the next request has to carry."""
    followed: dict[SharedPartition, None] = field(default_factory=dict)
    """In the order in which they take their turn when a response is full."""
    connection_id: int = -1
    """Of the connection that brought its last request."""
    over: bool = False
    """Its member has closed it, or is gone, or has another one."""

    def rotate(self, served: SharedPartition) -> None:
        """A partition had its turn."""
        if served in self.followed:
            del self.followed[served]
            self.followed[served] = None


class ShareSessions:
    def __init__(self, *, sessions_max: int, partitions_max: int, idle_ms_min: int) -> None:
        self._sessions_max = sessions_max
        self._partitions_max = partitions_max
        self._idle_ms_min = idle_ms_min
        self._sessions: OrderedDict[ShareMember, ShareSession] = OrderedDict()
        """Ordered by last use, the oldest first."""
        self._of_connection: dict[int, dict[ShareMember, None]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def has(self, member: ShareMember) -> bool:
        return member in self._sessions

    def enter(self, member: ShareMember, epoch: int, now_ms: int, connection_id: int = -1) -> ShareSession | ErrorCode:
        """The session of a request that carries this epoch and came by this connection, opened or moved on; a final
        epoch finds it as it is."""
        session = self._sessions.get(member)
        if epoch == INITIAL_EPOCH:
            if session is None and not self._make_room(now_ms):
                return ErrorCode.SHARE_SESSION_LIMIT_REACHED
            self.close(member)
            session = self._sessions[member] = ShareSession(now_ms)
        elif session is None:
            return ErrorCode.SHARE_SESSION_NOT_FOUND
        elif epoch == FINAL_EPOCH:
            return session
        elif epoch != session.epoch:
            return ErrorCode.INVALID_SHARE_SESSION_EPOCH
        else:
            session.epoch = 1 if session.epoch == _EPOCH_MAX else session.epoch + 1
        session.used_at_ms = now_ms
        self._sessions.move_to_end(member)
        if session.connection_id != connection_id:
            self._part(member, session)
            session.connection_id = connection_id
        self._of_connection.setdefault(connection_id, {})[member] = None
        return session

    def follow(self, session: ShareSession, partition: SharedPartition) -> bool:
        """Whether the session has room for a partition that it follows from now on."""
        if partition not in session.followed and len(session.followed) >= self._partitions_max:
            return False
        session.followed.setdefault(partition)
        return True

    def close(self, member: ShareMember) -> None:
        """Forget a session; that there is none is no error."""
        session = self._sessions.pop(member, None)
        if session is not None:
            session.over = True
            self._part(member, session)

    def left_by(self, connection_id: int) -> list[tuple[ShareMember, ShareSession]]:
        """Close the sessions of a connection that has ended, and tell them."""
        found = [(member, self._sessions[member]) for member in self._of_connection.get(connection_id, ())]
        for member, _ in found:
            self.close(member)
        return found

    def _part(self, member: ShareMember, session: ShareSession) -> None:
        members = self._of_connection.get(session.connection_id, {})
        members.pop(member, None)
        if not members:
            self._of_connection.pop(session.connection_id, None)

    def _make_room(self, now_ms: int) -> bool:
        if len(self._sessions) < self._sessions_max:
            return True
        oldest, session = next(iter(self._sessions.items()))
        if now_ms - session.used_at_ms < self._idle_ms_min:
            return False
        self.close(oldest)
        return True
