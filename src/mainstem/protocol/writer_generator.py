"""Compiles the writer of one message in one version: straight-line Python, nested structures inlined.

The generated function is `write(message) -> list of buffers`, in wire order. It gathers small pieces in
`out` and joins them; only the payload of `records` fields, and what an `EncodedArray` holds, stays a buffer of
its own, so that a Fetch response is sent without copying what it carries.

A value that the version cannot carry raises: a non-default one of a field the version lacks (unless the
field is ignorable) as `UnsupportedVersion`, one that does not fit its type as `UnwritableMessage`.

A writer in slices is a generator that does the same: it yields after every `ELEMENTS_PER_SLICE` elements of arrays, and
returns the same buffers, though they may be cut elsewhere.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from mainstem.model import Buffer
from mainstem.protocol.encoded_array import EncodedArray
from mainstem.protocol.errors import UnsupportedVersion, UnwritableMessage
from mainstem.protocol.generated_source import GeneratedSource, fixed_format, split_fields
from mainstem.protocol.reader_generator import ELEMENTS_PER_SLICE, STRING_BYTES_MAX
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
from mainstem.protocol.varint import unsigned_varint

MessageWriter = Callable[[Any], list[Buffer]]
SlicedWriter = Callable[[Any], Generator[None, None, list[Buffer]]]

RECORDS_COPIED_BYTES_MAX = 1024
"""Records up to this size are joined with the bytes around them: below it a copy costs less than one more
buffer in the socket's scatter list."""


ElementsWriter = Callable[[Iterable[Any]], list[Buffer]]


def compile_writer(declaration: Declaration, version: int) -> MessageWriter:
    """A function `(message) -> buffers` for one version of a message."""
    return _WriterGenerator(declaration, version).compile()


def compile_sliced_writer(declaration: Declaration, version: int) -> SlicedWriter:
    """A generator function that does the same in slices."""
    return _WriterGenerator(declaration, version, sliced=True).compile()


def compile_elements_writer(declaration: Declaration, version: int, element: Declaration) -> ElementsWriter:
    """A function `(elements) -> buffers` for elements of an array in one version of a message."""
    return _WriterGenerator(declaration, version).compile_elements(element)


def add_records(payload: Any, parts: list[Buffer], out: list[Any]) -> None:
    """Append a records payload to the message: small ones to the pieces in `out`, others as parts."""
    for buffer in payload if type(payload) is tuple else (payload,):
        if len(buffer) <= RECORDS_COPIED_BYTES_MAX:
            out.append(buffer)
        else:
            parts.append(b"".join(out))
            out.clear()
            parts.append(buffer)


def records_size(payload: Any) -> int:
    """The length in bytes of a records payload: one buffer, or a tuple of buffers."""
    return sum(map(len, payload)) if type(payload) is tuple else len(payload)


class _WriterGenerator:
    def __init__(self, declaration: Declaration, version: int, *, sliced: bool = False) -> None:
        self._declaration = declaration
        self._sliced = sliced
        self._version = version
        self._flexible = version in declaration.flexible
        self._source = GeneratedSource()
        self._title = f"{declaration.name} v{version}"
        self._source.namespace.update(
            pack=struct.pack,
            varint=unsigned_varint,
            add_records=add_records,
            records_size=records_size,
            EncodedArray=EncodedArray,
            StructError=struct.error,
            UnsupportedVersion=UnsupportedVersion,
            UnwritableMessage=UnwritableMessage,
        )

    def compile(self) -> Callable[..., Any]:
        with self._writing("message"):
            self._struct(self._declaration, "message", "out", self._declaration.name)
        return self._source.compile("write", f"writer of {self._title}")

    def compile_elements(self, element: Declaration) -> ElementsWriter:
        with self._writing("elements"), self._source.block("for element in elements:"):
            self._struct(element, "element", "out", element.name)
        return self._source.compile("write", f"writer of {element.name} in {self._title}")

    @contextmanager
    def _writing(self, parameter: str) -> Iterator[None]:
        """The function around what is emitted inside."""
        source = self._source
        with source.block(f"def write({parameter}):"):
            source.line("parts = []")
            source.line("out = []")
            if self._sliced:
                source.line("done = 0")
                with source.block("if False:"):  # a generator, also of a message without arrays
                    source.line("yield")
            with source.block("try:"):
                yield
            with source.block("except (StructError, UnicodeEncodeError) as problem:"):
                source.line(f"raise UnwritableMessage(f'{self._title}: {{problem}}') from problem")
            with source.block("if out:"):
                source.line("parts.append(b''.join(out))")
            source.line("return parts")

    def _fail(self, path: str, problem: str, error: str = "UnwritableMessage") -> None:
        """Emit a raise; `problem` is the inside of an f-string."""
        self._source.line(f"raise {error}(f{f'{self._title}: {path} {problem}'!r})")

    def _struct(self, declaration: Declaration, value: str, out: str, path: str) -> None:
        groups, tagged, absent = split_fields(declaration, self._version)
        for field in absent:
            if not field.ignorable:
                self._refuse_absent(field, value, path)
        for group in groups:
            if isinstance(group[0].kind, FixedKind):
                packed = ", ".join(f"{value}.{field.name}" for field in group)
                pack = self._source.packing("pack", fixed_format(group))
                self._source.line(f"{out}.append({pack}({packed}))")
            else:
                field = group[0]
                self._value(field.kind, f"{value}.{field.name}", out, f"{path}.{field.name}", field.nullable)
        if self._flexible:
            self._tagged(tagged, value, out, path)

    def _differs_from_default(self, field: WireField, value: str) -> str:
        if field.default is None:
            return f"{value}.{field.name} is not None"
        return f"{value}.{field.name} != {self._source.constant('default', field.default)}"

    def _refuse_absent(self, field: WireField, value: str, path: str) -> None:
        with self._source.block(f"if {self._differs_from_default(field, value)}:"):
            problem = f"is {{{value}.{field.name}!r}}, but this version has no such field"
            self._fail(f"{path}.{field.name}", problem, "UnsupportedVersion")

    def _value(self, kind: Kind[Any], value: str, out: str, path: str, nullable: Versions = NO_VERSIONS) -> None:
        source = self._source
        if isinstance(kind, FixedKind):
            source.line(f"{out}.append({source.packing('pack', kind.format)}({value}))")
            return
        if kind is uuid:
            source.line(f"{out}.append({value}.bytes)")
            return
        may_be_null = self._version in nullable
        if isinstance(kind, StructKind) and not may_be_null:
            self._struct(declaration_of(kind.struct_class), value, out, path)
            return
        local = source.name("value")
        source.line(f"{local} = {value}")
        with source.block(f"if {local} is None:"):
            if may_be_null:
                source.line(f"{out}.append({self._null(kind)!r})")
            else:
                self._fail(path, "may not be null")
        with source.block("else:"):
            if isinstance(kind, StructKind):
                source.line(f"{out}.append(b'\\x01')")
                self._struct(declaration_of(kind.struct_class), local, out, path)
            elif isinstance(kind, ArrayKind):
                self._array(kind, local, out, path)
            elif kind is string:
                self._string(local, out, path)
            else:
                self._bytes(kind, local, out, path)

    def _null(self, kind: Kind[Any]) -> bytes:
        if isinstance(kind, StructKind):
            return b"\xff"
        if self._flexible:
            return b"\x00"
        return b"\xff\xff" if kind is string else b"\xff\xff\xff\xff"

    def _length(self, length: str, format: str, out: str) -> None:
        if self._flexible:
            self._source.line(f"{out}.append(varint({length} + 1))")
        else:
            self._source.line(f"{out}.append({self._source.packing('pack', format)}({length}))")

    def _string(self, local: str, out: str, path: str) -> None:
        source = self._source
        encoded = source.name("encoded")
        source.line(f"{encoded} = {local}.encode()")
        with source.block(f"if len({encoded}) > {STRING_BYTES_MAX}:"):
            self._fail(path, f"has {{len({encoded})}} bytes, more than a string may have")
        self._length(f"len({encoded})", "h", out)
        source.line(f"{out}.append({encoded})")

    def _bytes(self, kind: Kind[Any], local: str, out: str, path: str) -> None:
        if kind is records:
            assert out == "out", f"{path}: records in a tagged field cannot be kept apart"
            self._length(f"records_size({local})", "i", out)
            self._source.line(f"add_records({local}, parts, out)")
            return
        assert kind is binary
        self._length(f"len({local})", "i", out)
        self._source.line(f"{out}.append({local})")

    def _array(self, kind: ArrayKind[Any], local: str, out: str, path: str) -> None:
        if out == "out" and isinstance(kind.element, StructKind):  # elsewhere nothing can be kept apart
            with self._source.block(f"if {local}.__class__ is EncodedArray:"):
                self._length(f"{local}.count", "i", out)
                self._source.line(f"add_records({local}.buffers, parts, out)")
            with self._source.block("else:"):
                self._elements(kind, local, out, path)
        else:
            self._elements(kind, local, out, path)

    def _elements(self, kind: ArrayKind[Any], local: str, out: str, path: str) -> None:
        source = self._source
        self._length(f"len({local})", "i", out)
        element = kind.element
        if isinstance(element, FixedKind):
            source.line(f"{out}.append(pack(f'>{{len({local})}}{element.format}', *{local}))")
            return
        item = source.name("item")
        with source.block(f"for {item} in {local}:"):
            if isinstance(element, StructKind):
                self._struct(declaration_of(element.struct_class), item, out, path + "[]")
            else:
                self._value(element, item, out, path + "[]")
            if self._sliced:
                source.line("done += 1")
                with source.block(f"if done == {ELEMENTS_PER_SLICE}:"):
                    source.line("done = 0")
                    source.line("parts.append(b''.join(out))")
                    source.line("out.clear()")
                    source.line("yield")

    def _tagged(self, tagged: list[WireField], value: str, out: str, path: str) -> None:
        source = self._source
        if not tagged:
            source.line(f"{out}.append(b'\\x00')")
            return
        count, section = source.name("tags"), source.name("section")
        source.line(f"{count} = 0")
        source.line(f"{section} = []")
        for field in tagged:
            inner, payload = source.name("inner"), source.name("payload")
            with source.block(f"if {self._differs_from_default(field, value)}:"):
                source.line(f"{inner} = []")
                name = f"{value}.{field.name}"
                self._value(field.kind, name, inner, f"{path}.{field.name}", field.nullable)
                source.line(f"{payload} = b''.join({inner})")
                head = f"{unsigned_varint(field.tag or 0)!r}, varint(len({payload}))"
                source.line(f"{section} += [{head}, {payload}]")
                source.line(f"{count} += 1")
        source.line(f"{out}.append(varint({count}))")
        source.line(f"{out} += {section}")
