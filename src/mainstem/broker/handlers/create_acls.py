"""CreateAcls: adds access rules. Each is added or refused by itself; one that is there already is no error."""

from __future__ import annotations

from mainstem.broker.admin.acl_changes import acl_of, outcome_of, security_disabled
from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.errors import MainstemError
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from mainstem.security.acls.acl import Acl

RULES_PER_TURN = 500
"""Rules checked within one turn of the event loop: about a millisecond."""


async def handle(broker: Broker, request: CreateAclsRequest, call: RequestContext) -> CreateAclsResponse:
    if broker.authorizer is None or broker.acl_admin is None:
        disabled, why = security_disabled()
        refused = AclCreationResult(error_code=disabled, error_message=why)
        return CreateAclsResponse(results=(refused,) * len(request.creations))
    pace = broker.turns.pace(RULES_PER_TURN)
    results: list[AclCreationResult | None] = []
    acls: list[Acl] = []
    for asked in request.creations:
        await pace.step()
        acl = acl_of(asked)
        if isinstance(acl, str):
            results.append(AclCreationResult(error_code=ErrorCode.INVALID_REQUEST, error_message=acl))
        else:
            results.append(None)
            acls.append(acl)
    outcomes: list[MainstemError | None]
    try:
        outcomes = await broker.acl_admin.add_acls(acls)
    except MainstemError as refusal:
        outcomes = [refusal] * len(acls)
    following = iter(outcomes)
    answers = []
    for result in results:
        await pace.step()
        if result is None:
            code, message = outcome_of(next(following))
            answers.append(AclCreationResult(error_code=code, error_message=message))
        else:
            answers.append(result)
    return CreateAclsResponse(results=tuple(answers))
