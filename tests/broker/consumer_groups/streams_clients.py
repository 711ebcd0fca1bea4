"""Members of a streams group as the protocol wants them: they run what they are given until they are told to give it
up, and name what they have whenever that has changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from tests.broker.consumer_groups.heartbeats import GROUP, REBALANCE_MS, Table

from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.consumer_groups.step import Caller
from mainstem.broker.consumer_groups.streams.streams_group import StreamsGroup
from mainstem.broker.consumer_groups.streams.streams_heartbeat import StreamsAnswer
from mainstem.broker.consumer_groups.streams.tasks import NO_TASKS, TaskSet, read_tasks, task_rows
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.streams_groups import (
    StreamsCopartitionGroup,
    StreamsEndpoint,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    StreamsSubtopology,
    StreamsTopicInfo,
    StreamsTopology,
)

CALLER = Caller(0, "client", "/10.0.0.1")
AT_ONCE = ConsumerGroupsConfig(
    rebalance_delay_ms=0, streams_initial_rebalance_delay_ms=0, streams_assignment_interval_ms=0
)
"""Tasks are assigned as soon as there is a reason to."""


def with_standbys(count: int) -> ConsumerGroupsConfig:
    return msgspec.structs.replace(AT_ONCE, streams_num_standby_replicas=count)


def internal(name: str, partitions: int = 0) -> StreamsTopicInfo:
    return StreamsTopicInfo(name=name, partitions=partitions, replication_factor=0, topic_configs=())


def part(
    name: str,
    *sources: str,
    reads: Iterable[StreamsTopicInfo] = (),
    writes: Iterable[str] = (),
    keeps: Iterable[StreamsTopicInfo] = (),
    alike: Iterable[tuple[tuple[int, ...], tuple[int, ...]]] = (),
) -> StreamsSubtopology:
    """A subtopology: `reads` and `writes` repartition topics, `keeps` changelogs; `alike`: groups of its sources and
    of its repartition topics that must have as many partitions as each other."""
    groups = [
        StreamsCopartitionGroup(source_topics=own, source_topic_regex=(), repartition_source_topics=made)
        for own, made in alike
    ]
    return StreamsSubtopology(
        subtopology_id=name,
        source_topics=sources,
        source_topic_regex=(),
        state_changelog_topics=tuple(keeps),
        repartition_sink_topics=tuple(writes),
        repartition_source_topics=tuple(reads),
        copartition_groups=tuple(groups),
    )


def application(*parts: StreamsSubtopology, epoch: int = 0) -> StreamsTopology:
    return StreamsTopology(epoch=epoch, subtopologies=parts)


WORDS = application(
    part("0", "lines", writes=["by-word"]),
    part("1", reads=[internal("by-word")], keeps=[internal("counts-changelog")]),
)
"""Counts words: tasks without state that read lines, and tasks with state that read a repartition topic."""


def beat(table: Table, member_id: str, epoch: int, **said: Any) -> StreamsAnswer:
    said = {"endpoint_information_epoch": 0, **said}
    return send(table, StreamsGroupHeartbeatRequest(group_id=GROUP, member_id=member_id, member_epoch=epoch, **said))


def send(table: Table, request: StreamsGroupHeartbeatRequest) -> StreamsAnswer:
    answer = table.ask(lambda ticket: table.machine.membership.streams.heartbeat(ticket, request, CALLER, table.now))
    assert isinstance(answer, StreamsAnswer)
    return answer


def group_of(table: Table) -> StreamsGroup:
    return table.machine.state.streams[GROUP]


def make_internal_topics(table: Table, answer: StreamsAnswer) -> None:
    """Make the topics that an answer asks for, as the node does, and let the group look at them."""
    for topic in answer.to_make:
        table.make_topic(topic.info.name, topic.partitions)
    table.wait(1_000)


class StreamsMemory:
    """A member's memory, through all its lives: it makes requests (`request`), and learns from answers (`heard`)."""

    def __init__(
        self,
        member_id: str,
        *,
        group: str = GROUP,
        process: str = "",
        topology: StreamsTopology = WORDS,
        endpoint: StreamsEndpoint | None = None,
    ) -> None:
        self.member_id = member_id
        self.group = group
        self.process = process or f"process of {member_id}"
        self.topology = topology
        self.endpoint = endpoint
        self.epoch = 0
        self.endpoint_epoch = 0
        self.tasks = NO_TASKS
        self.answer: StreamsGroupHeartbeatResponse | None = None
        """The last one that came."""
        self._told: TaskSet | None = None
        """The tasks that it last named as its own; None: it owes the coordinator everything."""

    @property
    def active(self) -> set[tuple[str, int]]:
        return {(name, index) for name, indexes in self.tasks.active.items() for index in indexes}

    @property
    def standby(self) -> set[tuple[str, int]]:
        return {(name, index) for name, indexes in self.tasks.standby.items() for index in indexes}

    @property
    def statuses(self) -> dict[int, str]:
        assert self.answer is not None
        return {status.status_code: status.status_detail for status in self.answer.status or ()}

    def request(self, **also: Any) -> StreamsGroupHeartbeatRequest:
        everything = self.epoch == 0 or self._told is None
        said: dict[str, Any] = {"endpoint_information_epoch": self.endpoint_epoch, **also}
        if everything:
            said |= {
                "rebalance_timeout_ms": REBALANCE_MS,
                "process_id": self.process,
                "user_endpoint": self.endpoint,
                "client_tags": (),
            }
        if self.epoch == 0:
            said["topology"] = self.topology
        if everything or self._told != self.tasks:
            said["active_tasks"] = task_rows(self.tasks.active)
            said["standby_tasks"] = task_rows(self.tasks.standby)
            said["warmup_tasks"] = task_rows(self.tasks.warmup)
        return StreamsGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=self.epoch, **said
        )

    def heard(self, request: StreamsGroupHeartbeatRequest, response: StreamsGroupHeartbeatResponse) -> ErrorCode:
        self.answer = response
        code = ErrorCode(response.error_code)
        if code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.forget()
        elif code is ErrorCode.NONE:
            self._told = self._told if request.active_tasks is None else self.tasks
            self.epoch, self.endpoint_epoch = response.member_epoch, response.endpoint_information_epoch
            if response.active_tasks is not None:
                self.tasks = TaskSet(
                    active=read_tasks(response.active_tasks),
                    standby=read_tasks(response.standby_tasks or ()),
                    warmup=read_tasks(response.warmup_tasks or ()),
                )
        return code

    def missed(self) -> None:
        """An answer was lost."""
        self._told = None

    def forget(self) -> None:
        """It has no tasks any more, and is to join again."""
        self.epoch, self.tasks, self._told = 0, NO_TASKS, None


class StreamsClient(StreamsMemory):
    """A member of a group on a table."""

    def __init__(self, table: Table, member_id: str, **kind: Any) -> None:
        super().__init__(member_id, **kind)
        self.table = table

    def beat(self, *, loses_answer: bool = False) -> ErrorCode:
        """Send a heartbeat, and make the topics that the application lacks."""
        request = self.request()
        answer = send(self.table, request)
        if loses_answer:
            self.missed()
            return ErrorCode.NONE
        make_internal_topics(self.table, answer)
        return self.heard(request, answer.response)

    def leave(self, **also: Any) -> ErrorCode:
        answer = beat(self.table, self.member_id, -1, **also)
        self.forget()
        return ErrorCode(answer.response.error_code)


def settle(*clients: StreamsClient) -> None:
    """Let everybody hear of everything."""
    for _ in range(6):
        for client in clients:
            code = client.beat()
            assert code in (ErrorCode.NONE, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID), code
