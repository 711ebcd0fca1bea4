"""ListTransactions: the transactional ids that this node coordinates and the client may see, filtered as the request
says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mainstem.broker.broker import Broker
from mainstem.broker.consumer_groups.epochs.subscribed_topics import compiled
from mainstem.broker.errors import MemberRefused
from mainstem.broker.request_context import RequestContext
from mainstem.broker.transactions.transaction import STATES_BY_TITLE, Transaction
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.transaction_administration import (
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from mainstem.security.acls.acl import Operation, ResourceKind

IDS_PER_TURN = 1_000
"""Ids looked at within one turn of the event loop: about a millisecond."""


async def handle(broker: Broker, request: ListTransactionsRequest, call: RequestContext) -> ListTransactionsResponse:
    unknown = tuple(state for state in request.state_filters if state not in STATES_BY_TITLE)
    try:
        wanted = _filter(request, broker.clock.now_ms())
    except MemberRefused as refused:
        return ListTransactionsResponse(error_code=refused.code, unknown_state_filters=unknown)
    found = [] if broker.transactions is None else await broker.transactions.coordinator.all()
    if isinstance(found, ErrorCode):
        return ListTransactionsResponse(error_code=found, unknown_state_filters=unknown)
    may_describe = broker.verdicts(call.session).question(Operation.DESCRIBE, ResourceKind.TRANSACTIONAL_ID)
    pace = broker.turns.pace(IDS_PER_TURN)
    listed = []
    for transaction in found:
        await pace.step()
        if wanted(transaction) and may_describe(transaction.transactional_id):
            listed.append(
                ListedTransaction(
                    transactional_id=transaction.transactional_id,
                    producer_id=transaction.producer_id,
                    transaction_state=transaction.state.title,
                )
            )
    return ListTransactionsResponse(
        error_code=ErrorCode.NONE, unknown_state_filters=unknown, transaction_states=tuple(listed)
    )


def _filter(request: ListTransactionsRequest, now_ms: int) -> Callable[[Transaction], bool]:
    """Raises `MemberRefused` for a pattern that is none."""
    states, producer_ids = set(request.state_filters), set(request.producer_id_filters)
    pattern: Any = compiled(request.transactional_id_pattern) if request.transactional_id_pattern else None

    def wanted(transaction: Transaction) -> bool:
        if states and transaction.state.title not in states:
            return False
        if producer_ids and transaction.producer_id not in producer_ids:
            return False
        age_ms = now_ms - transaction.started_ms if transaction.started_ms >= 0 else 0
        if request.duration_filter >= 0 and age_ms <= request.duration_filter:
            return False
        return pattern is None or pattern.fullmatch(transaction.transactional_id) is not None

    return wanted
