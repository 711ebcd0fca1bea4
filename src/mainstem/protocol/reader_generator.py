"""Compiles the reader of one message in one version: straight-line Python, nested structures inlined.

The generated function is `read(buffer, at, end) -> (message, position after it)`. Its invariants:

* `at` never passes `end`: every length is compared with the bytes that remain before it is used, and an
  array of N elements needs N times the least an element can take, so that a lying count costs nothing;
* fixed-width reads past the end raise IndexError or struct.error, caught once around the whole body;
* every fault leaves as `MalformedMessage` with the position where reading stopped;
* the arrays of a message hold no more elements together than its declaration allows;
* values are copies, except `records`, which are slices of the buffer;
* the garbage collector leaves out what is made (`message_class.py` says why it may).

A reader in slices is a generator that does the same: it yields after every `ELEMENTS_PER_SLICE` elements, and returns
the same pair.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from functools import lru_cache
from typing import Any
from uuid import UUID

from mainstem.kernel import untrack
from mainstem.protocol.errors import MalformedMessage
from mainstem.protocol.generated_source import GeneratedSource, fixed_format, split_fields
from mainstem.protocol.schema import (
    NO_VERSIONS,
    ArrayKind,
    Declaration,
    FixedKind,
    Kind,
    StructKind,
    Versions,
    WireField,
    binary,
    declaration_of,
    records,
    string,
    uuid,
)
from mainstem.protocol.varint import TAGGED_FIELDS_MAX, read_unsigned_varint, skip_tagged_fields

STRING_BYTES_MAX = 0x7FFF  # Kafka's bound, in versions with compact lengths too

ELEMENTS_PER_SLICE = 512
"""Half a millisecond to a millisecond."""

_NUMBERS_PER_ELEMENT = 32
"""So many numbers of fixed width are unpacked in the time of one other element."""

MessageReader = Callable[[bytes | memoryview, int, int], tuple[Any, int]]
SlicedReader = Callable[[bytes | memoryview, int, int], Generator[None, None, tuple[Any, int]]]


def compile_reader(declaration: Declaration, version: int) -> MessageReader:
    """A function `(buffer, position, end) -> (message, position)` for one version of a message."""
    return _ReaderGenerator(declaration, version, sliced=False).compile()


def compile_sliced_reader(declaration: Declaration, version: int) -> SlicedReader:
    """A generator function that does the same in slices."""
    return _ReaderGenerator(declaration, version, sliced=True).compile()


UUIDS_KEPT = 1_024
"""Of topics, mostly: many fields that name one hold the same object, which takes a tenth of the time of a new one. Some
two hundred KB."""


@lru_cache(maxsize=UUIDS_KEPT)
def _uuid_of(content: bytes) -> UUID:
    return UUID(bytes=content)


class _ReaderGenerator:
    def __init__(self, declaration: Declaration, version: int, *, sliced: bool) -> None:
        self._declaration = declaration
        self._sliced = sliced
        self._version = version
        self._flexible = version in declaration.flexible
        self._source = GeneratedSource()
        self._title = f"{declaration.name} v{version}"
        self._source.namespace.update(
            new=object.__new__,
            read_varint=read_unsigned_varint,
            skip_tags=skip_tagged_fields,
            untrack=untrack,
            unpack_from=struct.unpack_from,
            StructError=struct.error,
            uuid_of=_uuid_of,
            MalformedMessage=MalformedMessage,
        )

    def compile(self) -> Callable[..., Any]:
        source = self._source
        with source.block("def read(buffer, at, end):"):
            if self._declaration.elements_max is not None:
                source.line(f"room = {self._declaration.elements_max}")
            if self._sliced:
                source.line("done = 0")
                with source.block("if False:"):  # a generator, also of a message without arrays
                    source.line("yield")
            with source.block("try:"):
                self._struct(self._declaration, "message", self._declaration.name)
            with source.block("except (IndexError, StructError):"):
                source.line(f"raise MalformedMessage({self._title + ' ends early'!r}, at) from None")
            with source.block("except UnicodeDecodeError:"):
                source.line(f"raise MalformedMessage({self._title + ': text is not UTF-8'!r}, at) from None")
            source.line("return message, at")
        return source.compile("read", f"reader of {self._title}")

    def _fail(self, path: str, problem: str) -> None:
        """Emit a raise; `problem` is the inside of an f-string."""
        self._source.line(f"raise MalformedMessage(f{f'{self._title}: {path} {problem}'!r}, at)")

    def _struct(self, declaration: Declaration, target: str, path: str) -> None:
        source = self._source
        groups, tagged, absent = split_fields(declaration, self._version)
        values: dict[str, str] = {}
        for group in groups:
            names = [source.name(field.name) for field in group]
            values.update(zip((field.name for field in group), names, strict=True))
            if isinstance(group[0].kind, FixedKind):
                self._fixed_run(group, names)
            else:
                field = group[0]
                self._value(field.kind, names[0], f"{path}.{field.name}", field.nullable)
        if self._flexible:
            self._tagged(tagged, values, path)
        for field in absent:
            values[field.name] = source.constant("default", field.default)
        self._construct(declaration, target, values)

    def _construct(self, declaration: Declaration, target: str, values: dict[str, str]) -> None:
        """The class is frozen: its slots are set directly, which is faster than a keyword call."""
        source = self._source
        message_class = declaration.message_class
        source.line(f"{target} = new({source.constant('class', message_class)})")
        for field in declaration.fields:
            setter = source.constant("set", getattr(message_class, field.name).__set__)
            source.line(f"{setter}({target}, {values[field.name]})")
        source.line(f"untrack({target})")

    def _fixed_run(self, group: list[WireField], names: list[str]) -> None:
        source = self._source
        format = fixed_format(group)
        source.line(f"{', '.join(names)}, = {source.packing('unpack_from', format)}(buffer, at)")
        source.line(f"at += {struct.calcsize('>' + format)}")

    def _value(self, kind: Kind[Any], target: str, path: str, nullable: Versions = NO_VERSIONS) -> None:
        source = self._source
        may_be_null = self._version in nullable
        if isinstance(kind, FixedKind):
            source.line(f"{target}, = {source.packing('unpack_from', kind.format)}(buffer, at)")
            source.line(f"at += {kind.size_bytes}")
        elif kind is uuid:
            self._check_remaining("16", path)
            source.line(f"{target} = uuid_of(bytes(buffer[at:at + 16]))")
            source.line("at += 16")
        elif isinstance(kind, StructKind):
            self._struct_value(kind, target, path, may_be_null)
        elif isinstance(kind, ArrayKind):
            self._array(kind, target, path, may_be_null)
        elif kind is string:
            self._string(target, path, may_be_null)
        else:
            assert kind is binary or kind is records
            self._bytes(kind, target, path, may_be_null)

    def _struct_value(self, kind: StructKind[Any], target: str, path: str, may_be_null: bool) -> None:
        source = self._source
        declaration = declaration_of(kind.struct_class)
        if not may_be_null:
            self._struct(declaration, target, path)
            return
        present = source.name("present")
        source.line(f"{present}, = {source.packing('unpack_from', 'b')}(buffer, at)")
        source.line("at += 1")
        with source.block(f"if {present} < 0:"):
            source.line(f"{target} = None")
        with source.block("else:"):
            self._struct(declaration, target, path)

    def _varint(self, target: str) -> None:
        source = self._source
        source.line(f"{target} = buffer[at]")
        with source.block(f"if {target} < 128:"):
            source.line("at += 1")
        with source.block("else:"):
            source.line(f"{target}, at = read_varint(buffer, at)")

    def _length(self, path: str, target: str, format: str, may_be_null: bool) -> str:
        """Emit the reading of a length and of its null case; the code emitted next handles other lengths
        and belongs in the block this opens with the returned header ("" if it needs no block)."""
        source = self._source
        length = source.name("length")
        if self._flexible:
            self._varint(length)
            source.line(f"{length} -= 1")
        else:
            source.line(f"{length}, = {source.packing('unpack_from', format)}(buffer, at)")
            source.line(f"at += {struct.calcsize('>' + format)}")
        if may_be_null:
            with source.block(f"if {length} == -1:"):
                source.line(f"{target} = None")
            with source.block(f"elif {length} < 0:"):
                self._fail(path, f"has length {{{length}}}")
        else:
            with source.block(f"if {length} < 0:"):
                self._fail(path, f"has length {{{length}}} and may not be null")
        return length

    def _check_remaining(self, size: str, path: str) -> None:
        with self._source.block(f"if {size} > end - at:"):
            self._fail(path, f"needs {{{size}}} bytes and {{end - at}} remain")

    def _string(self, target: str, path: str, may_be_null: bool) -> None:
        source = self._source
        length = self._length(path, target, "h", may_be_null)
        with source.block("else:"):
            self._check_remaining(length, path)
            if self._flexible:
                with source.block(f"if {length} > {STRING_BYTES_MAX}:"):
                    self._fail(path, f"has {{{length}}} bytes, more than a string may have")
            source.line(f"{target} = str(buffer[at:at + {length}], 'utf-8')")
            source.line(f"at += {length}")

    def _bytes(self, kind: Kind[Any], target: str, path: str, may_be_null: bool) -> None:
        source = self._source
        length = self._length(path, target, "i", may_be_null)
        with source.block("else:"):
            self._check_remaining(length, path)
            slice_text = f"buffer[at:at + {length}]"
            source.line(f"{target} = {slice_text if kind is records else f'bytes({slice_text})'}")
            source.line(f"at += {length}")

    def _array(self, kind: ArrayKind[Any], target: str, path: str, may_be_null: bool) -> None:
        source = self._source
        count = self._length(path, target, "i", may_be_null)
        element = kind.element
        element_bytes_min = self._bytes_min(element)
        assert element_bytes_min > 0, f"{path}: elements without bytes would leave the count unbounded"
        with source.block("else:"):
            with source.block(f"if {count} * {element_bytes_min} > end - at:"):
                self._fail(path, f"claims {{{count}}} elements and {{end - at}} bytes remain")
            if self._declaration.elements_max is not None:
                source.line(f"room -= {count}")
                with source.block("if room < 0:"):
                    self._fail(path, f"has {{{count}}} elements: with those before more than it may have")
            if isinstance(element, FixedKind):
                source.line(f"{target} = unpack_from(f'>{{{count}}}{element.format}', buffer, at)")
                source.line(f"at += {count} * {element.size_bytes}")
                self._end_of_slice(f"{count} // {_NUMBERS_PER_ELEMENT}")
                return
            items, item = source.name("items"), source.name("item")
            source.line(f"{items} = []")
            with source.block(f"for _ in range({count}):"):
                if isinstance(element, StructKind):
                    self._struct(declaration_of(element.struct_class), item, path + "[]")
                else:
                    self._value(element, item, path + "[]")
                source.line(f"{items}.append({item})")
                self._end_of_slice("1")
            source.line(f"{target} = tuple({items})")
            source.line(f"untrack({target})")

    def _end_of_slice(self, elements: str) -> None:
        """Emit a pause that is taken when so many more elements complete a slice."""
        if not self._sliced:
            return
        source = self._source
        source.line(f"done += {elements}")
        with source.block(f"if done >= {ELEMENTS_PER_SLICE}:"):
            source.line("done = 0")
            source.line("yield")

    def _tagged(self, tagged: list[WireField], values: dict[str, str], path: str) -> None:
        source = self._source
        count = source.name("tags")
        for field in tagged:
            values[field.name] = source.name(field.name)
            source.line(f"{values[field.name]} = {source.constant('default', field.default)}")
        source.line(f"{count} = buffer[at]")
        if not tagged:
            source.line(f"at = skip_tags(buffer, at, end) if {count} else at + 1")
            return
        self._varint(count)
        with source.block(f"if {count} > {TAGGED_FIELDS_MAX}:"):
            self._fail(path, f"has {{{count}}} tagged fields, more than {TAGGED_FIELDS_MAX}")
        tag, size, stop = source.name("tag"), source.name("size"), source.name("stop")
        with source.block(f"for _ in range({count}):"):
            self._varint(tag)
            self._varint(size)
            self._check_remaining(size, path + " tagged field")
            source.line(f"{stop} = at + {size}")
            keyword = "if"
            for field in tagged:
                with source.block(f"{keyword} {tag} == {field.tag}:"):
                    self._value(field.kind, values[field.name], f"{path}.{field.name}", field.nullable)
                    with source.block(f"if at != {stop}:"):
                        self._fail(f"{path}.{field.name}", f"does not fill its {{{size}}} bytes")
                keyword = "elif"
            with source.block("else:"):
                source.line(f"at = {stop}")

    def _bytes_min(self, kind: Kind[Any]) -> int:
        """The least number of bytes a non-null value takes in this version."""
        if isinstance(kind, FixedKind):
            return kind.size_bytes
        if kind is uuid:
            return 16
        if isinstance(kind, StructKind):
            groups, _, _ = split_fields(declaration_of(kind.struct_class), self._version)
            fields = [field for group in groups for field in group]
            return sum(self._field_bytes_min(field) for field in fields) + self._flexible
        if self._flexible:
            return 1
        return 2 if kind is string else 4

    def _field_bytes_min(self, field: WireField) -> int:
        nullable_struct = isinstance(field.kind, StructKind) and self._version in field.nullable
        return 1 if nullable_struct else self._bytes_min(field.kind)
