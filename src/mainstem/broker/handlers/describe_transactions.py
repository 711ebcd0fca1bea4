"""DescribeTransactions: the state of transactional ids, with the partitions of their open transactions."""

from __future__ import annotations

from collections.abc import Callable

from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.broker.transactions.transaction import Transaction
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.transaction_administration import (
    DescribedTransaction,
    DescribedTransactionTopic,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from mainstem.security.acls.acl import Operation, ResourceKind

IDS_PER_TURN = 100
"""Ids described within one turn of the event loop."""


async def handle(
    broker: Broker, request: DescribeTransactionsRequest, call: RequestContext
) -> DescribeTransactionsResponse:
    may_describe = broker.verdicts(call.session).question(Operation.DESCRIBE, ResourceKind.TOPIC)
    pace = broker.turns.pace(IDS_PER_TURN)
    described = []
    for transactional_id in request.transactional_ids:
        await pace.step()
        found: Transaction | ErrorCode = ErrorCode.UNSUPPORTED_VERSION
        if broker.transactions is not None:
            [found] = await broker.transactions.coordinator.describe([transactional_id])
        described.append(_described(transactional_id, found, may_describe))
    return DescribeTransactionsResponse(transaction_states=tuple(described))


def _described(
    transactional_id: str, found: Transaction | ErrorCode, may_describe: Callable[[str], bool]
) -> DescribedTransaction:
    if isinstance(found, ErrorCode):
        return DescribedTransaction(
            error_code=found,
            transactional_id=transactional_id,
            transaction_state="",
            transaction_timeout_ms=0,
            transaction_start_time_ms=0,
            producer_id=0,
            producer_epoch=0,
            topics=(),
        )
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(found.partitions):
        if may_describe(topic):
            by_topic.setdefault(topic, []).append(partition)
    return DescribedTransaction(
        error_code=ErrorCode.NONE,
        transactional_id=transactional_id,
        transaction_state=found.state.title,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.started_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=tuple(
            DescribedTransactionTopic(topic=topic, partitions=tuple(indexes)) for topic, indexes in by_topic.items()
        ),
    )
