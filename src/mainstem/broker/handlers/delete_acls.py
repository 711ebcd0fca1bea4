"""DeleteAcls: removes the access rules that filters select. This node first applies all that was decided before, so
that no rule is left out because this node has not heard of it yet."""

from __future__ import annotations

from mainstem.broker.admin.acl_changes import filter_of, outcome_of, security_disabled, selected
from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.errors import MainstemError
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from mainstem.security.acls.acl_admin import AclAdmin
from mainstem.security.acls.authorizer import Authorizer


async def handle(broker: Broker, request: DeleteAclsRequest, call: RequestContext) -> DeleteAclsResponse:
    if broker.authorizer is None or broker.acl_admin is None:
        return DeleteAclsResponse(filter_results=(_refused(*security_disabled()),) * len(request.filters))
    try:
        await broker.acl_admin.current()
    except MainstemError as refusal:
        code, message = outcome_of(refusal)
        return DeleteAclsResponse(filter_results=(_refused(code, message),) * len(request.filters))
    return DeleteAclsResponse(
        filter_results=tuple(
            [await _delete(broker, broker.authorizer, broker.acl_admin, asked) for asked in request.filters]
        )
    )


async def _delete(
    broker: Broker, authorizer: Authorizer, admin: AclAdmin, asked: DeleteAclsFilter
) -> DeleteAclsFilterResult:
    wanted = filter_of(asked)
    if isinstance(wanted, str):
        return _refused(ErrorCode.INVALID_REQUEST, wanted)
    acls = await selected(broker, authorizer.acls(), wanted)
    outcomes: list[MainstemError | None]
    try:
        outcomes = await admin.remove_acls(acls)
    except MainstemError as refusal:
        outcomes = [refusal] * len(acls)
    deleted = []
    for acl, outcome in zip(acls, outcomes, strict=True):
        code, message = outcome_of(outcome)
        deleted.append(
            DeleteAclsMatchingAcl(
                error_code=code,
                error_message=message,
                resource_type=acl.kind,
                resource_name=acl.name,
                pattern_type=acl.pattern,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
        )
    return DeleteAclsFilterResult(error_code=ErrorCode.NONE, matching_acls=tuple(deleted))


def _refused(error: ErrorCode, message: str | None) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(error_code=error, error_message=message, matching_acls=())
