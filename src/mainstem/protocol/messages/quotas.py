"""Client quotas.

DescribeClientQuotas: the quotas of the entities that a filter selects.
AlterClientQuotas: set and remove quotas, entity by entity.
"""

from __future__ import annotations

from mainstem.protocol.schema import array, boolean, float64, int8, int16, int32, message, nested, string, wire

MATCH_EXACT, MATCH_DEFAULT, MATCH_ANY = 0, 1, 2


@nested
class QuotaFilterComponent:
    entity_type: str = wire(string)
    match_type: int = wire(int8)
    match: str | None = wire(string, nullable="0+")


@message(api_key=48, versions="0-1", flexible="1+")
class DescribeClientQuotasRequest:
    components: tuple[QuotaFilterComponent, ...] = wire(array(QuotaFilterComponent))
    strict: bool = wire(boolean)


@nested
class QuotaEntityPart:
    entity_type: str = wire(string)
    entity_name: str | None = wire(string, nullable="0+")


@nested
class QuotaValue:
    key: str = wire(string)
    value: float = wire(float64)


@nested
class DescribedQuotas:
    entity: tuple[QuotaEntityPart, ...] = wire(array(QuotaEntityPart))
    values: tuple[QuotaValue, ...] = wire(array(QuotaValue))


@message(api_key=48, versions="0-1", flexible="1+")
class DescribeClientQuotasResponse:
    throttle_time_ms: int = wire(int32, default=0)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)
    entries: tuple[DescribedQuotas, ...] | None = wire(array(DescribedQuotas), nullable="0+", default=None)


@nested
class QuotaOperation:
    key: str = wire(string)
    value: float = wire(float64)
    remove: bool = wire(boolean)


@nested
class AlteredQuotas:
    entity: tuple[QuotaEntityPart, ...] = wire(array(QuotaEntityPart))
    ops: tuple[QuotaOperation, ...] = wire(array(QuotaOperation))


@message(api_key=49, versions="0-1", flexible="1+", elements_max=100_000)
class AlterClientQuotasRequest:
    entries: tuple[AlteredQuotas, ...] = wire(array(AlteredQuotas))
    validate_only: bool = wire(boolean)


@nested
class AlteredQuotasResult:
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)
    entity: tuple[QuotaEntityPart, ...] = wire(array(QuotaEntityPart))


@message(api_key=49, versions="0-1", flexible="1+")
class AlterClientQuotasResponse:
    throttle_time_ms: int = wire(int32, default=0)
    entries: tuple[AlteredQuotasResult, ...] = wire(array(AlteredQuotasResult))
