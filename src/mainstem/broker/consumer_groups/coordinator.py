"""The consumer group coordinator of one node: answers the group APIs by the machines of the partitions that this node
serves (`served_partitions`).

Consumer groups go to partitions as in Kafka, so that public tools find them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from mainstem.broker.consumer_groups.partition import CoordinatorPartition
from mainstem.broker.consumer_groups.requests.administration_requests import AdministrationRequests
from mainstem.broker.consumer_groups.requests.membership_requests import MembershipRequests
from mainstem.broker.consumer_groups.requests.offset_requests import OffsetRequests
from mainstem.broker.consumer_groups.requests.submission import Submission
from mainstem.broker.consumer_groups.served_partitions import ServedPartitions
from mainstem.broker.errors import CoordinatorRefusal
from mainstem.broker.machines.machine_log import Gap
from mainstem.broker.machines.runtime import heard
from mainstem.model import Topic


class ConsumerGroupCoordinator:
    """Answers the group APIs of one node by the partitions that `served` serves, which its owner starts and closes."""

    def __init__(self, served: ServedPartitions) -> None:
        self.served = served
        submission = Submission(served)
        self.membership = MembershipRequests(submission)
        self.offsets = OffsetRequests(submission)
        self.administration = AdministrationRequests(submission)

    @property
    def partitions(self) -> Mapping[int, CoordinatorPartition]:
        """The partitions of the internal topic that this node serves, by number."""
        return self.served.partitions

    def missing(self, index: int) -> Sequence[Gap]:
        """The gaps in the log of a partition of the internal topic that this node serves."""
        partition = self.partitions.get(index)
        return () if partition is None else tuple(partition.gaps)

    async def leader_of(self, group_id: str) -> int:
        """The node that coordinates a consumer group; -1 when there is none now."""
        return await self.served.leader_of(group_id)

    # --- the world changes ---------------------------------------------------------------------------

    def topic_deleted(self, topic: Topic) -> None:
        """A topic was deleted, here or elsewhere: forget its committed offsets. Partitions that this node
        does not serve now drop them when they are loaded."""
        for partition in self.partitions.values():
            with suppress(CoordinatorRefusal):
                forgotten = partition.topic_deleted(topic.name, topic.topic_id)
                if forgotten is not None:
                    forgotten.add_done_callback(heard)

    def level_raised(self) -> None:
        """The feature level rose: rewrite the logs, so that old records take the newer form, too."""
        for partition in self.partitions.values():
            partition.runtime.rewrite()

    async def forget_topic(self, topic: Topic) -> None:
        """As `topic_deleted`, and wait until it is durable."""
        for partition in list(self.partitions.values()):
            try:
                if (forgotten := partition.topic_deleted(topic.name, topic.topic_id)) is not None:
                    await forgotten
            except CoordinatorRefusal:
                continue
