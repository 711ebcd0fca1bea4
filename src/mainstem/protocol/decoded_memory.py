"""Bounds the memory that a message takes once it is decoded, from the size of its bytes.

An element of two bytes becomes an object of a hundred. A request is therefore charged, before it is decoded, for the
most that so many bytes can become: as many elements as fit in, of the kind that grows most, or as many as are
allowed, of the largest kind.

A message of a hundred thousand elements is as many objects, and freeing all of them with the last reference to it would
hold the event loop for ten milliseconds: long messages are freed in slices, some elements at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from operator import attrgetter
from typing import Any, NamedTuple

from mainstem.protocol.schema import (
    ArrayKind,
    Declaration,
    FixedKind,
    Kind,
    StructKind,
    WireField,
    declaration_of,
    find_declaration,
    string,
    uuid,
)

_OBJECT_BYTES = 32
"""Bytes of an object, with the garbage collector's share; its fields come on top."""

_POINTER_BYTES = 8
_NUMBER_BYTES = 32
_TEXT_BYTES = 64
_BYTES_BYTES = 40
_ARRAY_BYTES = 56
_UUID_BYTES = 104
"""An object and its number of 128 bits."""


_TEXT_GROWTH = 4
"""Bytes per letter: in a text with a single rare letter every letter takes four."""


class _Growth(NamedTuple):
    largest_bytes: int
    """Bytes of memory of the element that takes most, without the letters of its texts."""
    per_wire_byte: float
    """The same, of the element that takes most in proportion to its least size on the wire."""


_growths: dict[tuple[type[Any], int], _Growth] = {}


def decoded_bytes_max(message_class: type[Any], version: int, encoded_bytes: int) -> int:
    """An upper bound, by the declared bound on elements, for a message of that many bytes."""
    key = message_class, version
    growth = _growths.get(key)
    if growth is None:
        growth = _growths[key] = _growth_of(declaration_of(message_class), version)
    objects = int(encoded_bytes * growth.per_wire_byte)
    elements_max = declaration_of(message_class).elements_max
    if elements_max is not None:
        objects = min(objects, elements_max * growth.largest_bytes)
    return _TEXT_GROWTH * encoded_bytes + objects


def _growth_of(declaration: Declaration, version: int) -> _Growth:
    largest_bytes, per_wire_byte = 0, 0.0
    for element in _elements(declaration, version):
        memory = _POINTER_BYTES + _memory_of(element, version)
        wire = max(1, _wire_bytes_min(element, version, version in declaration.flexible))
        largest_bytes, per_wire_byte = max(largest_bytes, memory), max(per_wire_byte, memory / wire)
    return _Growth(largest_bytes, per_wire_byte)


def _elements(declaration: Declaration, version: int) -> list[Kind[Any]]:
    """The kinds of elements of all arrays of a message."""
    found: list[Kind[Any]] = []
    for field in _fields(declaration, version):
        kind = field.kind
        if isinstance(kind, ArrayKind):
            found.append(kind.element)
            kind = kind.element
        if isinstance(kind, StructKind):
            found += _elements(declaration_of(kind.struct_class), version)
    return found


def _memory_of(kind: Kind[Any], version: int) -> int:
    if isinstance(kind, StructKind):
        declaration = declaration_of(kind.struct_class)
        slots = _OBJECT_BYTES + _POINTER_BYTES * len(declaration.fields)
        return slots + sum(_memory_of(field.kind, version) for field in _fields(declaration, version))
    if isinstance(kind, FixedKind):
        return _NUMBER_BYTES
    if isinstance(kind, ArrayKind):
        return _ARRAY_BYTES
    return {string: _TEXT_BYTES, uuid: _UUID_BYTES}.get(kind, _BYTES_BYTES)


def _wire_bytes_min(kind: Kind[Any], version: int, flexible: bool) -> int:
    if isinstance(kind, FixedKind):
        return kind.size_bytes
    if isinstance(kind, StructKind):
        fields = [field for field in _fields(declaration_of(kind.struct_class), version) if field.tag is None]
        return flexible + sum(_wire_bytes_min(field.kind, version, flexible) for field in fields)
    if kind is uuid:
        return 16
    if flexible:
        return 1
    return 2 if kind is string else 4


def _fields(declaration: Declaration, version: int) -> list[WireField]:
    return [field for field in declaration.fields if version in field.versions]


ELEMENTS_PER_SLICE = 2_000
"""Half a millisecond."""

_NUMBERS_PER_ELEMENT = 8
"""So many names or numbers are freed in the time of an element with fields of its own."""


def let_go_in_slices(messages: list[Any]) -> Generator[None, None, None]:
    """Empty a list of messages, and with them their arrays: a generator that yields whenever about half a
    millisecond has passed. The list must have the only references to the messages."""
    done = 0
    while messages:
        part = messages.pop()
        if type(part) is tuple:
            messages += part
            done += len(part) // _NUMBERS_PER_ELEMENT
        else:
            for arrays_of in _arrays(type(part)):
                array = arrays_of(part)
                if type(array) is tuple and array:
                    messages.append(array)
                array = None
            done += 1
        part = None
        if done >= ELEMENTS_PER_SLICE:
            done = 0
            yield


def _arrays(message_class: type[Any]) -> tuple[Callable[[Any], Any], ...]:
    """The getters of a message's arrays; none for a class that is no message."""
    found = _getters.get(message_class)
    if found is None:
        declaration = find_declaration(message_class)
        fields = () if declaration is None else declaration.fields
        found = tuple(attrgetter(field.name) for field in fields if isinstance(field.kind, ArrayKind))
        _getters[message_class] = found
    return found


_getters: dict[type[Any], tuple[Callable[[Any], Any], ...]] = {}
"""Per class: as many as are declared, and the few kinds of values."""
