"""Members of the protocol in which the coordinator assigns."""

from __future__ import annotations

from uuid import UUID

from tests.simulation.migrating_groups.members import (
    REBALANCE_TIMEOUT_MS,
    MigratingMember,
)
from tests.simulation.migrating_groups.ownership import CONSUMER
from tests.simulation.whole.client import Partition

from mainstem.protocol.messages.consumer_group_heartbeat import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    ConsumerGroupHeartbeatRequest,
    HeartbeatTopicPartitions,
)


class ConsumerMember(MigratingMember):
    """Of the protocol in which the coordinator assigns (KIP-848)."""

    protocol = CONSUMER

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self.membership.member_id = f"{self.group}-{self._rng.getrandbits(64):x}"
        self.membership.epoch = JOIN_EPOCH
        self._says: object = None
        """The last that it said, and that was heard."""
        self._subscribed: tuple[str, ...] = ()

    def unsure(self) -> None:
        super().unsure()
        self._says = None

    async def step(self) -> None:
        membership, names = self.membership, self._names()
        joins = membership.epoch == JOIN_EPOCH
        by_topic: dict[UUID, list[int]] = {}
        for place in sorted(membership.owned):
            by_topic.setdefault(place.topic_id, []).append(place.index)
        owned = tuple(
            HeartbeatTopicPartitions(topic_id=topic_id, partitions=tuple(indexes))
            for topic_id, indexes in by_topic.items()
        )
        says = names, owned
        says_all = joins or says != self._says
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=membership.member_id,
            member_epoch=membership.epoch,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS if says_all else -1,
            subscribed_topic_names=names if says_all else None,
            topic_partitions=owned if says_all else None,
        )
        answer = await self._ask("heartbeat", request, 1, proves=True, joins=joins)
        self._says = says
        self._epoch_before, membership.epoch = membership.epoch, answer.member_epoch
        if answer.assignment is not None:
            rows = answer.assignment.topic_partitions
            self._told(CONSUMER, [Partition(row.topic_id, index) for row in rows for index in row.partitions])

    async def leave(self) -> None:
        if self.membership.epoch > 0:
            request = ConsumerGroupHeartbeatRequest(
                group_id=self.group, member_id=self.membership.member_id, member_epoch=LEAVE_EPOCH
            )
            await self._ask("leave", request, 1, proves=False)
