"""Those whom quotas are of, as the commands name them, and their quotas as a node tells them and changes them.

librdkafka has no API for quotas: the commands speak Kafka's protocol themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from mainstem.cli.clients.client_settings import settings_of
from mainstem.cli.clients.kafka_connection import KafkaConnections
from mainstem.cli.errors import RequestRefused
from mainstem.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlteredQuotas,
    DescribeClientQuotasRequest,
    QuotaEntityPart,
    QuotaOperation,
)
from mainstem.security.quotas.quota import CLIENT_ID, IP, KINDS, TENANT, USER, Entity, entity_of
from mainstem.security.quotas.quota_table import QuotaTable

VERSION = 1
_WORDS = {USER: "user", CLIENT_ID: "client id", IP: "IP address", TENANT: "tenant"}


def entity_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--user NAME`, `--every-user` and so on; `entity_given` makes an entity of them."""
    for kind in reversed(KINDS):
        every = f"Quotas of each {_WORDS[kind]} that has none of its own."
        command = click.option(f"--every-{kind}", _every(kind), is_flag=True, help=every)(command)
        command = click.option(f"--{kind}", _named(kind), metavar="NAME", help=f"Quotas of this {_WORDS[kind]}.")(
            command
        )
    return command


def parts_given(given: Mapping[str, Any]) -> dict[str, str | None]:
    """By kind its name, None for the default. Raises click.UsageError."""
    parts: dict[str, str | None] = {}
    for kind in KINDS:
        name, every = given[_named(kind)], given[_every(kind)]
        if name is not None and every:
            raise click.UsageError(f"--{kind} and --every-{kind} say different things")
        if name is not None or every:
            parts[kind] = name
    return parts


def entity_given(given: Mapping[str, Any]) -> Entity:
    """Raises click.UsageError."""
    try:
        return entity_of(parts_given(given).items())
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def without_entity(given: Mapping[str, Any]) -> dict[str, Any]:
    """The other options."""
    taken = {name(kind) for kind in KINDS for name in (_named, _every)}
    return {name: value for name, value in given.items() if name not in taken}


def quotas_of(bootstrap: str) -> QuotaTable:
    """All quotas of the cluster. Raises RequestRefused, NodeUnreachable, NotAdmitted."""
    response = _asked(bootstrap, DescribeClientQuotasRequest(components=(), strict=False))
    if response.error_code:
        raise RequestRefused(f"the quotas were not listed: {response.error_message or response.error_code}")
    table = QuotaTable()
    for entry in response.entries or ():
        entity = tuple(sorted((part.entity_type, part.entity_name) for part in entry.entity))
        table.change(entity, {each.key: each.value for each in entry.values})
    return table


def change(bootstrap: str, entity: Entity, changes: Mapping[str, float | None]) -> None:
    """Set quotas (value) and remove them (None). Raises as `quotas_of`."""
    ops = tuple(QuotaOperation(key=key, value=value or 0.0, remove=value is None) for key, value in changes.items())
    parts = tuple(QuotaEntityPart(entity_type=kind, entity_name=name) for kind, name in entity)
    request = AlterClientQuotasRequest(entries=(AlteredQuotas(entity=parts, ops=ops),), validate_only=False)
    (result,) = _asked(bootstrap, request).entries
    if result.error_code:
        raise RequestRefused(f"the quotas were not changed: {result.error_message or result.error_code}")


def text_of(entity: Entity) -> str:
    """An entity for people."""
    return ", ".join(f"every {_WORDS[kind]}" if name is None else f"{_WORDS[kind]} {name}" for kind, name in entity)


def data_of(entity: Entity) -> dict[str, str | None]:
    """An entity as JSON output has it: names by kind, null for the default."""
    return dict(entity)


def _asked(bootstrap: str, request: Any) -> Any:
    connections = KafkaConnections(settings_of(bootstrap))
    try:
        return connections.call_any(bootstrap, request, VERSION)
    finally:
        connections.close()


def _named(kind: str) -> str:
    return kind.replace("-", "_")


def _every(kind: str) -> str:
    return f"every_{_named(kind)}"
