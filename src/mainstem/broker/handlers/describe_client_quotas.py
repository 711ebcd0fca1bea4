"""DescribeClientQuotas: the quotas of the entities that a filter selects."""

from __future__ import annotations

from collections.abc import Mapping

from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.errors import MainstemError
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.quotas import (
    MATCH_ANY,
    MATCH_DEFAULT,
    MATCH_EXACT,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribedQuotas,
    QuotaEntityPart,
    QuotaFilterComponent,
    QuotaValue,
)
from mainstem.security.quotas.quota import IP, KINDS, TENANT, Entity

ENTITIES_PER_TURN = 500
"""Entities compared or described within one turn of the event loop: about a millisecond."""


async def handle(
    broker: Broker, request: DescribeClientQuotasRequest, call: RequestContext
) -> DescribeClientQuotasResponse:
    fault = _fault(request)
    if fault is not None:
        return _refused(*fault)
    if broker.quota_admin is None:
        return DescribeClientQuotasResponse(error_code=ErrorCode.NONE, entries=())
    try:
        table = await broker.quota_admin.quotas()
    except MainstemError as error:
        return _refused(ErrorCode.NOT_CONTROLLER, str(error))
    wanted = {each.entity_type: each for each in request.components}
    pace = broker.turns.pace(ENTITIES_PER_TURN)
    entries = []
    for entity, values in list(table):
        await pace.step()
        if _selects(wanted, entity, strict=request.strict):
            entries.append(_described(entity, values))
    return DescribeClientQuotasResponse(error_code=ErrorCode.NONE, entries=tuple(entries))


def _fault(request: DescribeClientQuotasRequest) -> tuple[ErrorCode, str] | None:
    kinds = [each.entity_type for each in request.components]
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        return ErrorCode.UNSUPPORTED_VERSION, f"there are no quotas of {unknown[0][:64]!r}"
    if len(set(kinds)) < len(kinds):
        return ErrorCode.INVALID_REQUEST, "the filter has two components of one kind"
    if len(kinds) > 1 and (IP in kinds or TENANT in kinds):
        return ErrorCode.INVALID_REQUEST, "a quota of an ip or a tenant is of nothing else"
    for each in request.components:
        if each.match_type not in (MATCH_EXACT, MATCH_DEFAULT, MATCH_ANY):
            return ErrorCode.INVALID_REQUEST, f"there is no match of type {each.match_type}"
        if (each.match is None) == (each.match_type == MATCH_EXACT):
            return ErrorCode.INVALID_REQUEST, "an exact match has a name, and no other has one"
    return None


def _selects(wanted: Mapping[str, QuotaFilterComponent], entity: Entity, *, strict: bool) -> bool:
    names = dict(entity)
    if strict and names.keys() != wanted.keys():
        return False
    for kind, component in wanted.items():
        if kind not in names:
            return False
        name = names[kind]
        if component.match_type == MATCH_EXACT and name != component.match:
            return False
        if component.match_type == MATCH_DEFAULT and name is not None:
            return False
    return True


def _described(entity: Entity, values: Mapping[str, float]) -> DescribedQuotas:
    return DescribedQuotas(
        entity=tuple(QuotaEntityPart(entity_type=kind, entity_name=name) for kind, name in entity),
        values=tuple(QuotaValue(key=key, value=value) for key, value in values.items()),
    )


def _refused(error: ErrorCode, message: str) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_code=error, error_message=message, entries=None)
