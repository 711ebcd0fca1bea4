"""DescribeConfigs: the configs of topics and brokers, with their sources and meanings."""

from __future__ import annotations

from collections.abc import Iterable

from mainstem.broker.admin.config_entries import (
    ConfigEntry,
    all_brokers_entries,
    broker_entries,
    broker_name_fault,
    logger_entries,
    resource_entries,
    topic_entries,
    unsupported_message,
)
from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.model import ResourceType
from mainstem.nameserver.state.resource_configs.broker_configs import ALL_BROKERS
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)


async def handle(broker: Broker, request: DescribeConfigsRequest, call: RequestContext) -> DescribeConfigsResponse:
    results = []
    seen: set[tuple[int, str, tuple[str, ...] | None]] = set()
    for resource in request.resources:
        await broker.turns.take()  # some hundred entries of several objects each: up to a millisecond
        named = resource.resource_type, resource.resource_name, resource.configuration_keys
        if named in seen:
            continue
        seen.add(named)
        error, message, entries = _entries(broker, resource)
        keys = frozenset(resource.configuration_keys or ())  # null or empty: all of them
        configs = tuple(_config(entry, request) for entry in entries if not keys or entry.name in keys)
        results.append(
            DescribeConfigsResult(
                error_code=error,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=configs,
            )
        )
    return DescribeConfigsResponse(results=tuple(results))


def _entries(broker: Broker, resource: DescribeConfigsResource) -> tuple[ErrorCode, str | None, Iterable[ConfigEntry]]:
    name = resource.resource_name
    match resource.resource_type:
        case ResourceType.TOPIC:
            topic = broker.metadata.topic(name)
            if topic is None:
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name[:260]!r}", ()
            return ErrorCode.NONE, None, topic_entries(broker, topic.configs)
        case ResourceType.BROKER:
            fault = broker_name_fault(broker, name)
            if fault is not None:
                return ErrorCode.INVALID_REQUEST, fault, ()
            return ErrorCode.NONE, None, all_brokers_entries(broker) if name == ALL_BROKERS else broker_entries(broker)
        case ResourceType.BROKER_LOGGER:
            if name != str(broker.node_id):
                return (
                    ErrorCode.INVALID_REQUEST,
                    f"this is broker {broker.node_id}; ask broker {name[:20]!r} itself",
                    (),
                )
            return ErrorCode.NONE, None, logger_entries()
        case ResourceType.CLIENT_METRICS | ResourceType.GROUP if not name:
            return ErrorCode.INVALID_REQUEST, "groups and subscriptions to client metrics have names", ()
        case ResourceType.CLIENT_METRICS | ResourceType.GROUP as kind:
            return ErrorCode.NONE, None, resource_entries(broker, ResourceType(kind), name)
        case other:
            return ErrorCode.INVALID_REQUEST, unsupported_message(other), ()


def _config(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms: tuple[DescribeConfigsSynonym, ...] = ()
    if request.include_synonyms:
        synonyms = tuple(
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in entry.synonyms
            if synonym.value is not None
        )
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=synonyms,
        config_type=entry.type.value,
        documentation=entry.documentation if request.include_documentation else None,
    )
