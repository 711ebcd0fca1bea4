"""The lag of all groups that this node coordinates, for the metrics: a look at each in turn, in the background.

A look goes over the committed offsets, which may be millions, in slices of a millisecond, and rests after each for many
times as long. It adds up what groups are behind, and keeps the worst groups and partitions; of these groups alone it
asks for the cause and the age (`GroupLags`). Series have names that clients choose, so there are `series_max` of each
kind at most."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import NamedTuple, TypeVar

from mainstem.broker.consumer_groups.partition import CoordinatorPartition
from mainstem.broker.consumer_groups.served_partitions import ServedPartitions
from mainstem.broker.errors import CoordinatorRefusal
from mainstem.broker.group_lag.group_lags import GroupLags
from mainstem.broker.group_lag.queue_facts import QueueFacts
from mainstem.errors import MainstemError
from mainstem.group_lag import CAUSES, GroupLag, lag_between
from mainstem.model import Sample
from mainstem.ports import Metadata

OFFSETS_AT_ONCE = 250
"""Looked at in one turn of the event loop: about a millisecond."""

RESTING_SHARE = 49
"""A look rests for so many times as long as it works."""


T = TypeVar("T", bound=tuple[object, ...])


class WorstPartition(NamedTuple):
    lag: int
    group: str
    topic: str
    partition: int


class LagFindings(NamedTuple):
    """Of one look at all groups."""

    groups: int = 0
    """Those with committed offsets."""
    behind: int = 0
    """Those of them with a lag."""
    lag: int = 0
    unknown: int = 0
    """Offsets committed for partitions whose end this node does not know."""
    worst: tuple[GroupLag, ...] = ()
    worst_partitions: tuple[WorstPartition, ...] = ()
    seconds: float = 0.0
    """For how long it looked."""


class _Look:
    """A look under way."""

    def __init__(self, series_max: int) -> None:
        self._series_max = series_max
        self.groups = self.behind = self.lag = self.unknown = 0
        self.elsewhere: dict[int, QueueFacts] = {}
        """Of queues that other nodes have, by id: many groups may read them."""
        self._groups: list[tuple[int, str]] = []
        self._partitions: list[WorstPartition] = []

    def group(self, group_id: str, lags: Iterable[tuple[str, int, int | None]]) -> None:
        """Add a group, by topic, partition and lag."""
        total = 0
        for topic, partition, lag in lags:
            if lag is None:
                self.unknown += 1
            elif lag:
                total += lag
                _keep(self._partitions, WorstPartition(lag, group_id, topic, partition), self._series_max)
        self.groups += 1
        self.lag += total
        if total:
            self.behind += 1
            _keep(self._groups, (total, group_id), self._series_max)

    def worst_groups(self) -> list[str]:
        return [group_id for _, group_id in sorted(self._groups, reverse=True)]

    def worst_partitions(self) -> tuple[WorstPartition, ...]:
        return tuple(sorted(self._partitions, reverse=True))


def _keep(heap: list[T], item: T, count: int) -> None:
    """The greatest so many."""
    if len(heap) < count:
        heapq.heappush(heap, item)
    elif heap and item > heap[0]:
        heapq.heapreplace(heap, item)


class LagSampler:
    """`interval_seconds`: between the beginnings of two looks at least; 0: none is made."""

    def __init__(
        self,
        served: ServedPartitions,
        lags: GroupLags,
        metadata: Metadata,
        *,
        interval_seconds: float,
        series_max: int,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._served = served
        self._lags = lags
        self._metadata = metadata
        self._interval_seconds = interval_seconds
        self._series_max = series_max
        self._monotonic = monotonic
        self.findings: LagFindings | None = None
        """Of the last look; None: none has come to its end."""

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while self._interval_seconds:
            began = self._monotonic()
            await self.look()
            await asyncio.sleep(max(self._interval_seconds - (self._monotonic() - began), 0.0))

    async def look(self) -> None:
        """Look at all groups once."""
        began = self._monotonic()
        look = _Look(self._series_max)
        for partition in list(self._served.partitions.values()):
            await self._look_at(partition, look)
        worst: list[GroupLag] = []
        for group_id in look.worst_groups():
            try:
                worst.append(await self._lags.of_group_here(group_id))
            except (CoordinatorRefusal, MainstemError):
                continue  # it is another node's by now, or gone
        self.findings = LagFindings(
            look.groups,
            look.behind,
            look.lag,
            look.unknown,
            tuple(worst),
            look.worst_partitions(),
            self._monotonic() - began,
        )

    async def _look_at(self, partition: CoordinatorPartition, look: _Look) -> None:
        machine = partition.machine
        if machine is None:
            return
        offsets = machine.state.offsets
        worked, looked_at = self._monotonic(), 0
        for group_id in offsets.group_ids():
            lags: list[tuple[str, int, int | None]] = []
            for name in offsets.topics(group_id):
                committed = offsets.numbers(group_id, name)
                for first in range(0, len(committed), OFFSETS_AT_ONCE):
                    part = committed[first : first + OFFSETS_AT_ONCE]
                    lags += zip(repeat(name), (index for index, _ in part), await self._lags_in(name, part, look))
                    looked_at += len(part)
                    if looked_at >= OFFSETS_AT_ONCE:
                        await asyncio.sleep(RESTING_SHARE * (self._monotonic() - worked))
                        worked, looked_at = self._monotonic(), 0
            if partition.machine is not machine:  # what is left of it is freed meanwhile
                return
            if lags:  # else it was forgotten meanwhile
                look.group(group_id, lags)

    async def _lags_in(self, name: str, committed: list[tuple[int, int]], look: _Look) -> list[int | None]:
        """The lags of a group in partitions of a topic; None: the partition is gone, or nobody says where it ends."""
        topic = self._metadata.topic(name)
        if topic is None:
            return [None] * len(committed)
        queue_ids = [topic.queue_id(index) for index, _ in committed]
        ends = await self._lags.ends(
            [queue_id for queue_id, (index, _) in zip(queue_ids, committed, strict=True) if index < topic.partitions],
            look.elsewhere,
        )
        return [
            None if (end := ends.get(queue_id)) is None else lag_between(offset, end.log_start, end.end)
            for queue_id, (_, offset) in zip(queue_ids, committed, strict=True)
        ]

    def samples(self) -> Iterator[Sample]:
        found = self.findings
        if found is None:
            return
        for name, text, value in (
            (
                "mainstem_group_lag_groups",
                "Groups with committed offsets, at the last look at their lag.",
                found.groups,
            ),
            ("mainstem_group_lag_groups_behind", "Those of them with a lag.", found.behind),
            ("mainstem_group_lag_messages_sum", "The lag of all groups in messages.", found.lag),
            (
                "mainstem_group_lag_offsets_unknown",
                "Committed offsets of partitions whose end this node does not know.",
                found.unknown,
            ),
            ("mainstem_group_lag_look_seconds", "How long the last look at all groups took.", found.seconds),
        ):
            yield Sample(name, "gauge", text, value)
        causes = Counter(group.why for group in found.worst)
        for why in CAUSES:
            text = "Of the groups with the greatest lag those that this holds up."
            yield Sample("mainstem_group_lag_causes", "gauge", text, causes[why], (("why", why),))
        for group in found.worst:
            of_group = (("group", group.group),)
            text = "The lag in messages of the groups with the greatest."
            yield Sample("mainstem_group_lag_messages", "gauge", text, group.lag, of_group, names_users=True)
        for group in found.worst:
            if group.seconds is not None:
                text = "The same groups' lag in seconds: the age of the first message that is not committed."
                yield Sample(
                    "mainstem_group_lag_seconds",
                    "gauge",
                    text,
                    group.seconds,
                    (("group", group.group),),
                    names_users=True,
                )
        for group in found.worst:
            if group.why is not None:
                because = (("group", group.group), ("why", group.why))
                yield Sample(
                    "mainstem_group_lag_why", "gauge", "What holds these groups up: 1.", 1, because, names_users=True
                )
        for worst in found.worst_partitions:
            place = (("group", worst.group), ("topic", worst.topic), ("partition", str(worst.partition)))
            text = "The lag in messages of the partitions with the greatest."
            yield Sample("mainstem_group_lag_partition_messages", "gauge", text, worst.lag, place, names_users=True)
