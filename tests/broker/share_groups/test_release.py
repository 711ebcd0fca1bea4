"""A member that comes back while its former session still gives records back keeps what its new session acquires."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from mainstem.broker.share_groups.config import ShareGroupsConfig
from mainstem.broker.share_groups.records import WindowKey
from mainstem.broker.share_groups.sessions import INITIAL_EPOCH, ShareMember
from mainstem.broker.share_groups.share_reads import RELEASED_AT_ONCE, ShareReads, Wakeups
from mainstem.broker.share_groups.share_statistics import ShareCounts
from mainstem.broker.share_groups.window_events import Release, WindowEvent

ADA = ShareMember("g", "ada")
QUEUES = [(number, WindowKey("g", UUID(int=1), number)) for number in range(2 * RELEASED_AT_ONCE + 50)]


class SlowStates:
    """Windows whose log is slow. They take a release at once, and answer it when `go` is set."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.released: list[int] = []

    async def submit(self, queue_id: int, key: WindowKey, event: WindowEvent) -> int:
        assert event == Release(ADA.member_id)
        self.released.append(queue_id)
        self.begun.set()
        await self.go.wait()
        return 1


def released(*, comes_back: bool) -> list[int]:
    """The queues of which a member's records are given back after its session has ended, in their order."""

    async def story() -> list[int]:
        states, nobody = SlowStates(), None
        served: Any = states
        elsewhere: Any = nobody
        reads = ShareReads(ShareGroupsConfig(), served, Wakeups(), ShareCounts(), elsewhere)
        ending = asyncio.create_task(reads.release(ADA, QUEUES))
        await states.begun.wait()
        if comes_back:
            reads.sessions.enter(ADA, INITIAL_EPOCH, 0)
        states.go.set()
        await ending
        return states.released

    return asyncio.run(story())


def test_a_member_that_is_back_keeps_what_its_new_session_acquires() -> None:
    assert released(comes_back=True) == [queue_id for queue_id, _ in QUEUES[:RELEASED_AT_ONCE]]


def test_all_of_a_member_that_stays_away_is_given_back() -> None:
    assert released(comes_back=False) == [queue_id for queue_id, _ in QUEUES]
