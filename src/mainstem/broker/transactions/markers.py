"""The markers of one transaction: those of its queues are written by the storage, the offsets that it committed for a
consumer group come into force, or are dropped, at that group's coordinator.

A partition that this node does not know is deleted, or so new that this node has yet to hear of it: the leader of a
partition adds it to a transaction, and knows of it earlier perhaps. So the coordinator takes no partition for deleted
before its node knows all that was committed of the metadata.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from mainstem.broker.errors import LogUnavailable
from mainstem.broker.transactions.asking import ask
from mainstem.broker.transactions.transaction import TopicPartition, Transaction, TransactionState
from mainstem.errors import MainstemError
from mainstem.model import Outcome, TransactionMarker
from mainstem.ports import BrokerCalls, Metadata, TransactionMarkers
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.transaction_administration import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

logger = logging.getLogger(__name__)

MARKERS_VERSION = 2

_DONE = frozenset({Outcome.OK, Outcome.UNKNOWN_QUEUE, Outcome.STALE_PRODUCER_EPOCH})
"""A queue that is gone has nothing to be ended; one that knows a newer epoch of the producer has had the marker."""

_OFFSETS_DONE = frozenset({ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})


class NodeMarkers:
    """Implements `completion.MarkerWriting`. `offsets_topic` is the topic of the consumer groups' coordinator;
    `coordinator_of` gives the node that has one of its partitions, -1: none now; `metadata_current` returns once this
    node knows all changes of the metadata made before the call, or raises `MainstemError`."""

    def __init__(
        self,
        metadata: Metadata,
        queues: TransactionMarkers,
        calls: BrokerCalls,
        offsets_topic: str,
        coordinator_of: Callable[[int], int],
        metadata_current: Callable[[], Awaitable[None]],
    ) -> None:
        self._metadata = metadata
        self._queues = queues
        self._calls = calls
        self._offsets_topic = offsets_topic
        self._coordinator_of = coordinator_of
        self._metadata_current = metadata_current

    async def write(
        self, transaction: Transaction, coordinator_epoch: int, partitions: Iterable[TopicPartition]
    ) -> set[TopicPartition]:
        wanted = sorted(partitions)
        groups = [each for each in wanted if each[0] == self._offsets_topic]
        queues = [each for each in wanted if each[0] != self._offsets_topic]
        markers = self._markers(transaction, coordinator_epoch, queues)
        left = await asyncio.gather(
            self._write_queues(transaction, coordinator_epoch, markers),
            self._not_deleted([each for each in queues if each not in markers]),
            *(self._end_offsets(transaction, coordinator_epoch, index) for _, index in groups),
        )
        return set().union(*left)

    def _exists(self, partition: TopicPartition) -> bool:
        topic = self._metadata.topic(partition[0])
        return topic is not None and partition[1] < topic.partitions

    async def _not_deleted(self, unknown: list[TopicPartition]) -> set[TopicPartition]:
        """Those of the partitions that this node does not know that are yet to be written: it had not heard of them."""
        if unknown:
            try:
                await self._metadata_current()
            except MainstemError as failure:
                logger.debug("markers of partitions that are not known here: %s", failure)
                return set(unknown)
        return {each for each in unknown if self._exists(each)}

    def _markers(
        self, transaction: Transaction, coordinator_epoch: int, queues: Iterable[TopicPartition]
    ) -> dict[TopicPartition, TransactionMarker]:
        """The markers of those queues that this node knows."""
        commit = transaction.state is TransactionState.PREPARE_COMMIT
        markers: dict[TopicPartition, TransactionMarker] = {}
        for name, index in queues:
            topic = self._metadata.topic(name)
            if topic is not None and index < topic.partitions:
                markers[name, index] = TransactionMarker(
                    topic.queue_id(index),
                    transaction.producer_id,
                    transaction.producer_epoch,
                    commit,
                    coordinator_epoch,
                )
        return markers

    async def _write_queues(
        self, transaction: Transaction, coordinator_epoch: int, markers: Mapping[TopicPartition, TransactionMarker]
    ) -> set[TopicPartition]:
        if not markers:
            return set()
        try:
            outcomes = await self._queues.write(list(markers.values()))
        except MainstemError as failure:
            logger.debug("markers of %s: %s", transaction.transactional_id, failure)
            return set(markers)
        if Outcome.TRANSACTION_COORDINATOR_FENCED in outcomes:
            raise _deposed(coordinator_epoch)
        return {each for each, outcome in zip(markers, outcomes, strict=True) if outcome not in _DONE}

    async def _end_offsets(self, transaction: Transaction, coordinator_epoch: int, index: int) -> set[TopicPartition]:
        marker = WritableTxnMarker(
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            transaction_result=transaction.state is TransactionState.PREPARE_COMMIT,
            topics=(WritableTxnMarkerTopic(name=self._offsets_topic, partition_indexes=(index,)),),
            coordinator_epoch=coordinator_epoch,
            transaction_version=transaction.client_version,
        )
        node_id = self._coordinator_of(index)
        if node_id < 0:
            return {(self._offsets_topic, index)}
        try:
            response = await ask(self._calls, node_id, WriteTxnMarkersRequest(markers=(marker,)), MARKERS_VERSION)
        except MainstemError as failure:
            logger.debug("offsets of %s: %s", transaction.transactional_id, failure)
            return {(self._offsets_topic, index)}
        codes = [result.error_code for each in response.markers for topic in each.topics for result in topic.partitions]
        if ErrorCode.TRANSACTION_COORDINATOR_FENCED in codes:
            raise _deposed(coordinator_epoch)
        return set() if codes and all(code in _OFFSETS_DONE for code in codes) else {(self._offsets_topic, index)}


def _deposed(coordinator_epoch: int) -> LogUnavailable:
    return LogUnavailable(
        f"a newer coordinator than epoch {coordinator_epoch} has ended a transaction of its producer",
        ErrorCode.NOT_COORDINATOR,
    )
