"""Tells the audit of requests that change something, whatever came of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from mainstem.broker.errors import ERROR_NAMES
from mainstem.broker.request_context import RequestContext
from mainstem.broker.started import Later
from mainstem.protocol import codec
from mainstem.protocol.encoded_array import EncodedArray
from mainstem.protocol.error_codes import ErrorCode
from mainstem.security.audit.audit_log import ALLOWED, AuditLog, of_session
from mainstem.security.audit.config import ADMIN

NAMED_MAX = 100
"""Resources of one request that have a record each; one more tells of the rest."""

Outcomes = Iterator[tuple[str, int]]
"""Resources, and what came of them as Kafka's error codes."""


def _topics(items: Iterable[Any]) -> Outcomes:
    for item in items:
        yield f"topic:{item.name or getattr(item, 'topic_id', '')}", item.error_code


def _partitions(topics: Iterable[Any], code_of: int = 0) -> Outcomes:
    for topic in topics:
        for partition in topic.partitions:
            yield f"topic:{topic.name}-{partition.partition_index}", partition.error_code or code_of


_CONFIGURED = {2: "topic", 4: "node", 8: "node_loggers", 16: "client_metrics", 32: "group"}


def _configured(items: Iterable[Any]) -> Outcomes:
    for item in items:
        kind = _CONFIGURED.get(item.resource_type, str(item.resource_type))
        yield f"{kind}:{item.resource_name}", item.error_code


def _created_acls(request: Any, response: Any) -> Outcomes:
    for acl, result in zip(request.creations, response.results, strict=True):
        yield f"acl:{acl.principal} on {acl.resource_name}", result.error_code


def _deleted_acls(request: Any, response: Any) -> Outcomes:
    for result in response.filter_results:
        if result.error_code or not result.matching_acls:
            yield "acl:", result.error_code
        for acl in result.matching_acls:
            yield f"acl:{acl.principal} on {acl.resource_name}", acl.error_code


def _quotas(items: Iterable[Any]) -> Outcomes:
    for item in items:
        parts = ", ".join(f"{part.entity_type} {part.entity_name or '(default)'}" for part in item.entity)
        yield f"quota:{parts}", item.error_code


def _elected(request: Any, response: Any) -> Outcomes:
    """By topics: what came of each partition can be very much to read, and is told to the client."""
    for topic in request.topic_partitions or ():
        yield f"topic:{topic.topic}", response.error_code
    if request.topic_partitions is None:
        yield "topic:*", response.error_code


ELECT_LEADERS = 43

AUDITED: Mapping[int, Callable[[Any, Any], Outcomes]] = {
    19: lambda request, response: _topics(response.topics),
    20: lambda request, response: _topics(response.responses),
    21: lambda request, response: _partitions(response.topics),
    30: _created_acls,
    31: _deleted_acls,
    33: lambda request, response: _configured(response.responses),
    37: lambda request, response: _topics(response.results),
    42: lambda request, response: ((f"group:{item.group_id}", item.error_code) for item in response.results),
    ELECT_LEADERS: _elected,
    44: lambda request, response: _configured(response.responses),
    45: lambda request, response: _partitions(response.responses, response.error_code),
    47: lambda request, response: iter([(f"group:{request.group_id}", response.error_code)]),
    49: lambda request, response: _quotas(response.entries),
    51: lambda request, response: ((f"user:{item.user}", item.error_code) for item in response.results),
    57: lambda request, response: ((f"feature:{it.feature}", response.error_code) for it in request.feature_updates),
    64: lambda request, response: iter([(f"node:{request.broker_id}", response.error_code)]),
    80: lambda request, response: iter([(f"node:{request.voter_id}", response.error_code)]),
    81: lambda request, response: iter([(f"node:{request.voter_id}", response.error_code)]),
}
"""The resources that the requests of an API are about, by its key: all APIs that change something, but those of
messages and of members of groups."""


async def audited(
    handle: Later[Any], audit: AuditLog, api: tuple[int, str], call: RequestContext, asked: Callable[[], Any]
) -> Any:
    """Handle a request of the API of that key and name; `asked` gives the request once it is decoded."""
    work = handle()
    del handle  # it holds the request, which the work lets go as soon as it can
    try:
        response = await work
    except Exception as error:
        _tell(audit, api[1], call, "", type(error).__name__)
        raise
    try:
        _tell_all(audit, api, call, asked(), response)
    except Exception as error:  # whatever it is, the change was made and is answered
        audit.failed(api[1], error)
    return response


def _tell_all(audit: AuditLog, api: tuple[int, str], call: RequestContext, request: Any, response: Any) -> None:
    key, name = api
    told = 0
    read = response if key == ELECT_LEADERS else _decoded(response, call.version)
    for resource, code in AUDITED[key](request, read):
        told += 1
        if told <= NAMED_MAX:
            _tell(audit, name, call, resource, ALLOWED if code == ErrorCode.NONE else ERROR_NAMES.get(code, str(code)))
    if told > NAMED_MAX:
        _tell(audit, name, call, f"and {told - NAMED_MAX} more", "")


def _tell(audit: AuditLog, name: str, call: RequestContext, resource: str, outcome: str) -> None:
    audit.add(of_session(ADMIN, call.session, call.client_id, name, resource, outcome))


def _decoded(response: Any, version: int) -> Any:
    """A response whose lists are encoded already is read again: a few milliseconds for a thousand topics, which took
    much longer to make."""
    fields = (getattr(response, name) for name in response.__dataclass_fields__)
    if not any(isinstance(value, EncodedArray) for value in fields):
        return response
    return codec.read(type(response), version, memoryview(b"".join(codec.write_parts(response, version))))
