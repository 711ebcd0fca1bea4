"""The questions of administrators about share groups, on the wire: librdkafka's admin client has none of it."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from tests.harness.serving import eventually

from mainstem.address import Address
from mainstem.cli.clients.kafka_connection import KafkaConnections
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.group_membership import KEY_TYPE_GROUP, FindCoordinatorRequest
from mainstem.protocol.messages.share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareOffset,
    AlterShareOffsetsTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareOffsetsTopic,
    DescribedShareOffset,
    DescribeShareGroupOffsetsRequest,
    DescribeShareOffsetsGroup,
    DescribeShareOffsetsTopic,
)

MOVING = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
}
"""While a coordinator changes."""


class ShareOffsets:
    """The offsets of one group, by way of its coordinator; leaving the context closes the connections."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self._bootstrap = bootstrap
        self._group = group
        self._connections = KafkaConnections()

    def __enter__(self) -> ShareOffsets:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._connections.close()

    def described(self, *topics: tuple[str, tuple[int, ...]]) -> dict[tuple[str, int], DescribedShareOffset]:
        named = tuple(DescribeShareOffsetsTopic(topic_name=name, partitions=indexes) for name, indexes in topics)
        asked = DescribeShareOffsetsGroup(group_id=self._group, topics=named or None)
        found = eventually(lambda: self._told(asked), what="an answer about all partitions")
        assert found.error_code == 0, found
        return {(topic.topic_name, row.partition_index): row for topic in found.topics for row in topic.partitions}

    def altered(self, topic: str, *starts: tuple[int, int]) -> Any:
        rows = tuple(AlterShareOffset(partition_index=index, start_offset=start) for index, start in starts)
        named = AlterShareOffsetsTopic(topic_name=topic, partitions=rows)
        return self._changed(AlterShareGroupOffsetsRequest(group_id=self._group, topics=(named,)))

    def deleted(self, *topics: str) -> Any:
        named = tuple(DeleteShareOffsetsTopic(topic_name=topic) for topic in topics)
        return self._changed(DeleteShareGroupOffsetsRequest(group_id=self._group, topics=named))

    def _changed(self, request: Any) -> Any:
        """The answer about the topics, once the coordinator is there: admin clients ask again as well."""
        return eventually(lambda: self._unless_moving(self._asked(request, 0)), what="an answer from the coordinator")

    @staticmethod
    def _unless_moving(answer: Any) -> Any:
        return None if answer.error_code in MOVING else answer

    def _told(self, asked: DescribeShareOffsetsGroup) -> Any:
        """None while a leader changes: admin clients ask again then."""
        [found] = self._asked(DescribeShareGroupOffsetsRequest(groups=(asked,)), 1).groups
        codes = {found.error_code} | {row.error_code for topic in found.topics for row in topic.partitions}
        return None if MOVING & codes else found

    def _asked(self, request: Any, version: int) -> Any:
        finding = FindCoordinatorRequest(key_type=KEY_TYPE_GROUP, coordinator_keys=(self._group,))
        [found] = self._connections.call_any(self._bootstrap, finding, 4).coordinators
        assert found.error_code == 0, found
        return self._connections.call(Address(found.host, found.port), request, version)
