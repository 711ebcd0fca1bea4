"""DescribeAcls: the access rules that a filter selects, by resource pattern."""

from __future__ import annotations

from mainstem.broker.admin.acl_changes import filter_of, security_disabled, selected
from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from mainstem.security.acls.acl import PatternType, ResourceKind

RULES_PER_TURN = 500
"""Rules described within one turn of the event loop: about a millisecond."""


async def handle(broker: Broker, request: DescribeAclsRequest, call: RequestContext) -> DescribeAclsResponse:
    if broker.authorizer is None:
        return _refused(*security_disabled())
    wanted = filter_of(request)
    if isinstance(wanted, str):
        return _refused(ErrorCode.INVALID_REQUEST, wanted)
    found: dict[tuple[ResourceKind, str, PatternType], list[AclDescription]] = {}
    pace = broker.turns.pace(RULES_PER_TURN)
    for acl in await selected(broker, broker.authorizer.acls(), wanted):
        await pace.step()
        described = AclDescription(
            principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission
        )
        found.setdefault((acl.kind, acl.name, acl.pattern), []).append(described)
    resources = []
    for (kind, name, pattern), acls in found.items():
        await pace.step()
        resources.append(
            DescribeAclsResource(resource_type=kind, resource_name=name, pattern_type=pattern, acls=tuple(acls))
        )
    return DescribeAclsResponse(error_code=ErrorCode.NONE, resources=tuple(resources))


def _refused(error: ErrorCode, message: str) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=error, error_message=message, resources=())
