"""AddPartitionsToTxn: takes partitions into a producer's transaction. Clients send versions up to 3; from version 4 on
brokers ask, for several transactions at once, and may only want to know whether partitions are in (KIP-890)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from mainstem.broker.broker import Broker, BrokerTransactions
from mainstem.broker.request_context import RequestContext
from mainstem.broker.transactions.transaction import TopicPartition
from mainstem.broker.transactions.transitions import TRANSACTION_VERSION_2, Producer
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.producer_transactions import (
    AddPartitionsToTxnAnswer,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from mainstem.security.acls.acl import Operation, ResourceKind

BATCHED_FROM = 4
PRODUCER_FENCED_FROM = 2

Codes = Mapping[TopicPartition, ErrorCode]


async def handle(
    broker: Broker, request: AddPartitionsToTxnRequest, call: RequestContext
) -> AddPartitionsToTxnResponse:
    verdicts = broker.verdicts(call.session)
    if call.version >= BATCHED_FROM:
        if not verdicts.allows_on_cluster(Operation.CLUSTER_ACTION):
            return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return await _asked_by_broker(broker, request)
    topics = request.v3_and_below_topics
    transactional_id = request.v3_and_below_transactional_id
    wanted = _partitions(topics)
    if not verdicts.allows(Operation.WRITE, ResourceKind.TRANSACTIONAL_ID, transactional_id):
        codes: Codes = dict.fromkeys(wanted, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    else:
        may_write = verdicts.question(Operation.WRITE, ResourceKind.TOPIC)
        refused = {each: code for each in wanted if (code := _refusal(broker, each, may_write(each[0])))}
        producer = Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        if refused:  # none is added then
            codes = dict.fromkeys(wanted, ErrorCode.OPERATION_NOT_ATTEMPTED) | refused
        elif broker.transactions is None:
            codes = dict.fromkeys(wanted, ErrorCode.UNSUPPORTED_VERSION)
        else:
            code = await broker.transactions.coordinator.add(transactional_id, producer, wanted, 0)
            codes = dict.fromkeys(wanted, told(code, call.version, PRODUCER_FENCED_FROM))
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_results(topics, codes))


async def _asked_by_broker(broker: Broker, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
    """Transactions with partitions that are not there fail for themselves, as in Kafka."""
    failed = []
    for one in request.transactions:
        wanted = _partitions(one.topics)
        missing = [each for each in wanted if not _exists(broker, each)]
        if missing:
            unknown = dict.fromkeys(missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            codes = dict.fromkeys(wanted, ErrorCode.OPERATION_NOT_ATTEMPTED) | unknown
            results = _results(one.topics, codes)
            failed.append(AddPartitionsToTxnResult(transactional_id=one.transactional_id, topic_results=results))
    ids = {one.transactional_id for one in failed}
    rest = tuple(one for one in request.transactions if one.transactional_id not in ids)
    answered = await asked_by_broker(broker.transactions, replace(request, transactions=rest))
    return replace(answered, results_by_transaction=(*failed, *answered.results_by_transaction))


async def asked_by_broker(
    transactions: BrokerTransactions | None, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    results = []
    for one in request.transactions:
        codes = await _of_transaction(transactions, one)
        results.append(
            AddPartitionsToTxnResult(transactional_id=one.transactional_id, topic_results=_results(one.topics, codes))
        )
    return AddPartitionsToTxnResponse(results_by_transaction=tuple(results))


async def answer_of_coordinator(
    transactions: BrokerTransactions, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnAnswer:
    """The answer to another node, or to this one."""
    answered = await asked_by_broker(transactions, request)
    epoch = -1
    if len(request.transactions) == 1:
        epoch = transactions.coordinator.epoch_of(request.transactions[0].transactional_id)
    return AddPartitionsToTxnAnswer(results_by_transaction=answered.results_by_transaction, coordinator_epoch=epoch)


async def _of_transaction(transactions: BrokerTransactions | None, one: AddPartitionsToTxnTransaction) -> Codes:
    wanted = _partitions(one.topics)
    if transactions is None:
        return dict.fromkeys(wanted, ErrorCode.UNSUPPORTED_VERSION)
    producer = Producer(one.producer_id, one.producer_epoch)
    if one.verify_only:
        return await transactions.coordinator.verify(one.transactional_id, producer, wanted)
    code = await transactions.coordinator.add(one.transactional_id, producer, wanted, TRANSACTION_VERSION_2)
    return dict.fromkeys(wanted, code)


def told(code: ErrorCode, version: int, fenced_from: int) -> ErrorCode:
    """A code as clients of a version know it (KIP-588)."""
    return ErrorCode.INVALID_PRODUCER_EPOCH if code is ErrorCode.PRODUCER_FENCED and version < fenced_from else code


def _refusal(broker: Broker, partition: TopicPartition, may_write: bool) -> ErrorCode | None:
    topic = broker.metadata.topic(partition[0])
    if not may_write or (topic is not None and topic.internal):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return None if _exists(broker, partition) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _exists(broker: Broker, partition: TopicPartition) -> bool:
    topic = broker.metadata.topic(partition[0])
    return topic is not None and 0 <= partition[1] < topic.partitions


def _partitions(topics: Iterable[AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    return [(topic.name, index) for topic in topics for index in topic.partitions]


def _results(topics: Sequence[AddPartitionsToTxnTopic], codes: Codes) -> tuple[AddPartitionsToTxnTopicResult, ...]:
    return tuple(
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=tuple(
                AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=codes[topic.name, index])
                for index in topic.partitions
            ),
        )
        for topic in topics
    )
