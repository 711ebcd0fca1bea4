"""FindCoordinator: the node that coordinates a consumer group or a transactional id.

While not all nodes of the cluster know transactions, a request for their coordinator is refused with
UNSUPPORTED_VERSION, which is final and no matter of rights: told that there is none at the moment, producers would go
on asking until their time is over, and then blame the time.
"""

from __future__ import annotations

from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.model import FeatureLevel, Node, nodes_at
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.group_membership import (
    KEY_TYPE_GROUP,
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
        leader = await broker.transactions.coordinator.leader_of(key)
    elif key_type == KEY_TYPE_GROUP:
        if not verdicts.allows(Operation.DESCRIBE, ResourceKind.GROUP, key):
            return ErrorCode.GROUP_AUTHORIZATION_FAILED, NOWHERE
        leader = await broker.groups.leader_of(key)
    else:
        return ErrorCode.INVALID_REQUEST, NOWHERE
    for node in nodes_at(broker.cluster.alive_nodes(), call.session.listener):
        if node.node_id == leader:
            return ErrorCode.NONE, node
    return ErrorCode.COORDINATOR_NOT_AVAILABLE, NOWHERE


def _message(code: ErrorCode) -> str | None:
    if code is ErrorCode.UNSUPPORTED_VERSION:
        return f"transactions take feature level {FeatureLevel.TRANSACTIONAL} of the cluster"
    return None if code is ErrorCode.NONE else code.message
