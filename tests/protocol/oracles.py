"""Two published codecs to check ours against: kio (typed) and kafka-python (from Kafka's own schemas).

Both are translated to plain tuples: a message is the tuple of its fields' values, in wire order, of the
fields that its version has.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import io
from typing import Any
from uuid import UUID

from kio.index import load_payload_module
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from mainstem.protocol.messages.metadata import AUTHORIZED_OPERATIONS_UNKNOWN
from mainstem.protocol.schema import ArrayKind, FixedKind, Kind, StructKind, declaration_of, records, uuid

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)


def plain(message: Any, version: int) -> tuple[Any, ...]:
    """One of our messages as nested tuples."""
    return tuple(
        _plain_value(field.kind, getattr(message, field.name), version)
        for field in declaration_of(message.__class__).fields
        if version in field.versions
    )


def _plain_value(kind: Kind[Any], value: Any, version: int) -> Any:
    if value is None:
        return None
    if isinstance(kind, StructKind):
        return plain(value, version)
    if isinstance(kind, ArrayKind):
        return tuple(_plain_value(kind.element, item, version) for item in value)
    return bytes(value) if kind is records else value


def field_names(message_class: type[Any], version: int) -> list[str]:
    return [field.name for field in declaration_of(message_class).fields if version in field.versions]


# kio


def kio_class(api_key: int, name: str, version: int) -> type[Any]:
    is_request = name.endswith("Request")
    module = load_payload_module(api_key, version, EntityType.request if is_request else EntityType.response)
    found: type[Any] = getattr(module, name)
    return found


def kio_read(entity: type[Any], data: bytes) -> tuple[Any, int]:
    """The message and how many bytes it took."""
    message, size = entity_reader(entity)(data, 0)
    return message, size


def kio_write(message: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(message))(out, message)
    return out.getvalue()


def kio_plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return tuple(kio_plain(getattr(value, field.name)) for field in dataclasses.fields(value))
    if isinstance(value, tuple):
        return tuple(kio_plain(item) for item in value)
    if isinstance(value, datetime.timedelta):
        return value // _MILLISECOND
    if isinstance(value, datetime.datetime):
        return (value - _EPOCH) // _MILLISECOND
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, bool | UUID | float) or value is None:
        return value
    return int(value) if isinstance(value, int) else str(value)


def without_nulls(value: Any) -> Any:
    """kio gives null for a zero UUID and for a time of -1; for comparison both become null."""
    if isinstance(value, tuple):
        return tuple(without_nulls(item) for item in value)
    return None if value == UUID(int=0) or value == -1 else value


# kafka-python


def kafka_python_class(name: str) -> type[Any]:
    for package in ("admin", "consumer", "producer", "metadata", "sasl"):
        module = importlib.import_module(f"kafka.protocol.{package}")
        if hasattr(module, name):
            found: type[Any] = getattr(module, name)
            return found
    raise LookupError(name)


def kafka_python_read(other: type[Any], data: bytes, version: int) -> Any:
    message = other.decode(data, version=version)
    message._header = None  # noqa: SLF001  # its decoder forgets to set what its encoder looks at
    return message


def kafka_python_plain(message_class: type[Any], value: Any, version: int) -> tuple[Any, ...]:
    """A kafka-python message read through the fields of ours."""
    plain_values = []
    for field in declaration_of(message_class).fields:
        if version in field.versions:
            name = _kafka_python_name(field.name)
            found = getattr(value, name if hasattr(value, name) else field.name)
            is_null = found is None and version in field.nullable and isinstance(field.kind, StructKind)
            plain_values.append(None if is_null else _kafka_python_value(field.kind, found, version))
    return tuple(plain_values)


def _kafka_python_name(name: str) -> str:
    """It shortens the names of authorized operations in most responses."""
    shortened = name.endswith("_authorized_operations") and not name.startswith("include")
    return "authorized_operations" if shortened else name


def _kafka_python_value(kind: Kind[Any], value: Any, version: int) -> Any:
    if value is None and isinstance(kind, FixedKind):
        return AUTHORIZED_OPERATIONS_UNKNOWN  # the only number that it turns into a null
    if isinstance(kind, StructKind):
        if value is None:  # its way to say that a tagged structure was not sent
            return plain(kind.struct_class(), version)
        return kafka_python_plain(kind.struct_class, value, version)
    if value is None:
        return UUID(int=0) if kind is uuid else None
    if isinstance(kind, ArrayKind):
        return tuple(_kafka_python_value(kind.element, item, version) for item in value)
    if isinstance(value, set):  # authorized operations, as the numbers of the bits that are set
        bits = sum(1 << bit for bit in value)
        return bits - (1 << 32) if bits >= 1 << 31 else bits
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    return value
