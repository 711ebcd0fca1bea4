"""Configures the topology of an application by the topics there are: how many partitions its internal topics have,
which of them are missing, which tasks there are, and what stands in the way.

A subtopology has as many tasks as the largest of its source topics has partitions. A repartition topic has as many as
its application says, else as many as the topics with which it must be alike, else as many as there are tasks in the
largest subtopology that writes to it. A changelog has a partition for each task. All of it is computed anew from the
topology's record and the topics: nothing here is in the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from mainstem.broker.errors import MemberRefused
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.streams_group_records import StreamsGroupTopologyValue
from mainstem.protocol.messages.streams_groups import (
    StreamsStatus,
    StreamsSubtopology,
    StreamsTopicInfo,
    StreamsTopology,
)

SUBTOPOLOGIES_MAX = 1_000
"""Subtopologies of one application. Applications have a handful; each costs a pass per heartbeat that configures."""

TOPIC_NAMES_MAX = 10_000
"""Names of topics in one topology, those that stand in it more than once included."""

TASKS_MAX = 10_000
"""Tasks of one application: the assignor takes half a second for so many with standbys, and holds up its node
meanwhile."""

NAMES_TOLD_MAX = 20
"""Names of topics in one line of a status."""


class Status:
    """Kafka's numbers of what a heartbeat's answer says about the group."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


PartitionsOf = Callable[[str], int | None]
"""How many partitions the topic of a name has; None: there is none."""


class ApplicationTopic(NamedTuple):
    """An internal topic as the application needs it."""

    info: StreamsTopicInfo
    partitions: int


@dataclass(frozen=True, slots=True)
class ConfiguredTopology:
    """A topology with the topics there are."""

    epoch: int
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Subtopology → how many tasks it has; empty unless `ready`."""
    internal: Mapping[str, ApplicationTopic] = field(default_factory=dict)
    """Internal topics by name: those to be made; all of them, where none is missing."""
    fault: StreamsStatus | None = None
    """The reason why it has no tasks yet."""

    @property
    def ready(self) -> bool:
        return self.fault is None

    @property
    def missing(self) -> list[ApplicationTopic]:
        """The internal topics to be made."""
        is_due = self.fault is not None and self.fault.status_code == Status.MISSING_INTERNAL_TOPICS
        return list(self.internal.values()) if is_due else []


class _Fault(Exception):
    """Why the topology has no tasks yet."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(detail)
        self.status = StreamsStatus(status_code=code, status_detail=detail)


def check_topology(subtopologies: Iterable[StreamsSubtopology]) -> None:
    """Raises `MemberRefused` for a topology that no topics could satisfy, or that is too large."""
    parts = tuple(subtopologies)
    if len(parts) > SUBTOPOLOGIES_MAX or sum(map(_names_in, parts)) > TOPIC_NAMES_MAX:
        why = f"the topology has more than {SUBTOPOLOGIES_MAX} subtopologies, or {TOPIC_NAMES_MAX} names of topics"
        raise MemberRefused(ErrorCode.STREAMS_INVALID_TOPOLOGY, why)
    written = {name for part in parts for name in part.repartition_sink_topics}
    if len({part.subtopology_id for part in parts}) < len(parts):
        raise MemberRefused(ErrorCode.STREAMS_INVALID_TOPOLOGY, "two subtopologies have the same id")
    for part in parts:
        where = f"subtopology {part.subtopology_id!r}"
        if part.source_topic_regex:
            why = f"{where} reads topics by a regular expression, which streams groups do not have"
            raise MemberRefused(ErrorCode.INVALID_REQUEST, why)
        if not part.source_topics and not part.repartition_source_topics:
            raise MemberRefused(ErrorCode.STREAMS_INVALID_TOPOLOGY, f"{where} reads no topic")
        for topic in part.state_changelog_topics:
            if topic.partitions:
                why = f"{where}: the changelog {topic.name!r} has {topic.partitions} partitions; it must say 0"
                raise MemberRefused(ErrorCode.STREAMS_INVALID_TOPOLOGY, why)
        for topic in part.repartition_source_topics:
            if topic.partitions < 0:
                why = f"{where}: the repartition topic {topic.name!r} has {topic.partitions} partitions"
                raise MemberRefused(ErrorCode.STREAMS_INVALID_TOPOLOGY, why)
            if not topic.partitions and topic.name not in written:
                why = f"{where}: no subtopology writes to the repartition topic {topic.name!r}"
                raise MemberRefused(ErrorCode.STREAMS_INVALID_TOPOLOGY, why)
        for group in part.copartition_groups:
            for numbers, of in (
                (group.source_topics, part.source_topics),
                (group.repartition_source_topics, part.repartition_source_topics),
            ):
                if any(not 0 <= number < len(of) for number in numbers):
                    why = f"{where}: a copartition group names topics that the subtopology does not read"
                    raise MemberRefused(ErrorCode.STREAMS_INVALID_TOPOLOGY, why)
    _check_loops(parts)


def _check_loops(parts: Iterable[StreamsSubtopology]) -> None:
    """Raises `MemberRefused` where the sizes of repartition topics follow from each other."""
    infos = {topic.name: topic for part in parts for topic in part.repartition_source_topics}
    known = {name: 1 for part in parts for name in part.source_topics if name not in infos}
    known |= {name: info.partitions for name, info in infos.items() if info.partitions}
    try:
        _derive(parts, known, set(infos))
    except _Fault as fault:
        raise MemberRefused(ErrorCode.STREAMS_INVALID_TOPOLOGY, fault.status.status_detail) from None


def _names_in(part: StreamsSubtopology) -> int:
    internal = len(part.state_changelog_topics) + len(part.repartition_source_topics)
    return len(part.source_topics) + len(part.repartition_sink_topics) + internal


def topics_of(topology: StreamsGroupTopologyValue | StreamsTopology) -> set[str]:
    """The names of all topics that the application reads or owns."""
    names: set[str] = set()
    for part in topology.subtopologies:
        names.update(part.source_topics)
        names.update(topic.name for topic in part.state_changelog_topics)
        names.update(topic.name for topic in part.repartition_source_topics)
    return names


def configure(topology: StreamsGroupTopologyValue, partitions_of: PartitionsOf) -> ConfiguredTopology:
    """The topology as the topics there are make it."""
    internal: dict[str, ApplicationTopic] = {}
    try:
        sizes = _configure(topology, partitions_of, internal)
    except _Fault as fault:
        return ConfiguredTopology(topology.epoch, {}, internal, fault.status)
    return ConfiguredTopology(topology.epoch, sizes, internal)


def _configure(
    topology: StreamsGroupTopologyValue, partitions_of: PartitionsOf, internal: dict[str, ApplicationTopic]
) -> dict[str, int]:
    """The sizes of the subtopologies. Raises `_Fault`; `internal` has by then what could be derived."""
    parts = topology.subtopologies
    infos = {topic.name: topic for part in parts for topic in part.repartition_source_topics}
    own = [name for part in parts for name in part.source_topics if name not in infos]
    counts = {name: partitions_of(name) for name in own}
    if gone := sorted(name for name, count in counts.items() if count is None):
        raise _Fault(Status.MISSING_SOURCE_TOPICS, f"source topics are missing: {told(gone)}")
    known = {name: count for name, count in counts.items() if count is not None}
    known |= {name: info.partitions for name, info in infos.items() if info.partitions}
    _derive(parts, known, set(infos))
    for part in parts:
        _make_alike(part, known, infos)
    sizes = {part.subtopology_id: max((known[name] for name in _sources(part)), default=0) for part in parts}
    if sum(sizes.values()) > TASKS_MAX:
        why = f"the topology has {sum(sizes.values())} tasks; {TASKS_MAX} are the most"
        raise _Fault(Status.INCORRECTLY_PARTITIONED_TOPICS, why)
    needed = {name: ApplicationTopic(info, known[name]) for name, info in infos.items()}
    for part in parts:
        for topic in part.state_changelog_topics:
            if topic.name not in known:  # else the topic that it reads is its own changelog
                needed[topic.name] = ApplicationTopic(topic, sizes[part.subtopology_id])
    _check_existing(needed, partitions_of, internal)
    return sizes


def _sources(part: StreamsSubtopology) -> list[str]:
    return [*part.source_topics, *(topic.name for topic in part.repartition_source_topics)]


def _derive(parts: Iterable[StreamsSubtopology], known: dict[str, int], repartition: set[str]) -> None:
    """Find the sizes of repartition topics that say none: of the subtopologies that write to them, each of which is
    looked at once, when the sizes of all its sources are known. Raises `_Fault`."""
    unknown = repartition - known.keys()
    readers: dict[str, list[StreamsSubtopology]] = {}
    writers: Counter[str] = Counter()
    waits_for: Counter[str] = Counter()
    ready: list[StreamsSubtopology] = []
    for part in parts:
        awaited = unknown.intersection(_sources(part))
        waits_for[part.subtopology_id] = len(awaited)
        for name in awaited:
            readers.setdefault(name, []).append(part)
        writers.update(unknown.intersection(part.repartition_sink_topics))
        if not awaited:
            ready.append(part)
    largest: dict[str, int] = {}
    while ready:
        part = ready.pop()
        size = max((known[name] for name in _sources(part)), default=0)
        for name in unknown.intersection(part.repartition_sink_topics):
            largest[name] = max(size, largest.get(name, 0))
            writers[name] -= 1
            if writers[name]:
                continue
            known[name] = largest[name]
            for reader in readers.get(name, ()):
                waits_for[reader.subtopology_id] -= 1
                if not waits_for[reader.subtopology_id]:
                    ready.append(reader)
    if missing := sorted(unknown - known.keys()):
        why = f"the partitions of repartition topics follow from each other: {told(missing)}"
        raise _Fault(Status.INCORRECTLY_PARTITIONED_TOPICS, why)


def _make_alike(part: StreamsSubtopology, known: dict[str, int], infos: Mapping[str, StreamsTopicInfo]) -> None:
    """Give topics that must be alike the same number of partitions, where they are free to have it. Raises `_Fault`."""
    for group in part.copartition_groups:
        names = [part.source_topics[number] for number in group.source_topics]
        names += [part.repartition_source_topics[number].name for number in group.repartition_source_topics]
        fixed = {name: known[name] for name in names if name not in infos or infos[name].partitions}
        free = [name for name in names if name not in fixed]
        if len(set(fixed.values())) > 1:
            rows = ", ".join(f"{name} ({fixed[name]})" for name in sorted(fixed)[:NAMES_TOLD_MAX])
            why = f"topics that must have the same number of partitions have not: {rows}"
            raise _Fault(Status.INCORRECTLY_PARTITIONED_TOPICS, why)
        size = next(iter(fixed.values()), max((known[name] for name in free), default=0))
        known.update(dict.fromkeys(free, size))


def _check_existing(
    needed: Mapping[str, ApplicationTopic], partitions_of: PartitionsOf, internal: dict[str, ApplicationTopic]
) -> None:
    """Leave in `internal` the topics to be made, or all of them if there are none to make. Raises `_Fault`."""
    existing = {name: partitions_of(name) for name in needed}
    wrong = [
        f"{name} ({count}, not {needed[name].partitions})"
        for name, count in sorted(existing.items())
        if count is not None and count != needed[name].partitions
    ]
    if wrong:
        why = f"internal topics have other numbers of partitions than they should: {told(wrong)}"
        raise _Fault(Status.INCORRECTLY_PARTITIONED_TOPICS, why)
    absent = {name: topic for name, topic in needed.items() if existing[name] is None}
    internal.update(absent or needed)
    if absent:
        why = f"internal topics are missing: {told(sorted(absent))}"
        raise _Fault(Status.MISSING_INTERNAL_TOPICS, why)


def told(names: list[str]) -> str:
    """Some of the names, and how many others there are."""
    shown = ", ".join(names[:NAMES_TOLD_MAX])
    return shown if len(names) <= NAMES_TOLD_MAX else f"{shown} and {len(names) - NAMES_TOLD_MAX} others"
