"""AlterClientQuotas: sets and removes quotas. An error in one of an entity's changes refuses all of that entity's, and
no other's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mainstem.broker.broker import Broker
from mainstem.broker.errors import error_of_refusal
from mainstem.broker.request_context import RequestContext
from mainstem.errors import MainstemError
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredQuotas,
    AlteredQuotasResult,
)
from mainstem.security.quotas.quota import entity_of, fault_of
from mainstem.security.quotas.quota_admin import QuotaChange

ENTITIES_PER_TURN = 250
"""Entities checked within one turn of the event loop: about a millisecond."""

Answer = tuple[ErrorCode, str | None]
OK: Answer = (ErrorCode.NONE, None)


async def handle(broker: Broker, request: AlterClientQuotasRequest, call: RequestContext) -> AlterClientQuotasResponse:
    pace = broker.turns.pace(ENTITIES_PER_TURN)
    answers: list[Answer] = []
    changes: list[QuotaChange] = []
    times: Counter[object] = Counter()
    for entry in request.entries:
        await pace.step(1 + len(entry.ops) // 8)
        times[frozenset((part.entity_type, part.entity_name) for part in entry.entity)] += 1
    for entry in request.entries:
        await pace.step(1 + len(entry.ops) // 8)
        made = _change(entry)
        if times[frozenset((part.entity_type, part.entity_name) for part in entry.entity)] > 1:
            made = "the request names this entity more than once"
        if isinstance(made, str):
            answers.append((ErrorCode.INVALID_REQUEST, made))
        else:
            answers.append(OK)
            changes.append(made)
    if not request.validate_only:
        outcomes = iter(await _changed(broker, changes))
        for number, answer in enumerate(answers):
            if answer is OK and (refusal := next(outcomes)) is not None:
                answers[number] = error_of_refusal(refusal), str(refusal)
    return AlterClientQuotasResponse(
        entries=tuple(
            AlteredQuotasResult(error_code=error, error_message=message, entity=entry.entity)
            for entry, (error, message) in zip(request.entries, answers, strict=True)
        )
    )


def _change(entry: AlteredQuotas) -> QuotaChange | str:
    """The changes of an entity, or what is wrong with them."""
    try:
        entity = entity_of((part.entity_type, part.entity_name) for part in entry.entity)
    except ValueError as error:
        return str(error)
    if len({each.key for each in entry.ops}) < len(entry.ops):
        return "a quota is changed twice"
    changes = {each.key: None if each.remove else each.value for each in entry.ops}
    return fault_of(entity, changes) or QuotaChange(entity, changes)


async def _changed(broker: Broker, changes: Sequence[QuotaChange]) -> Sequence[MainstemError | None]:
    if not changes:
        return []
    if broker.quota_admin is None:
        return [MainstemError("this node keeps no quotas")] * len(changes)
    try:
        return await broker.quota_admin.change_quotas(changes)
    except MainstemError as refusal:
        return [refusal] * len(changes)
