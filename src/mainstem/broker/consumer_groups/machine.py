"""The consumer group machine: the consumer groups and offsets of one partition of `__consumer_offsets`. It does no
I/O.

Events go in (requests with a ticket, the passing of time), one `Result` comes out per event; see `result` for the
order of its effects. State that must survive a restart changes in `LoggedState.replay` alone: an event that changes it
produces a record and replays it at once. So the machine is always what its log says plus what the log does not hold
(waiting requests), and after a restart `replay` of the log makes the same machine again.

Invariants: records leave in the order they were replayed; every ticket is answered exactly once; a consumer group
that has neither members nor anything in the log is forgotten at the end of the event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.consumer_groups.epochs.subscribed_topics import CurrentTopics, no_topics
from mainstem.broker.consumer_groups.events.administration_events import AdministrationEvents
from mainstem.broker.consumer_groups.events.event_frame import EventFrame
from mainstem.broker.consumer_groups.events.membership_events import MembershipEvents
from mainstem.broker.consumer_groups.events.offset_events import OffsetEvents
from mainstem.broker.consumer_groups.logged_state import LoggedState, Section
from mainstem.broker.consumer_groups.members.holdings import Holdings
from mainstem.broker.consumer_groups.offset_room import OffsetRoom
from mainstem.broker.consumer_groups.offsets import TopicId
from mainstem.broker.consumer_groups.step import Counts, MemberRead, ReadRecord
from mainstem.broker.consumer_groups.timers import TimerKind
from mainstem.broker.machines.result import Moment, Result, Ticket
from mainstem.protocol.schema import ZERO_UUID

RECORDS_AT_ONCE = 500
"""Written by timers in one event: about ten milliseconds. The sessions of thousands of members may end together."""

TIMERS_AT_ONCE = 500
"""Looked at in one event: most of those that run out together may be of members that are excused."""


class ConsumerGroupMachine:
    """One per partition. `new_id` gives unique strings, for member ids; `counts` may outlive the machine;
    `topic_id_of` gives the id of the topic that has a name, as this node knows it now, and `topics` all of them;
    `holdings` is charged for the members' memory; `config_of` gives the settings of a group, where
    some have their own; `offset_room` bounds the offsets of all machines of a node."""

    def __init__(
        self,
        config: ConsumerGroupsConfig,
        new_id: Callable[[], str],
        counts: Counts | None = None,
        topic_id_of: TopicId = lambda name: ZERO_UUID,
        holdings: Holdings | None = None,
        topics: CurrentTopics | None = None,
        config_of: Callable[[str], ConsumerGroupsConfig] | None = None,
        offset_room: OffsetRoom | None = None,
    ) -> None:
        holdings = holdings or Holdings(config.members_bytes_max)
        self.counts = counts or Counts()
        self.state = LoggedState(holdings)
        self._frame = EventFrame(
            self.state,
            config,
            new_id=new_id,
            counts=self.counts,
            holdings=holdings,
            topics=topics or no_topics(),
            topic_id_of=topic_id_of,
            config_of=config_of or (lambda group_id: config),
            offset_room=offset_room,
        )
        self.timers = self._frame.timers
        self.membership = MembershipEvents(self._frame)
        self.offsets = OffsetEvents(self._frame)
        self.administration = AdministrationEvents(self._frame)

    # --- the log -------------------------------------------------------------------------------------

    def replay(self, record: ReadRecord | MemberRead) -> None:
        """Apply the next record of the log."""
        self.state.replay(record)

    def lose(self) -> None:
        """The next part of the log cannot be read. Members may know of a generation that this machine has not
        heard of: they are told that the generation is another, and join again."""
        self.state.offsets.lose()

    def sections(self) -> list[Section]:
        """The contents of a snapshot, one after the other."""
        return self.state.sections()

    def snapshot(self, section: Section) -> Iterator[ReadRecord]:
        """The records that make a section as it is now; none when it is gone."""
        return self.state.snapshot(section)

    # --- time ----------------------------------------------------------------------------------------

    def recovered(self, now: Moment) -> Result:
        """The whole log has been replayed: from now on time passes for its members and offsets."""
        step = self._frame.begin(now)
        self.membership.recovered(step)
        self.offsets.recovered(step)
        return self._frame.finish(step)

    def advance(self, now: Moment) -> Result:
        """Time has passed: fire the timers that have run out. An early call does no harm."""
        step, timers = self._frame.begin(now), self._frame.timers
        for looked_at, timer in enumerate(timers.due(now.monotonic_ms), 1):
            if timer.kind == TimerKind.EXPIRY:
                self.offsets.expire(step)
            elif timer.kind == TimerKind.WORK:
                self._frame.long_work.go_on(step)
            elif not self._frame.excused.is_excused(timer, timers.given_ms, now.monotonic_ms):
                self.membership.time_over(step, timer)
            if len(step.result.records) >= RECORDS_AT_ONCE or looked_at >= TIMERS_AT_ONCE:
                break  # the others are due at once again
        return self._frame.finish(step)

    def answered(self, tickets: Iterable[Ticket], now: Moment) -> None:
        """These answers have left."""
        step = self._frame.begin(now)
        for ticket in tickets:
            self.membership.answered(step, ticket)
