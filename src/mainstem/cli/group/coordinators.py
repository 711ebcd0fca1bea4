"""Asks coordinators about groups of all kinds: librdkafka's admin client shows neither streams nor share groups."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from mainstem.cli.clients.client_settings import settings_of
from mainstem.cli.clients.coordinator_nodes import CoordinatorNodes
from mainstem.cli.clients.kafka_connection import KafkaConnections
from mainstem.cli.errors import RequestRefused
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.group_administration import ListGroupsRequest
from mainstem.protocol.messages.group_membership import KEY_TYPE_GROUP
from mainstem.protocol.messages.share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareOffset,
    AlterShareOffsetsTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareOffsetsGroup,
)
from mainstem.protocol.messages.share_groups import DescribedShareGroup, ShareGroupDescribeRequest
from mainstem.protocol.messages.streams_groups import DescribedStreamsGroup, StreamsGroupDescribeRequest

KINDS = ("classic", "consumer", "share", "streams")
"""As ListGroups names them, in lower case."""

_LIBRDKAFKA = {"PreparingRebalance": "preparing_rebalancing", "CompletingRebalance": "completing_rebalancing"}


class GroupOfKind(NamedTuple):
    group: str
    kind: str
    state: str


class ShareOffset(NamedTuple):
    topic: str
    partition: int
    start: int
    """The first offset that is not done; -1: the group has read nothing yet."""
    lag: int | None
    """Records that are not done; None: the node does not know."""


def state_of(name: str) -> str:
    """The state of a group as this command line writes it: by librdkafka's names."""
    return _LIBRDKAFKA.get(name) or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


STATES = {
    state_of(name): name
    for name in (
        "Assigning", "CompletingRebalance", "Dead", "Empty", "NotReady", "PreparingRebalance", "Reconciling", "Stable",
    )
}  # fmt: skip
"""How ListGroups names the states that groups of all kinds have."""


class GroupCoordinators(CoordinatorNodes):
    def __init__(self, bootstrap: str, connections: KafkaConnections) -> None:
        super().__init__(bootstrap, connections, KEY_TYPE_GROUP, "group")

    def listed(self, kinds: Sequence[str] = (), states: Sequence[str] = ()) -> list[GroupOfKind]:
        """All groups, or those of some kinds and in some of the `STATES`. Raises RequestRefused."""
        request = ListGroupsRequest(states_filter=tuple(STATES[state] for state in states), types_filter=tuple(kinds))
        found: dict[str, GroupOfKind] = {}
        for node in self.every_node():
            for each in self.listed_at(node, request, 5, "groups").groups:
                found[each.group_id] = GroupOfKind(each.group_id, each.group_type.lower(), state_of(each.group_state))
        return sorted(found.values())

    def streams(self, group: str) -> DescribedStreamsGroup | None:
        """None: it is no streams group."""
        request = StreamsGroupDescribeRequest(group_ids=(group,), include_authorized_operations=False)
        found: DescribedStreamsGroup | None = self._described(group, request, 0)
        return found

    def share(self, group: str) -> DescribedShareGroup | None:
        """None: it is no share group."""
        request = ShareGroupDescribeRequest(group_ids=(group,), include_authorized_operations=False)
        found: DescribedShareGroup | None = self._described(group, request, 1)
        return found

    def _described(self, group: str, request: Any, version: int) -> Any:
        answer, code = self.answered(group, request, version, lambda found: found.groups[0].error_code)
        return (
            answer.groups[0] if code is ErrorCode.NONE else None
        )  # the request about other groups tells what is wrong

    def share_offsets(self, group: str) -> list[ShareOffset]:
        """Per partition that a share group reads or has read. Raises RequestRefused."""
        asked = DescribeShareOffsetsGroup(group_id=group, topics=None)
        request = DescribeShareGroupOffsetsRequest(groups=(asked,))
        answer = self.asked(group, request, 1, lambda found: found.groups[0].error_code)
        return sorted(
            ShareOffset(topic.topic_name, each.partition_index, each.start_offset, each.lag if each.lag >= 0 else None)
            for topic in answer.groups[0].topics
            for each in topic.partitions
            if not each.error_code
        )

    def move_share_offsets(self, group: str, offsets: dict[tuple[str, int], int]) -> None:
        """Have a share group without members go on from these offsets. Raises RequestRefused."""
        topics: dict[str, list[AlterShareOffset]] = {}
        for (topic, partition), offset in offsets.items():
            topics.setdefault(topic, []).append(AlterShareOffset(partition_index=partition, start_offset=offset))
        request = AlterShareGroupOffsetsRequest(
            group_id=group,
            topics=tuple(
                AlterShareOffsetsTopic(topic_name=topic, partitions=tuple(rows)) for topic, rows in topics.items()
            ),
        )
        answer = self.asked(group, request, 0, lambda found: found.error_code)
        for topic in answer.responses:
            for each in topic.partitions:
                if each.error_code:
                    code = ErrorCode(each.error_code)
                    why = each.error_message or code.message
                    raise RequestRefused(f"{topic.topic_name} [{each.partition_index}]: {why} ({code.name})")


@contextmanager
def coordinators(bootstrap: str) -> Iterator[GroupCoordinators]:
    """Raises SettingsUnusable."""
    connections = KafkaConnections(settings_of(bootstrap))
    try:
        yield GroupCoordinators(bootstrap, connections)
    finally:
        connections.close()
