"""AddOffsetsToTxn: takes the offsets of a consumer group into a producer's transaction."""

from __future__ import annotations

from mainstem.broker.broker import Broker
from mainstem.broker.consumer_groups.offsets_topic import OFFSETS_TOPIC
from mainstem.broker.errors import CoordinatorRefusal
from mainstem.broker.handlers.add_partitions_to_txn import PRODUCER_FENCED_FROM, told
from mainstem.broker.machines.coordinator_topic import coordinator_partition_of
from mainstem.broker.request_context import RequestContext
from mainstem.broker.transactions.transitions import Producer
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.producer_transactions import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from mainstem.security.acls.acl import Operation, ResourceKind


async def handle(broker: Broker, request: AddOffsetsToTxnRequest, call: RequestContext) -> AddOffsetsToTxnResponse:
    code = await _added(broker, request, call)
    return AddOffsetsToTxnResponse(error_code=told(code, call.version, PRODUCER_FENCED_FROM))


async def _added(broker: Broker, request: AddOffsetsToTxnRequest, call: RequestContext) -> ErrorCode:
    verdicts = broker.verdicts(call.session)
    if not verdicts.allows(Operation.WRITE, ResourceKind.TRANSACTIONAL_ID, request.transactional_id):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not verdicts.allows(Operation.READ, ResourceKind.GROUP, request.group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    if broker.transactions is None:
        return ErrorCode.UNSUPPORTED_VERSION
    try:
        topic = await broker.groups.served.open()
    except CoordinatorRefusal as refusal:
        return refusal.code
    partition = OFFSETS_TOPIC, coordinator_partition_of(request.group_id, topic.partitions)
    producer = Producer(request.producer_id, request.producer_epoch)
    return await broker.transactions.coordinator.add(request.transactional_id, producer, [partition], 0)
