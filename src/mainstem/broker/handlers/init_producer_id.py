"""InitProducerId: gives a producer its identity.

Without a transactional id Kafka hands out a new producer id whatever the request carries: after a sequence
error an idempotent producer raises its epoch on its own (KIP-360), and asks here only when epochs run out.
With one, the coordinator of that id answers: whoever had the id before is fenced, and its transaction aborted.
"""

from __future__ import annotations

from mainstem.broker.broker import Broker
from mainstem.broker.errors import error_of_refusal
from mainstem.broker.handlers.add_partitions_to_txn import told
from mainstem.broker.request_context import RequestContext
from mainstem.broker.transactions.transaction import NO_EPOCH, NO_PRODUCER_ID
from mainstem.broker.transactions.transitions import Initialization, Producer
from mainstem.errors import MainstemError
from mainstem.nameserver.errors import MetadataUnavailable
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from mainstem.security.acls.acl import Operation, ResourceKind

PRODUCER_FENCED_FROM = 4


async def handle(broker: Broker, request: InitProducerIdRequest, call: RequestContext) -> InitProducerIdResponse:
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
        return _refused(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        return await _transactional(broker, request.transactional_id, request, call)
    verdicts = broker.verdicts(call.session)
    if not verdicts.allows_on_cluster(Operation.IDEMPOTENT_WRITE) and not verdicts.allows_any(
        Operation.WRITE, ResourceKind.TOPIC
    ):
        return _refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    try:
        producer_id = await broker.metadata_admin.allocate_producer_id()
    except MetadataUnavailable:
        # the one retriable error after which no client looks for a transaction coordinator
        return _refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    except MainstemError as refusal:
        return _refused(error_of_refusal(refusal))
    return InitProducerIdResponse(error_code=ErrorCode.NONE, producer_id=producer_id, producer_epoch=0)


async def _transactional(
    broker: Broker, transactional_id: str, request: InitProducerIdRequest, call: RequestContext
) -> InitProducerIdResponse:
    verdicts = broker.verdicts(call.session)
    if not verdicts.allows(Operation.WRITE, ResourceKind.TRANSACTIONAL_ID, transactional_id):
        return _refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if broker.transactions is None:
        return _refused(ErrorCode.UNSUPPORTED_VERSION)
    expected = Producer(request.producer_id, request.producer_epoch)
    asked = Initialization(transactional_id, request.transaction_timeout_ms, expected)
    producer = await broker.transactions.coordinator.initialize(asked)
    if isinstance(producer, ErrorCode):
        return _refused(told(producer, call.version, PRODUCER_FENCED_FROM))
    return InitProducerIdResponse(
        error_code=ErrorCode.NONE, producer_id=producer.producer_id, producer_epoch=producer.producer_epoch
    )


def _refused(error: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error, producer_id=NO_PRODUCER_ID, producer_epoch=NO_EPOCH)
