"""One partition of `__consumer_offsets`: a consumer group machine in a runtime, and what consumer groups add to it.

They depend on the topics there are: offsets of topics that are gone are forgotten, at a load and whenever a topic is
deleted, also while the log is being loaded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.consumer_groups.epochs.subscribed_topics import CurrentTopics
from mainstem.broker.consumer_groups.machine import ConsumerGroupMachine
from mainstem.broker.consumer_groups.members.holdings import Holdings
from mainstem.broker.consumer_groups.offset_room import OffsetRoom
from mainstem.broker.consumer_groups.offsets import TopicId, is_stale
from mainstem.broker.consumer_groups.step import Counts, LogRecord
from mainstem.broker.errors import LogUnavailable
from mainstem.broker.machines.letting_go import let_go_in_turns
from mainstem.broker.machines.machine_log import Gap, MachineLog
from mainstem.broker.machines.machine_partition import MachinePartition, PartitionPlace
from mainstem.broker.machines.result import Answer, Moment, Result, Ticket
from mainstem.broker.machines.runtime import RECORDS_AT_ONCE, REPLAYED_AT_ONCE, heard
from mainstem.errors import MainstemError
from mainstem.model import FeatureLevel
from mainstem.ports import Clock
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_offsets import OffsetCommitKey
from mainstem.protocol.schema import ZERO_UUID

logger = logging.getLogger(__name__)

Event = Callable[[ConsumerGroupMachine, Ticket, Moment], Result]


class TopicsNow(NamedTuple):
    """The present topics, as far as offsets and subscriptions depend on them."""

    id_of: TopicId
    topics: CurrentTopics
    current: Callable[[], Awaitable[None]]
    """Returns once this node knows of all topics deleted or made before the call. Raises `MainstemError`."""


class CoordinatorPartition(MachinePartition[ConsumerGroupMachine]):
    """`topics` knows the present topics; `loaded` is called with the numbers of consumer groups and records after each
    load; `counts` outlives it."""

    def __init__(
        self,
        log: MachineLog[LogRecord],
        config: ConsumerGroupsConfig,
        clock: Clock,
        place: PartitionPlace,
        *,
        new_id: Callable[[], str],
        counts: Counts,
        holdings: Holdings,
        topics: TopicsNow,
        config_of: Callable[[str], ConsumerGroupsConfig] | None = None,
        offset_room: OffsetRoom | None = None,
        feature_level: Callable[[], FeatureLevel] = FeatureLevel.newest,
        loaded: Callable[[int, int], None] = lambda groups, records: None,
    ) -> None:
        super().__init__(log, clock, place, snapshot_after_bytes=config.snapshot_after_bytes)
        self._config = config
        self._new_id = new_id
        self._config_of = config_of
        self._offset_room = offset_room
        self._counts = counts
        self._held = Holdings(within=holdings)
        """The memory held by the members of this partition's consumer groups."""
        self._topics = topics
        self._feature_level = feature_level
        self._loaded = loaded
        self._deleted: dict[str, UUID] = {}
        """Names and ids of topics that were deleted while the log was being loaded."""
        self._stale: list[OffsetCommitKey] = []
        """The offsets of topics that are gone, found at the last load."""

    def topic_deleted(self, name: str, topic_id: UUID) -> asyncio.Future[Any] | None:
        """Forget the offsets committed for a topic; the future is done when that is durable, None: it is done once
        the log is loaded. Raises `CoordinatorRefusal`."""
        if self.runtime.machine is None:
            self._deleted[name] = topic_id
            return None
        return self.submit(lambda machine, ticket, now: machine.offsets.forget_topic(ticket, name, topic_id, now))

    # --- the runtime's MachineKind ----------------------------------------------------------------------

    async def prepare(self) -> None:
        await super().prepare()
        self._deleted.clear()
        await self._know_topics()

    def make(self) -> ConsumerGroupMachine:
        return ConsumerGroupMachine(
            self._config,
            self._new_id,
            self._counts,
            self._topics.id_of,
            self._held,
            self._topics.topics,
            self._config_of,
            self._offset_room,
        )

    async def sort_out(self, machine: ConsumerGroupMachine) -> None:
        """Find the offsets of topics that are gone. An offset without a topic id, as older versions wrote it, is taken
        for one of the topic that has the name now."""
        self._stale = []
        adopted = False
        for looked_at, other in enumerate(machine.state.offsets.of_other_topics(self._topics.id_of), 1):
            if other is not None:
                key, value = other
                current = self._topics.id_of(key.topic)
                if current is None or is_stale(value, current):
                    self._stale.append(key)
                elif value.topic_id == ZERO_UUID != current and key.topic not in self._deleted:
                    machine.state.offsets.adopt(key, current)
                    adopted = True
            if looked_at % REPLAYED_AT_ONCE == 0:
                await asyncio.sleep(0)
        if adopted and self._feature_level() >= FeatureLevel.HARDENED:  # records name the topic from then on
            self.runtime.rewrite()

    def accepts_loss(self, machine: ConsumerGroupMachine, gaps: Sequence[Gap], missing: str, *, new: bool) -> bool:
        if self._config.accept_lost_offsets:
            logger.error(
                "consumer group coordinator, %s: offsets %s are lost, and taken for nothing, as "
                "groups.accept_lost_offsets says: %d committed offsets may be older than the last that was committed",
                self.name, missing, machine.state.offsets.doubtful_count,
            )  # fmt: skip
            machine.state.offsets.accept()
            self._counts.records_lost += sum(gap.end - gap.start for gap in gaps)
            return True
        if new:
            logger.error(
                "consumer group coordinator, %s: offsets %s cannot be read. Consumer groups of this partition go on, "
                "but those that ask for an offset that was not committed since (%d are known from before) are told "
                "KAFKA_STORAGE_ERROR. Restore the file named in the lines before, on this node or a replica; or "
                "commit offsets for these groups (mainstem group reset-offsets); or, to give up what is missing for "
                "all of them, restart with groups.accept_lost_offsets=true",
                self.name, missing, machine.state.offsets.doubtful_count,
            )  # fmt: skip
        return False

    def serve(self, machine: ConsumerGroupMachine, records: int) -> None:
        runtime, stale = self.runtime, self._stale
        for first in range(0, len(stale), RECORDS_AT_ONCE):
            runtime.take(machine.offsets.forget_stale(stale[first : first + RECORDS_AT_ONCE], runtime.now()))
        for name, topic_id in self._deleted.items():
            if (forgotten := self.topic_deleted(name, topic_id)) is not None:
                forgotten.add_done_callback(heard)
        logger.debug(
            "consumer group coordinator, %s: %d groups from %d records", self.name, machine.state.group_count, records
        )
        self._loaded(machine.state.group_count, records)

    def answered(self, machine: ConsumerGroupMachine, answers: Sequence[Answer], now: Moment) -> None:
        machine.answered((answer.ticket for answer in answers), now)

    def failed(self) -> None:
        self._counts.log_failures += 1

    def dropped(self, machine: ConsumerGroupMachine | None) -> None:
        self._held.give_all_back()
        if machine is not None:
            let_go_in_turns(machine.state.let_go())

    async def _know_topics(self) -> None:
        """Learn of all topics deleted before this node began to serve; later deletions are reported to it.
        Raises `LogUnavailable`."""
        try:
            await self._topics.current()
        except MainstemError as error:
            what = f"which topics there are is not known: {error}"
            raise LogUnavailable(what, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) from error
