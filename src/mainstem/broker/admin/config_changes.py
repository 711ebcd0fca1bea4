"""The common part of AlterConfigs and IncrementalAlterConfigs: each resource is changed once, and changes of one
resource follow each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from mainstem.broker.admin import loggers
from mainstem.broker.admin.config_entries import (
    broker_name_fault,
    configs_of,
    fixed_reason,
    loggers_name_fault,
    topic_defaults,
    unsupported_message,
    values_beneath,
)
from mainstem.broker.admin.topic_admin import internal_message, is_internal
from mainstem.broker.broker import Broker
from mainstem.broker.errors import error_of_refusal
from mainstem.errors import MainstemError
from mainstem.model import ResourceType
from mainstem.nameserver.errors import InvalidConfig
from mainstem.nameserver.state.config_value import ConfigType, DeclaredConfig, unknown_config
from mainstem.nameserver.state.topic_config import TOPIC_CONFIGS, config_named
from mainstem.protocol.error_codes import ErrorCode

Answer = tuple[ErrorCode, str | None]

_DONE: Answer = (ErrorCode.NONE, None)


class Overrides(NamedTuple):
    """The configs of a resource: those that are set now, and those that could be."""

    set: Mapping[str, str]
    configs: Mapping[str, DeclaredConfig]
    defaults: Mapping[str, str]
    """The node's own, where they differ from Kafka's."""
    is_topic: bool = False
    is_loggers: bool = False

    def named(self, name: str) -> DeclaredConfig:
        """Raises `InvalidConfig`."""
        if self.is_topic:
            return config_named(name)
        if self.is_loggers:
            return DeclaredConfig(name=name, type=ConfigType.STRING, default="", documentation="")
        if (config := self.configs.get(name)) is None:
            raise unknown_config("config", name, self.configs)
        return config

    def present(self, config: DeclaredConfig) -> str:
        """The value in force."""
        return self.set.get(config.name, self.defaults.get(config.name, config.default))


ChangesOf = Callable[[Overrides], dict[str, str | None]]
"""Computes the changes from what is set now; None removes an override. Raises `InvalidConfig`."""


class _Resource(Protocol):
    @property
    def resource_type(self) -> int: ...

    @property
    def resource_name(self) -> str: ...


R = TypeVar("R", bound=_Resource)
A_co = TypeVar("A_co", covariant=True)


class _AnswerClass(Protocol[A_co]):
    def __call__(
        self, *, error_code: int, error_message: str | None, resource_type: int, resource_name: str
    ) -> A_co: ...


async def answer_each_once(
    resources: Sequence[R], answer_class: _AnswerClass[A_co], change: Callable[[R], Awaitable[Answer]]
) -> tuple[A_co, ...]:
    """The outcome of `change` for each resource of a request; a resource named more than once is refused,
    once."""
    times_named = Counter((item.resource_type, item.resource_name) for item in resources)
    unique = {(item.resource_type, item.resource_name): item for item in resources}
    answers = []
    for key, resource in unique.items():
        answer: Answer = ErrorCode.INVALID_REQUEST, "the request names this resource more than once"
        if times_named[key] == 1:
            answer = await change(resource)
        answers.append(
            answer_class(error_code=answer[0], error_message=answer[1], resource_type=key[0], resource_name=key[1])
        )
    return tuple(answers)


async def alter(
    broker: Broker,
    resource: _Resource,
    configs: Sequence[str],
    changes_of: ChangesOf,
    *,
    validate_only: bool,
    loggers_too: bool = False,
) -> Answer:
    """Change these configs of a resource."""
    match resource.resource_type:
        case ResourceType.TOPIC:
            return await _alter_topic(broker, resource.resource_name, changes_of, validate_only=validate_only)
        case ResourceType.BROKER:
            return await _alter_broker(broker, resource.resource_name, configs, changes_of, validate_only=validate_only)
        case ResourceType.BROKER_LOGGER if loggers_too:
            return _alter_loggers(broker, resource.resource_name, changes_of, validate_only=validate_only)
        case ResourceType.CLIENT_METRICS | ResourceType.GROUP:
            kind = ResourceType(resource.resource_type)
            return await _alter_resource(broker, kind, resource.resource_name, changes_of, validate_only=validate_only)
        case other:
            return ErrorCode.INVALID_REQUEST, unsupported_message(other)


async def _alter_topic(broker: Broker, name: str, changes_of: ChangesOf, *, validate_only: bool) -> Answer:
    async with broker.topic_changes.of([name]):  # appending to a list reads it first
        topic = broker.metadata.topic(name)
        if topic is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name[:260]!r}"
        if is_internal(broker, name):
            return ErrorCode.INVALID_TOPIC_EXCEPTION, internal_message(name)
        overrides = Overrides(topic.configs, TOPIC_CONFIGS, topic_defaults(broker), is_topic=True)
        try:
            await broker.metadata_admin.alter_configs(name, changes_of(overrides), validate_only=validate_only)
        except MainstemError as refusal:
            return error_of_refusal(refusal), str(refusal)
    return _DONE


async def _alter_resource(
    broker: Broker, kind: ResourceType, name: str, changes_of: ChangesOf, *, validate_only: bool
) -> Answer:
    async with broker.topic_changes.of([f"{kind.name}:{name}"]):  # no topic's name has a colon
        is_broker = kind is ResourceType.BROKER
        defaults = values_beneath(broker, name) if is_broker else broker.facts.group_defaults
        overrides = Overrides(broker.configs.of(kind, name), configs_of(kind), defaults)
        try:
            if changes := changes_of(overrides):
                await broker.configs.change(kind, name, changes, validate_only=validate_only)
        except MainstemError as refusal:
            return error_of_refusal(refusal), str(refusal)
    return _DONE


async def _alter_broker(
    broker: Broker, name: str, configs: Sequence[str], changes_of: ChangesOf, *, validate_only: bool
) -> Answer:
    fault = broker_name_fault(broker, name)
    reasons = (fixed_reason(broker, config) for config in configs)
    fault = fault or next((reason for reason in reasons if reason is not None), None)
    if fault is not None:
        return ErrorCode.INVALID_REQUEST, fault
    return await _alter_resource(broker, ResourceType.BROKER, name, changes_of, validate_only=validate_only)


def _alter_loggers(broker: Broker, name: str, changes_of: ChangesOf, *, validate_only: bool) -> Answer:
    if (fault := loggers_name_fault(broker, name)) is not None:
        return ErrorCode.INVALID_REQUEST, fault
    try:
        changes = changes_of(Overrides(dict(loggers.levels()), {}, {}, is_loggers=True))
    except InvalidConfig as refusal:
        return ErrorCode.INVALID_REQUEST, str(refusal)
    if changes.get(loggers.ROOT, "") is None:  # Kafka's code for it is another than for a name or level that is not
        return ErrorCode.INVALID_REQUEST, "the root logger always has a level"
    if (fault := loggers.fault_of(changes)) is not None:
        return ErrorCode.INVALID_CONFIG, fault
    if not validate_only:
        loggers.change(changes)
    return _DONE
