"""Share sessions: their epochs, and their bounds."""

from __future__ import annotations

from uuid import UUID

from mainstem.broker.share_groups.records import SharedPartition
from mainstem.broker.share_groups.sessions import (
    FINAL_EPOCH,
    ShareMember,
    ShareSession,
    ShareSessions,
)
from mainstem.protocol.error_codes import ErrorCode

ADA, BOB = ShareMember("g", "ada"), ShareMember("g", "bob")


def sessions() -> ShareSessions:
    return ShareSessions(sessions_max=1, partitions_max=2, idle_ms_min=100)


def test_epochs() -> None:
    held = sessions()
    assert held.enter(ADA, 1, 0) is ErrorCode.SHARE_SESSION_NOT_FOUND
    session = held.enter(ADA, 0, 0)
    assert isinstance(session, ShareSession)
    assert held.enter(ADA, 2, 0) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert held.enter(ADA, 1, 0) is session
    assert held.enter(ADA, 1, 0) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert held.enter(ADA, FINAL_EPOCH, 0) is session
    held.close(ADA)
    assert held.enter(ADA, FINAL_EPOCH, 0) is ErrorCode.SHARE_SESSION_NOT_FOUND


def test_a_new_session_evicts_an_idle_one_alone() -> None:
    held = sessions()
    held.enter(ADA, 0, 0)
    assert held.enter(BOB, 0, 99) is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert isinstance(held.enter(BOB, 0, 100), ShareSession)
    assert held.enter(ADA, 1, 100) is ErrorCode.SHARE_SESSION_NOT_FOUND
    assert len(held) == 1


def test_a_session_follows_so_many_partitions_in_turns() -> None:
    held = sessions()
    session = held.enter(ADA, 0, 0)
    assert isinstance(session, ShareSession)
    first, second, third = (SharedPartition(UUID(int=1), index) for index in range(3))
    assert held.follow(session, first)
    assert held.follow(session, second)
    assert held.follow(session, first)
    assert not held.follow(session, third)
    session.rotate(first)
    assert list(session.followed) == [second, first]


def test_sessions_end_with_the_connection_that_brought_their_last_request() -> None:
    held = ShareSessions(sessions_max=10, partitions_max=2, idle_ms_min=100)
    ada = held.enter(ADA, 0, 0, 7)
    bob = held.enter(BOB, 0, 0, 7)
    assert isinstance(ada, ShareSession)
    assert isinstance(bob, ShareSession)
    assert held.enter(BOB, 1, 0, 8) is bob
    assert held.left_by(7) == [(ADA, ada)]
    assert (ada.over, bob.over, held.has(ADA), held.has(BOB)) == (True, False, False, True)
    assert held.left_by(7) == []
    again = held.enter(BOB, 0, 0, 9)
    assert bob.over, "it has another one"
    assert held.left_by(8) == []
    assert held.left_by(9) == [(BOB, again)]
    assert not len(held)
    assert not held._of_connection  # noqa: SLF001  # nothing is kept of connections that are gone
