"""FindCoordinator: the node that coordinates a consumer group.

There are no share groups, and no transactions yet. A request for the coordinator of a transaction is refused
with the error that every client takes for final: told that there is none at the moment, producers would go on
asking until their time is over, and then blame the time.
"""

from __future__ import annotations

from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.model import Node, nodes_at
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
    if key_type == KEY_TYPE_TRANSACTION:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NOWHERE
    if key_type != KEY_TYPE_GROUP:
        return ErrorCode.INVALID_REQUEST, NOWHERE
    if not broker.verdicts(call.session).allows(Operation.DESCRIBE, ResourceKind.GROUP, key):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED, NOWHERE
    leader = await broker.groups.leader_of(key)
    for node in nodes_at(broker.cluster.alive_nodes(), call.session.listener):
        if node.node_id == leader:
            return ErrorCode.NONE, node
    return ErrorCode.COORDINATOR_NOT_AVAILABLE, NOWHERE


def _message(code: ErrorCode) -> str | None:
    if code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        return "transactions are not supported"
    return None if code is ErrorCode.NONE else code.message
