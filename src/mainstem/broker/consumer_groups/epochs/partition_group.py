"""A group with epochs whose members subscribe to topics, and get partitions of them."""

from __future__ import annotations

from collections import Counter
from typing import Any, TypeVar

from mainstem.broker.consumer_groups.epochs.assigned_partitions import Partitions, partitions_of, rows_of
from mainstem.broker.consumer_groups.epochs.epoch_group import EpochGroup
from mainstem.broker.consumer_groups.epochs.epoch_member import CurrentAssignment, EpochMember
from mainstem.broker.consumer_groups.members.holdings import Holdings

M = TypeVar("M", bound=EpochMember[Any, CurrentAssignment])


class PartitionGroup(EpochGroup[M, Partitions]):
    """One group."""

    def __init__(self, group_id: str, holdings: Holdings | None = None) -> None:
        """`holdings`: the account that is charged for the members."""
        super().__init__(group_id, holdings)
        self._subscribers: Counter[str] = Counter()
        """How many members subscribe to a topic by its name."""

    def subscribed_names(self) -> set[str]:
        return set(self._subscribers)

    def target_value(self, target: Partitions) -> Any:
        return self.records.target(topic_partitions=rows_of(target))

    def target_of(self, value: Any) -> Partitions:
        return partitions_of(value.topic_partitions)

    def _no_target(self) -> Partitions:
        return {}

    def _metadata_known(self, member: M) -> None:
        assert member.metadata is not None
        self._subscribers.update(set(member.metadata.subscribed_topic_names))

    def _metadata_gone(self, member: M) -> None:
        assert member.metadata is not None
        for name in set(member.metadata.subscribed_topic_names):
            self._subscribers[name] -= 1
            if not self._subscribers[name]:
                del self._subscribers[name]
