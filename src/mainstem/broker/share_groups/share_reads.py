"""Answers the handlers of share groups: where to read, which of it a member gets, and what becomes of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from uuid import UUID

from mainstem.broker.errors import CoordinatorRefusal
from mainstem.broker.machines.result import Moment, Result, Ticket
from mainstem.broker.machines.runtime import heard
from mainstem.broker.share_groups.config import ShareGroupsConfig
from mainstem.broker.share_groups.records import WindowKey
from mainstem.broker.share_groups.served_states import ServedStates
from mainstem.broker.share_groups.sessions import ShareMember, ShareSessions
from mainstem.broker.share_groups.share_partition import Acquired
from mainstem.broker.share_groups.share_states import ShareStates
from mainstem.broker.share_groups.share_statistics import ShareCounts, samples_of
from mainstem.broker.share_groups.state_machine import (
    LogBounds,
    NextRead,
    ReadBatches,
    ShareStateMachine,
    WantedRecords,
)
from mainstem.broker.share_groups.window_events import Acknowledge, Acquire, Begin, Release
from mainstem.model import Sample, Topic
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.share_fetch import AcknowledgementBatch

RELEASED_AT_ONCE = 100
"""Windows of which a member's records are given back together: about two milliseconds."""

Event = Callable[[ShareStateMachine, Ticket, Moment], Result]


class Wakeups:
    """Those who wait until a window has something to give out."""

    def __init__(self) -> None:
        self._waiting: dict[WindowKey, set[asyncio.Event]] = {}

    def tell(self, key: WindowKey) -> None:
        for waiting in self._waiting.get(key, ()):
            waiting.set()

    def begin(self, keys: Iterable[WindowKey], waiting: asyncio.Event) -> None:
        for key in keys:
            self._waiting.setdefault(key, set()).add(waiting)

    def end(self, keys: Iterable[WindowKey], waiting: asyncio.Event) -> None:
        for key in keys:
            waiters = self._waiting.get(key)
            if waiters is not None:
                waiters.discard(waiting)
                if not waiters:
                    del self._waiting[key]


class ShareReads:
    """Over the state that `served` serves, which its owner starts and closes."""

    def __init__(
        self,
        config: ShareGroupsConfig,
        served: ServedStates,
        wakeups: Wakeups,
        counts: ShareCounts,
        states: ShareStates,
        config_of: Callable[[str], ShareGroupsConfig] | None = None,
    ) -> None:
        """`config_of` gives the settings of a group that has some of its own."""
        self.config_of = config_of or (lambda group_id: config)
        self.served = served
        self.wakeups = wakeups
        self.states = states
        self.sessions = ShareSessions(
            sessions_max=config.sessions_max,
            partitions_max=config.session_partitions_max,
            idle_ms_min=config.session_idle_ms_min,
        )
        self._counts = counts

    def has_begun(self, queue_id: int, key: WindowKey) -> bool:
        """Whether a group has come to a partition before; True as well where this node does not know."""
        return self.served.has_begun(queue_id, key)

    async def begin(self, queue_id: int, key: WindowKey, bounds: LogBounds) -> NextRead:
        """Raises `CoordinatorRefusal`, as all of these do."""
        answer = await self.served.submit(queue_id, key, Begin(bounds))
        if isinstance(answer, ErrorCode):
            raise CoordinatorRefusal(answer)
        assert isinstance(answer, NextRead)
        return answer

    async def acquire(
        self, queue_id: int, key: WindowKey, member_id: str, read: ReadBatches, wanted: WantedRecords
    ) -> list[Acquired]:
        answer: list[Acquired] = await self.served.submit(queue_id, key, Acquire(member_id, read, wanted))
        return answer

    async def acknowledge(
        self, queue_id: int, key: WindowKey, member_id: str, batches: Sequence[AcknowledgementBatch]
    ) -> ErrorCode:
        answer = await self.served.submit(queue_id, key, Acknowledge(member_id, batches))
        assert isinstance(answer, ErrorCode)
        return answer

    async def release(self, member: ShareMember, queues: Iterable[tuple[int, WindowKey]]) -> None:
        """A member's session is over: others get what it has of these windows, now or when its locks run out. Once the
        member is back in another session, what it has of the rest may come from there, and is left to it."""
        left = list(queues)
        for first in range(0, len(left), RELEASED_AT_ONCE):
            if self.sessions.has(member):
                return
            some = left[first : first + RELEASED_AT_ONCE]
            await asyncio.gather(*(self._release(member, queue_id, key) for queue_id, key in some))

    async def _release(self, member: ShareMember, queue_id: int, key: WindowKey) -> None:
        with contextlib.suppress(CoordinatorRefusal):
            await self.served.submit(queue_id, key, Release(member.member_id))

    def topic_deleted(self, topic: Topic) -> None:
        """Forget all windows over a topic, in the partitions that this node serves."""
        for partition in list(self.served.partitions.values()):
            try:
                partition.runtime.submit(_forgetting(topic.topic_id)).add_done_callback(heard)
            except CoordinatorRefusal:
                continue

    def samples(self) -> Iterable[Sample]:
        machines = [partition.runtime.machine for partition in list(self.served.partitions.values())]
        windows = [item for machine in machines if machine is not None for item in list(machine.windows.items())]
        return samples_of(windows, len(self.sessions), self._counts)


def _forgetting(of: str | UUID) -> Event:
    return lambda machine, ticket, now: machine.forget(ticket, of, now)
