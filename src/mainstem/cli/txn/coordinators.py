"""The nodes that commands about transactions ask: coordinators of ids, and leaders of partitions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from mainstem.address import Address
from mainstem.cli.clients.client_settings import settings_of
from mainstem.cli.clients.coordinator_nodes import CoordinatorNodes
from mainstem.cli.clients.kafka_connection import KafkaConnections
from mainstem.cli.errors import RequestRefused
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.group_membership import KEY_TYPE_TRANSACTION
from mainstem.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from mainstem.protocol.messages.transaction_administration import (
    DescribedProducer,
    DescribeProducersRequest,
    DescribeProducersTopic,
    ListedTransaction,
    ListTransactionsRequest,
)


class LedPartition(NamedTuple):
    topic: str
    partition: int
    leader: Address


class Coordinators(CoordinatorNodes):
    """Of transactional ids, and the leaders of partitions."""

    def __init__(self, bootstrap: str, connections: KafkaConnections) -> None:
        super().__init__(bootstrap, connections, KEY_TYPE_TRANSACTION, "transactional id")

    def listed(self, request: ListTransactionsRequest) -> list[tuple[ListedTransaction, Address]]:
        """The transactions of all coordinators. Raises RequestRefused."""
        found = []
        for node in self.every_node():
            answer = self.listed_at(node, request, 1, "transactions")
            if answer.unknown_state_filters:
                raise RequestRefused(f"there is no state {', '.join(answer.unknown_state_filters)}")
            found += [(each, node) for each in answer.transaction_states]
        return sorted(found, key=lambda item: item[0].transactional_id)

    def partitions(self, topic: str | None) -> list[LedPartition]:
        """The partitions of a topic, or of all, with their leaders. Raises RequestRefused."""
        topics = None if topic is None else (MetadataRequestTopic(name=topic),)
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        metadata = self.connections.call_any(self.bootstrap, request, 9)
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
