"""Asks the coordinator of a transaction, whichever node that is, whether a producer may write to partitions. The
coordinator may take these into the transaction (KIP-890)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from mainstem.broker.machines.coordinator_topic import coordinator_partition_of
from mainstem.broker.queue_routing import QueueRouting
from mainstem.broker.transactions.asking import ask
from mainstem.broker.transactions.state_topic import STATE_TOPIC
from mainstem.broker.transactions.transaction import TopicPartition
from mainstem.broker.transactions.transitions import Producer
from mainstem.errors import MainstemError
from mainstem.model import AppendTransaction, Outcome, Topic, partition_of, topic_number_of
from mainstem.ports import BrokerCalls, Metadata
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.producer_transactions import (
    AddPartitionsToTxnAnswer,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

ADD_VERSION = 5

_OUTCOMES = {
    ErrorCode.NONE: Outcome.OK,
    ErrorCode.PRODUCER_FENCED: Outcome.STALE_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_EPOCH: Outcome.STALE_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: Outcome.INVALID_TXN_STATE,
    ErrorCode.INVALID_TXN_STATE: Outcome.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_ABORTABLE: Outcome.INVALID_TXN_STATE,
    ErrorCode.POLICY_VIOLATION: Outcome.INVALID_TXN_STATE,
    ErrorCode.UNSUPPORTED_VERSION: Outcome.INVALID_TXN_STATE,
    ErrorCode.CONCURRENT_TRANSACTIONS: Outcome.CONCURRENT_TRANSACTIONS,
}
"""Those that are not here mean that the coordinator cannot tell now."""


class Verified(NamedTuple):
    codes: Mapping[TopicPartition, ErrorCode]
    """Kafka's code for each partition."""
    coordinator_epoch: int = -1
    """That of the coordinator that answered, or of a later one; -1: it did not say."""


class CoordinatorVerification:
    """Implements `ports.TransactionVerification`."""

    def __init__(
        self,
        metadata: Metadata,
        topic_by_number: Callable[[int], Topic | None],
        routing: QueueRouting,
        calls: BrokerCalls,
    ) -> None:
        self._metadata = metadata
        self._topic_by_number = topic_by_number
        self._routing = routing
        self._calls = calls

    async def verify(
        self, transaction: AppendTransaction, producer_id: int, producer_epoch: int, queue_ids: Sequence[int]
    ) -> Mapping[int, Outcome]:
        names: dict[TopicPartition, int] = {}
        for queue_id in queue_ids:
            topic = self._topic_by_number(topic_number_of(queue_id))
            if topic is not None:
                names[topic.name, partition_of(queue_id)] = queue_id
        answer = await self.ask(
            transaction.transactional_id,
            Producer(producer_id, producer_epoch),
            list(names),
            adds=transaction.adds_queues,
        )
        return {names[each]: _OUTCOMES.get(code, Outcome.STORAGE_BUSY) for each, code in answer.codes.items()}

    async def ask(
        self, transactional_id: str, producer: Producer, partitions: Sequence[TopicPartition], *, adds: bool
    ) -> Verified:
        """Ask the coordinator whether the producer may write to these partitions; with `adds` it takes them into the
        transaction."""
        unavailable = dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not partitions:
            return Verified({})
        topic = self._metadata.topic(STATE_TOPIC)
        if topic is None:
            return Verified(dict.fromkeys(partitions, ErrorCode.INVALID_PRODUCER_ID_MAPPING))
        node_id = self._routing.broker_of(topic.queue_id(coordinator_partition_of(transactional_id, topic.partitions)))
        if node_id < 0:
            return Verified(unavailable)
        try:
            response = await ask(
                self._calls,
                node_id,
                _request(transactional_id, producer, partitions, adds=adds),
                ADD_VERSION,
                AddPartitionsToTxnAnswer,
            )
        except MainstemError:
            return Verified(unavailable)
        if response.error_code:
            return Verified(dict.fromkeys(partitions, ErrorCode(response.error_code)))
        found = {
            (topic.name, result.partition_index): ErrorCode(result.partition_error_code)
            for one in response.results_by_transaction
            for topic in one.topic_results
            for result in topic.results_by_partition
        }
        return Verified(unavailable | found, response.coordinator_epoch)


def _request(
    transactional_id: str, producer: Producer, partitions: Sequence[TopicPartition], *, adds: bool
) -> AddPartitionsToTxnRequest:
    by_topic: dict[str, list[int]] = {}
    for name, index in partitions:
        by_topic.setdefault(name, []).append(index)
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        verify_only=not adds,
        topics=tuple(AddPartitionsToTxnTopic(name=name, partitions=tuple(them)) for name, them in by_topic.items()),
    )
    return AddPartitionsToTxnRequest(transactions=(transaction,))
