"""Hands requests to the machines of the partitions that this node serves, and makes answers of refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from mainstem.broker.consumer_groups.machine import ConsumerGroupMachine
from mainstem.broker.consumer_groups.partition import Event
from mainstem.broker.consumer_groups.served_partitions import ServedPartitions
from mainstem.broker.errors import CoordinatorRefusal
from mainstem.broker.machines.coordinator_topic import coordinator_partition_of
from mainstem.broker.machines.result import Moment, Result, Ticket
from mainstem.broker.machines.served_topic import NO_PARTITION
from mainstem.protocol.error_codes import ErrorCode

A = TypeVar("A")

LOAD_SECONDS_MAX = 1.0
"""A log that takes longer to be loaded is worth the back-off of a client."""

EventOfGroups = Callable[[list[str], ConsumerGroupMachine, Ticket, Moment], Result]
"""An event about several groups; its answer is a list with one element for each."""


class Submission:
    """By the partitions that `served` serves."""

    def __init__(self, served: ServedPartitions) -> None:
        self.served = served

    async def answer(
        self, group_id: str, event: Event, refused: Callable[[ErrorCode], A], *, nameless: bool = False
    ) -> A:
        """The answer of the machine of a group, or what `refused` makes of a refusal. `nameless`: an empty id is the id
        of a group like any other."""
        try:
            return await self._submit(group_id, event, nameless=nameless)
        except CoordinatorRefusal as refusal:
            return refused(refusal.code)

    async def patient_answer(
        self, group_id: str, event: Event, refused: Callable[[ErrorCode], A], *, nameless: bool = False
    ) -> A:
        """As `answer`, but a log that is being loaded is waited for: KafkaJS gives up a consumer whose first request is
        refused for that reason, and Sarama an administrator's commit."""
        if not group_id and not nameless:
            return refused(ErrorCode.INVALID_GROUP_ID)
        try:
            answer: A = await (await self.served.loaded_for(group_id, LOAD_SECONDS_MAX)).submit(event)
        except CoordinatorRefusal as refusal:
            return refused(refusal.code)
        return answer

    async def confirmed_answer(self, group_id: str, event: Event, refused: Callable[[ErrorCode], A]) -> A:
        """As `answer`, nameless groups included; but this node is the coordinator beyond doubt."""
        try:
            topic = await self.served.open()
            await self.served.confirm(coordinator_partition_of(group_id, topic.partitions))
            return await self._submit(group_id, event, nameless=True)
        except CoordinatorRefusal as refusal:
            return refused(refusal.code)

    async def answer_of_each(
        self, group_ids: Iterable[str], event: EventOfGroups, refused: Callable[[str, ErrorCode], A]
    ) -> dict[str, A]:
        """The answers of the machines of several groups, by id."""
        found: dict[str, A] = {}
        for index, names in await self._by_partition(group_ids):
            try:
                answers: list[A] = await self.served.led(index).submit(partial(event, names))
            except CoordinatorRefusal as refusal:
                answers = [refused(name, refusal.code) for name in names]
            found.update(zip(names, answers, strict=True))
        return found

    async def _submit(self, group_id: str, event: Event, *, nameless: bool) -> A:
        if not group_id and not nameless:
            raise CoordinatorRefusal(ErrorCode.INVALID_GROUP_ID)
        answer: A = await (await self.served.led_for(group_id)).submit(event)
        return answer

    async def _by_partition(self, group_ids: Iterable[str]) -> list[tuple[int, list[str]]]:
        """Group ids, each once, with the partition they belong to (-1: there is no topic now)."""
        names = list(dict.fromkeys(group_ids))
        try:
            topic = await self.served.open()
        except CoordinatorRefusal:
            return [(NO_PARTITION, names)]
        found: dict[int, list[str]] = {}
        for name in names:
            found.setdefault(coordinator_partition_of(name, topic.partitions), []).append(name)
        return list(found.items())
