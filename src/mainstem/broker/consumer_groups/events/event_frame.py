"""How each event of a consumer group machine begins and ends, and what all events go by."""

from __future__ import annotations

from collections.abc import Callable

from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.consumer_groups.epochs.subscribed_topics import CurrentTopics
from mainstem.broker.consumer_groups.excused_members import ExcusedMembers
from mainstem.broker.consumer_groups.logged_state import LoggedState
from mainstem.broker.consumer_groups.long_work import LongWork
from mainstem.broker.consumer_groups.members.consumer_group import ConsumerGroup
from mainstem.broker.consumer_groups.members.holdings import Holdings
from mainstem.broker.consumer_groups.offset_room import OffsetRoom
from mainstem.broker.consumer_groups.offsets import TopicId
from mainstem.broker.consumer_groups.step import Counts, Step
from mainstem.broker.consumer_groups.timers import TimerKey, TimerKind, Timers
from mainstem.broker.machines.result import Moment, Result

WORK = TimerKey(TimerKind.WORK)
"""The timer of all long work: it has run out whenever some is left."""


class EventFrame:
    """Of one machine, whose parts share it."""

    def __init__(
        self,
        state: LoggedState,
        config: ConsumerGroupsConfig,
        *,
        new_id: Callable[[], str],
        counts: Counts,
        holdings: Holdings,
        topics: CurrentTopics,
        topic_id_of: TopicId,
        config_of: Callable[[str], ConsumerGroupsConfig],
        offset_room: OffsetRoom | None = None,
    ) -> None:
        self.state = state
        self.config = config
        self.counts = counts
        self.holdings = holdings
        self.topics = topics
        self.topic_id_of = topic_id_of
        self.offset_room = offset_room or OffsetRoom(config, lambda: state.offsets.count)
        self.timers = Timers()
        self.excused = ExcusedMembers(self.timers)
        self.long_work: LongWork[Step] = LongWork()
        self._new_id = new_id
        self._config_of = config_of

    def begin(self, now: Moment) -> Step:
        return Step(
            self.config, self._config_of, self.timers, self.counts, self.state.replay, self.state.replay_together,
            self.long_work, self._new_id, now, self.holdings,
        )  # fmt: skip

    def finish(self, step: Step, group: ConsumerGroup | None = None) -> Result:
        """`group`: the one that the event was about, forgotten if nothing is left of it."""
        if group is not None:
            self.forget_if_vacant(group)
        if self.long_work and WORK not in self.timers:
            self.timers.set(WORK, step.now.monotonic_ms)
        step.result.wake_at_ms = self.timers.next_deadline_ms()
        return step.result

    @property
    def has_room(self) -> bool:
        """Whether there may be one more group."""
        return self.state.group_count < self.config.groups_max

    def forget_if_vacant(self, group: ConsumerGroup) -> None:
        """Forget a classic group that has neither members nor anything in the log."""
        if group.vacant and not self.state.offsets.has(group.group_id):
            self.timers.cancel(TimerKey(TimerKind.JOIN, group.group_id))
            self.state.classic.pop(group.group_id, None)
