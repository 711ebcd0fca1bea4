"""FindCoordinator: the node that coordinates a group or a transactional id, or has the state of a share group over a
partition, which is that partition's leader.

While not all nodes of the cluster know transactions, a request for their coordinator is refused with
UNSUPPORTED_VERSION, which is final and no matter of rights: told that there is none at the moment, producers would go
on asking until their time is over, and then blame the time.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from uuid import UUID

from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.model import FeatureLevel, Node, nodes_at
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.group_membership import (
    KEY_TYPE_GROUP,
    KEY_TYPE_SHARE,
    KEY_TYPE_TRANSACTION,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from mainstem.security.acls.acl import Operation, ResourceKind

SEVERAL_KEYS_FROM = 4

KEYS_PER_TURN = 100
"""Keys answered within one turn of the event loop: about a millisecond."""

NOWHERE = Node(node_id=-1, host="", port=-1)


async def handle(broker: Broker, request: FindCoordinatorRequest, call: RequestContext) -> FindCoordinatorResponse:
    if call.version < SEVERAL_KEYS_FROM:
        code, node = await _coordinator(broker, request.key_type, request.key, call)
        return FindCoordinatorResponse(
            error_code=code,
            error_message=_message(code),
            node_id=node.node_id,
            host=node.host,
            port=node.port,
        )
    found = []
    pace = broker.turns.pace(KEYS_PER_TURN)
    for key in request.coordinator_keys:
        await pace.step()
        code, node = await _coordinator(broker, request.key_type, key, call)
        found.append(
            Coordinator(
                key=key,
                node_id=node.node_id,
                host=node.host,
                port=node.port,
                error_code=code,
                error_message=_message(code),
            )
        )
    return FindCoordinatorResponse(coordinators=tuple(found))


async def _coordinator(broker: Broker, key_type: int, key: str, call: RequestContext) -> tuple[ErrorCode, Node]:
    verdicts = broker.verdicts(call.session)
    if key_type == KEY_TYPE_TRANSACTION:
        if not verdicts.allows(Operation.DESCRIBE, ResourceKind.TRANSACTIONAL_ID, key):
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NOWHERE
        if broker.transactions is None or not broker.transactions.coordinator.enabled:
            return ErrorCode.UNSUPPORTED_VERSION, NOWHERE
        return _node(broker, await broker.transactions.coordinator.leader_of(key), call)
    if key_type == KEY_TYPE_SHARE:
        return _share_coordinator(broker, key, call)
    if key_type != KEY_TYPE_GROUP:
        return ErrorCode.INVALID_REQUEST, NOWHERE
    if not verdicts.allows(Operation.DESCRIBE, ResourceKind.GROUP, key):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED, NOWHERE
    return _node(broker, await broker.groups.leader_of(key), call)


def _share_coordinator(broker: Broker, key: str, call: RequestContext) -> tuple[ErrorCode, Node]:
    """`key` is GROUP:TOPIC-ID:PARTITION, with the topic's id as Kafka writes it, in base64."""
    if not broker.verdicts(call.session).allows_on_cluster(Operation.CLUSTER_ACTION):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED, NOWHERE
    group_id, _, rest = key.rpartition(":")[0].rpartition(":")
    partition = key.rpartition(":")[2]
    try:
        topic_id = UUID(bytes=urlsafe_b64decode(rest + "=="))
        index = int(partition)
    except ValueError:
        return ErrorCode.INVALID_REQUEST, NOWHERE
    topic = broker.metadata.topic_by_id(topic_id)
    if not group_id or topic is None or not 0 <= index < topic.partitions:
        return ErrorCode.INVALID_REQUEST, NOWHERE
    return _node(broker, broker.routing.broker_of(topic.queue_id(index)), call)


def _node(broker: Broker, leader: int, call: RequestContext) -> tuple[ErrorCode, Node]:
    for node in nodes_at(broker.cluster.alive_nodes(), call.session.listener):
        if node.node_id == leader:
            return ErrorCode.NONE, node
    return ErrorCode.COORDINATOR_NOT_AVAILABLE, NOWHERE


def _message(code: ErrorCode) -> str | None:
    if code is ErrorCode.UNSUPPORTED_VERSION:
        return f"transactions take feature level {FeatureLevel.TRANSACTIONAL} of the cluster"
    return None if code is ErrorCode.NONE else code.message
