"""EndTxn: commits a producer's transaction, or aborts it. The answer comes once the decision is durable; the markers
are written after that. From version 5 on clients speak transaction version 2: they get the next epoch with the answer.
"""

from __future__ import annotations

from mainstem.broker.broker import Broker
from mainstem.broker.handlers.add_partitions_to_txn import PRODUCER_FENCED_FROM, told
from mainstem.broker.request_context import RequestContext
from mainstem.broker.transactions.transitions import TRANSACTION_VERSION_2, Producer
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.producer_transactions import EndTxnRequest, EndTxnResponse
from mainstem.security.acls.acl import Operation, ResourceKind

VERSION_2_FROM = 5


async def handle(broker: Broker, request: EndTxnRequest, call: RequestContext) -> EndTxnResponse:
    verdicts = broker.verdicts(call.session)
    if not verdicts.allows(Operation.WRITE, ResourceKind.TRANSACTIONAL_ID, request.transactional_id):
        return EndTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if broker.transactions is None:
        return EndTxnResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    speaks_2 = call.version >= VERSION_2_FROM
    ended = await broker.transactions.coordinator.end(
        request.transactional_id,
        Producer(request.producer_id, request.producer_epoch),
        commit=request.committed,
        version=TRANSACTION_VERSION_2 if speaks_2 else 0,
    )
    code = told(ended.code, call.version, PRODUCER_FENCED_FROM)
    if not speaks_2 or code is not ErrorCode.NONE:
        return EndTxnResponse(error_code=code)
    producer = ended.producer
    return EndTxnResponse(error_code=code, producer_id=producer.producer_id, producer_epoch=producer.producer_epoch)
