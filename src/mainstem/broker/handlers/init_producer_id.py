"""InitProducerId: gives an idempotent producer a fresh identity.

Without a transactional id Kafka hands out a new producer id whatever the request carries: after a sequence
error an idempotent producer raises its epoch on its own (KIP-360), and asks here only when epochs run out.
Transactional ids are refused with the error that every client takes for final.
"""

from __future__ import annotations

from mainstem.broker.broker import Broker
from mainstem.broker.errors import error_of_refusal
from mainstem.broker.request_context import RequestContext
from mainstem.errors import MainstemError
from mainstem.nameserver.errors import MetadataUnavailable
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from mainstem.security.acls.acl import Operation, ResourceKind

NO_PRODUCER_ID = -1
NO_EPOCH = -1


async def handle(broker: Broker, request: InitProducerIdRequest, call: RequestContext) -> InitProducerIdResponse:
    if request.transactional_id is not None:
        empty = request.transactional_id == ""
        return _refused(ErrorCode.INVALID_REQUEST if empty else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
        return _refused(ErrorCode.INVALID_REQUEST)
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


def _refused(error: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error, producer_id=NO_PRODUCER_ID, producer_epoch=NO_EPOCH)
