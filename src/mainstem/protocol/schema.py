"""How a message of Kafka's protocol is declared: once, with version ranges.

A message is a frozen, slotted, keyword-only dataclass whose fields are made by `wire`::

    @message(api_key=12, versions="0-4", flexible="4+")
    class HeartbeatRequest:
        group_id: str = wire(string)
        group_instance_id: str | None = wire(string, "3+", nullable="3+", default=None)

The declaration is everything the codec knows. Readers and writers are compiled from it, one per
(message, version), by `mainstem.protocol.codec`; nothing is compiled at import.

Rules a declaration obeys (checked here or when a codec is compiled):

* fields stand in wire order, which is Kafka's order in every version;
* a field that some supported version lacks has a default: what readers of those versions see, and the
  only value writers of those versions accept, unless the field is ignorable;
* a tagged field is omitted from the wire when it equals its default.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, dataclass_transform, overload
from uuid import UUID

from mainstem.model import Buffer
from mainstem.protocol.message_class import make_message_class

T = TypeVar("T")

ZERO_UUID = UUID(int=0)
"""Kafka's "no id": what topic id fields hold when there is none."""

_VERSION_LAST_MAX = 32767  # versions are int16 on the wire


@dataclass(frozen=True, slots=True)
class Versions:
    """An inclusive range of versions; empty when `last < first`."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last

    @classmethod
    def parse(cls, text: str) -> Versions:
        """Read Kafka's notation: `"3"`, `"0-9"`, `"6+"` or `"none"`."""
        if text == "none":
            return NO_VERSIONS
        found = re.fullmatch(r"(\d+)(?:(\+)|-(\d+))?", text)
        assert found is not None, f"not a version range: {text!r}"
        first = int(found[1])
        last = _VERSION_LAST_MAX if found[2] else int(found[3] or first)
        assert first <= last, f"empty version range: {text!r}"
        return cls(first, last)


NO_VERSIONS = Versions(1, 0)


class Kind(Generic[T]):
    """A type of the wire; `T` is its Python type."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


class FixedKind(Kind[T]):
    """A number of fixed width, in `struct` notation."""

    __slots__ = ("format", "size_bytes")

    def __init__(self, name: str, format: str, size_bytes: int) -> None:
        super().__init__(name)
        self.format = format
        self.size_bytes = size_bytes


class ArrayKind(Kind[T]):
    __slots__ = ("element",)

    def __init__(self, element: Kind[Any]) -> None:
        super().__init__(f"[]{element.name}")
        self.element = element


class StructKind(Kind[T]):
    __slots__ = ("struct_class",)

    def __init__(self, struct_class: type[Any]) -> None:
        super().__init__(struct_class.__name__)
        self.struct_class = struct_class


boolean: Kind[bool] = FixedKind("bool", "?", 1)
int8: Kind[int] = FixedKind("int8", "b", 1)
int16: Kind[int] = FixedKind("int16", "h", 2)
int32: Kind[int] = FixedKind("int32", "i", 4)
int64: Kind[int] = FixedKind("int64", "q", 8)
uint16: Kind[int] = FixedKind("uint16", "H", 2)
uint32: Kind[int] = FixedKind("uint32", "I", 4)
float64: Kind[float] = FixedKind("float64", "d", 8)
uuid: Kind[UUID] = Kind("uuid")
string: Kind[str] = Kind("string")
binary: Kind[bytes] = Kind("bytes")
records: Kind[Buffer | tuple[Buffer, ...]] = Kind("records")
"""Encoded batches. A reader gives a memoryview of its input, not a copy; a writer also takes a tuple of
buffers, which it sends one after the other."""


@overload
def array(element: Kind[T]) -> Kind[tuple[T, ...]]: ...
@overload
def array(element: type[T]) -> Kind[tuple[T, ...]]: ...
def array(element: Kind[Any] | type[Any]) -> Kind[tuple[Any, ...]]:
    """An array of a primitive kind or of a `nested` class; a tuple in Python."""
    return ArrayKind(element if isinstance(element, Kind) else StructKind(element))


def struct(struct_class: type[T]) -> Kind[T]:
    """One `nested` object in place (an array's elements need no `struct`)."""
    return StructKind(struct_class)


@dataclass(frozen=True, slots=True)
class WireField:
    """One declared field. `tag` is None for a field that stands in the message's fixed order."""

    name: str
    kind: Kind[Any]
    versions: Versions
    nullable: Versions
    tag: int | None
    ignorable: bool
    default: Any

    @property
    def has_default(self) -> bool:
        return self.default is not dataclasses.MISSING

    @property
    def is_array(self) -> bool:
        return isinstance(self.kind, ArrayKind)


@overload
def wire(kind: Kind[T], versions: str = ..., *, ignorable: bool = ..., tag: int | None = ...) -> T: ...
@overload
def wire(kind: Kind[T], versions: str = ..., *, default: T, ignorable: bool = ..., tag: int | None = ...) -> T: ...
@overload
def wire(
    kind: Kind[T], versions: str = ..., *, nullable: str, ignorable: bool = ..., tag: int | None = ...
) -> T | None: ...
@overload
def wire(
    kind: Kind[T],
    versions: str = ...,
    *,
    nullable: str,
    default: T | None,
    ignorable: bool = ...,
    tag: int | None = ...,
) -> T | None: ...
def wire(
    kind: Kind[Any],
    versions: str = "0+",
    *,
    nullable: str = "none",
    default: Any = dataclasses.MISSING,
    ignorable: bool = False,
    tag: int | None = None,
) -> Any:
    """Declare a field.

    `versions` are those that carry it, `nullable` those in which it may be null. `ignorable`: a writer of
    a version without the field drops its value instead of raising. `tag`: the field is tagged, in every
    version it exists in.
    """
    declared = WireField(
        name="",
        kind=kind,
        versions=Versions.parse(versions),
        nullable=Versions.parse(nullable),
        tag=tag,
        ignorable=ignorable,
        default=default,
    )
    if default is dataclasses.MISSING:
        assert tag is None, "a tagged field needs a default: what its absence means"
        return dataclasses.field(metadata={"wire": declared})
    return dataclasses.field(default=default, metadata={"wire": declared})


@dataclass(frozen=True, slots=True)
class Declaration:
    """The facts that `message` and `nested` record about a class. `versions` is empty for nested classes, which live in
    the versions of the message around them."""

    message_class: type[Any]
    fields: tuple[WireField, ...]
    versions: Versions
    flexible: Versions
    api_key: int | None
    elements_max: int | None = None
    """The most elements in all arrays of a message together; None: not bounded."""

    @property
    def name(self) -> str:
        return self.message_class.__name__


_declarations: dict[type[Any], Declaration] = {}


def declaration_of(message_class: type[Any]) -> Declaration:
    """The declaration behind a class made by `message` or `nested`."""
    return _declarations[message_class]


def find_declaration(some_class: type[Any]) -> Declaration | None:
    """The same; None for any other class."""
    return _declarations.get(some_class)


REQUEST_ELEMENTS_MAX = 10_000
"""Of all arrays of a request together, where its declaration does not say otherwise. An element of two bytes becomes an
object of a hundred and takes microseconds of everybody's event loop, so the size of a frame alone bounds too little."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(wire,))
def message(
    *, versions: str, flexible: str = "none", api_key: int | None = None, elements_max: int | None = None
) -> Callable[[type[T]], type[T]]:
    """Declare a top-level message: `flexible` are the versions with compact lengths and tagged fields. A reader takes
    no more than `elements_max` elements in all its arrays, nested ones included: `REQUEST_ELEMENTS_MAX` by default in
    requests. The answer of a node is its own choice, and not bounded so."""

    def declare(declared: type[T]) -> type[T]:
        elements = elements_max
        if elements is None and declared.__name__.endswith("Request"):
            elements = REQUEST_ELEMENTS_MAX
        return _declare(declared, Versions.parse(versions), Versions.parse(flexible), api_key, elements)

    return declare


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(wire,))
def nested(declared: type[T]) -> type[T]:
    """Declare a structure that messages contain; its field versions are those of the message."""
    return _declare(declared, NO_VERSIONS, NO_VERSIONS, None)


def _declare(
    declared: type[T],
    versions: Versions,
    flexible: Versions,
    api_key: int | None,
    elements_max: int | None = None,
) -> type[T]:
    message_class = make_message_class(declared)
    fields = []
    for item in dataclasses.fields(message_class):  # type: ignore[arg-type]
        wire_field: WireField = item.metadata["wire"]
        fields.append(dataclasses.replace(wire_field, name=item.name))
    tags = [item.tag for item in fields if item.tag is not None]
    assert tags == sorted(set(tags)), f"{declared.__name__}: tagged fields stand in the order of their tags"
    _declarations[message_class] = Declaration(message_class, tuple(fields), versions, flexible, api_key, elements_max)
    return message_class
