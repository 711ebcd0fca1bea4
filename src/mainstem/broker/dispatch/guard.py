"""Stands before the handlers where there is an authorizer: refuses what `access_table.py` says that a client may not
do, and hands the rest of the request on.

A refused item looks like any other failure of the same items (`failures.py`), and is made in slices: a client may name
a quarter of a million partitions that it may not see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from mainstem.broker.broker import Broker
from mainstem.broker.dispatch.access_table import ACCESS, CODES, Both, Each, Inside, Open, Whole
from mainstem.broker.dispatch.failures import ERROR_CODE, FailureAnswer, failure_response
from mainstem.broker.dispatch.routes import Handler, Route
from mainstem.broker.partitions import in_steps
from mainstem.broker.request_context import RequestContext
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages import ApiDeclaration
from mainstem.protocol.schema import ArrayKind, declaration_of
from mainstem.security.audit.audit_log import of_session
from mainstem.security.audit.config import DENIED

ITEMS_PER_TURN = 500
"""Items checked or refused within one turn of the event loop: a millisecond or two."""


def guarded(routes: Iterable[Route]) -> list[Route]:
    """The same routes for a node with an authorizer. Raises KeyError for one that the table has no row of."""
    return [_guarded(route) for route in routes]


def _guarded(route: Route) -> Route:
    match ACCESS[route.api.api_key]:
        case Open() | Inside():
            return route
        case Whole() as whole:
            return replace(route, handle=_Guard(route.api, _handler(route), (whole,), None))
        case Each() as each:
            return replace(route, handle=_Guard(route.api, _handler(route), (), each))
        case Both(whole=whole, each=each, also=also):
            wholes = (whole,) if also is None else (whole, also)
            return replace(route, handle=_Guard(route.api, _handler(route), wholes, each))


def _handler(route: Route) -> Handler:
    assert route.handle is not None, "requests that begin in their dispatch are checked by their handlers"
    return route.handle


class _Guard:
    """Handles the requests of one API."""

    def __init__(self, api: ApiDeclaration, handle: Handler, wholes: Sequence[Whole], each: Each | None) -> None:
        self._api = api
        self._handle = handle
        self._wholes = wholes
        self._each = each

    async def __call__(self, broker: Broker, request: Any, call: RequestContext) -> Any:
        for whole in self._wholes:
            kind, name = whole.resource_of(request)
            if not broker.verdicts(call.session).allows(whole.operation, kind, name):
                return await self._refused(broker, request, call, CODES[kind])
        if self._each is None:
            return await self._handle(broker, request, call)
        allowed, denied = await _sorted_out(broker, self._each, request, call)
        if not denied:
            return await self._handle(broker, request, call)
        responses = []
        if allowed:
            responses.append(await self._handle(broker, replace(request, **{self._each.items: tuple(allowed)}), call))
        for code, items in denied.items():
            refused = replace(request, **{self._each.items: tuple(items)})
            responses.append(await self._refused(broker, refused, call, code))
        return _joined(responses)

    async def _refused(self, broker: Broker, request: Any, call: RequestContext, code: ErrorCode) -> Any:
        """The response in which everything that a request names is refused."""
        if broker.audit is not None:
            broker.audit.add(of_session(DENIED, call.session, call.client_id, self._api.name, "", code.name))
        refusal = FailureAnswer(code, code.message)
        responses = []
        for part in _parts(request, self._each):
            response = failure_response(self._api.response, call.version, part, refusal)
            if getattr(response, ERROR_CODE, ErrorCode.NONE):
                return response  # which refuses all of it at once
            responses.append(response)
            await broker.turns.take()
        return _joined(responses)


async def _sorted_out(
    broker: Broker, each: Each, request: Any, call: RequestContext
) -> tuple[list[Any], dict[ErrorCode, list[Any]]]:
    """The items of a request that are allowed, and those that are not, by the error that they are refused with."""
    allowed: list[Any] = []
    denied: dict[ErrorCode, list[Any]] = {}
    if each.or_on_cluster is not None and broker.verdicts(call.session).allows_on_cluster(each.or_on_cluster):
        return list(getattr(request, each.items)), denied
    pace = broker.turns.pace(ITEMS_PER_TURN)
    for item in getattr(request, each.items):
        await pace.step()
        resource = each.resource_of(broker, item, call.version)
        if resource is None or broker.verdicts(call.session).allows(each.operation, *resource):
            allowed.append(item)
        else:
            denied.setdefault(CODES[resource.kind], []).append(item)
    return allowed, denied


def _parts(request: Any, each: Each | None) -> Iterator[Any]:
    """The request in parts that are small enough to be refused at once."""
    field = each.items if each is not None else _first_list(request)
    items: Sequence[Any] = (getattr(request, field) or ()) if field else ()
    if each is not None and each.partitions:
        steps = [tuple(step.topics) for step in in_steps(items, each.partitions, ITEMS_PER_TURN)]
    else:
        steps = [tuple(items[first : first + ITEMS_PER_TURN]) for first in range(0, len(items), ITEMS_PER_TURN)]
    if not steps:
        yield request
    for step in steps:
        yield replace(request, **{field: step})


def _first_list(request: Any) -> str:
    """The name of the first list of a request; empty: it has none."""
    return next((field.name for field in declaration_of(type(request)).fields if isinstance(field.kind, ArrayKind)), "")


def _joined(responses: Sequence[Any]) -> Any:
    """One response with the items of several."""
    first, *others = responses
    if not others:
        return first
    field = next(field.name for field in declaration_of(type(first)).fields if isinstance(field.kind, ArrayKind))
    return replace(first, **{field: tuple([item for each in responses for item in getattr(each, field)])})
