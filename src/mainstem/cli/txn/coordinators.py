"""The nodes that commands about transactions ask: coordinators of ids, and leaders of partitions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from mainstem.address import Address
from mainstem.cli.clients.client_settings import settings_of
from mainstem.cli.clients.kafka_connection import KafkaConnections
from mainstem.cli.errors import NodeUnreachable, RequestRefused
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.group_membership import KEY_TYPE_TRANSACTION, FindCoordinatorRequest
from mainstem.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from mainstem.protocol.messages.transaction_administration import (
    DescribedProducer,
    DescribeProducersRequest,
    DescribeProducersTopic,
    ListedTransaction,
    ListTransactionsRequest,
)

AGAIN_SECONDS = 30.0
"""A coordinator that moves has loaded its log, and transactions have their markers, within this."""
PAUSE_SECONDS = 0.1

PASSING = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)

T = TypeVar("T")


class LedPartition(NamedTuple):
    topic: str
    partition: int
    leader: Address


class Coordinators:
    """Asks the nodes of the cluster that answers at `bootstrap`."""

    def __init__(self, bootstrap: str, connections: KafkaConnections) -> None:
        self._bootstrap = bootstrap
        self._connections = connections

    def of(self, transactional_id: str) -> Address | ErrorCode:
        """The node that coordinates an id."""
        request = FindCoordinatorRequest(key_type=KEY_TYPE_TRANSACTION, coordinator_keys=(transactional_id,))
        [found] = self._connections.call_any(self._bootstrap, request, 4).coordinators
        return ErrorCode(found.error_code) if found.error_code else Address(found.host, found.port)

    def asked(self, transactional_id: str, request: Any, version: int, code_of: Callable[[Any], int]) -> Any:
        """The answer of an id's coordinator, which may be about to start, or to move. Raises RequestRefused."""
        deadline = time.monotonic() + AGAIN_SECONDS
        while True:
            node = self.of(transactional_id)
            code = node if isinstance(node, ErrorCode) else ErrorCode.NONE
            if isinstance(node, Address):
                answer = self.call(node, request, version)
                code = ErrorCode(code_of(answer))
                if code is ErrorCode.NONE:
                    return answer
            if code not in PASSING or time.monotonic() >= deadline:
                raise RequestRefused(f"transactional id {transactional_id}: {code.message} ({code.name})")
            time.sleep(PAUSE_SECONDS)

    def call(self, node: Address, request: Any, version: int) -> Any:
        """Raises NodeUnreachable."""
        try:
            return self._connections.call(node, request, version)
        except OSError as error:
            raise NodeUnreachable(f"no answer of the node at {node}: {error.strerror or error}") from None

    def listed(self, request: ListTransactionsRequest) -> list[tuple[ListedTransaction, Address]]:
        """The transactions of all coordinators. Raises RequestRefused."""
        metadata = self._connections.call_any(self._bootstrap, MetadataRequest(topics=()), 9)
        found = []
        for broker in metadata.brokers:
            node = Address(broker.host, broker.port)
            answer = self.call(node, request, 1)
            if answer.unknown_state_filters:
                raise RequestRefused(f"there is no state {', '.join(answer.unknown_state_filters)}")
            if answer.error_code:
                code = ErrorCode(answer.error_code)
                raise RequestRefused(f"the node at {node} lists no transactions: {code.message} ({code.name})")
            found += [(each, node) for each in answer.transaction_states]
        return sorted(found, key=lambda item: item[0].transactional_id)

    def partitions(self, topic: str | None) -> list[LedPartition]:
        """The partitions of a topic, or of all, with their leaders. Raises RequestRefused."""
        topics = None if topic is None else (MetadataRequestTopic(name=topic),)
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        metadata = self._connections.call_any(self._bootstrap, request, 9)
        nodes = {broker.node_id: Address(broker.host, broker.port) for broker in metadata.brokers}
        found = []
        for one in metadata.topics:
            if one.error_code:
                code = ErrorCode(one.error_code)
                raise RequestRefused(f"topic {one.name}: {code.message} ({code.name})")
            found += [
                LedPartition(one.name, each.partition_index, nodes[each.leader_id])
                for each in one.partitions
                if each.leader_id in nodes
            ]
        return sorted(found)

    def open_producers(self, partition: LedPartition) -> list[DescribedProducer]:
        """The producers that have a transaction open in a partition. Raises RequestRefused."""
        asked = DescribeProducersTopic(name=partition.topic, partition_indexes=(partition.partition,))
        answer = self.call(partition.leader, DescribeProducersRequest(topics=(asked,)), 0)
        [found] = answer.topics[0].partitions
        if found.error_code:
            code = ErrorCode(found.error_code)
            raise RequestRefused(f"{partition.topic}-{partition.partition}: {code.message} ({code.name})")
        return [each for each in found.active_producers if each.current_txn_start_offset >= 0]


@contextmanager
def coordinators(bootstrap: str) -> Iterator[Coordinators]:
    connections = KafkaConnections(settings_of(bootstrap))
    try:
        yield Coordinators(bootstrap, connections)
    finally:
        connections.close()
