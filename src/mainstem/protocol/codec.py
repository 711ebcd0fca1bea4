"""Read and write messages: `read(cls, version, buffer)` and `write(message, version)`.

Readers and writers are compiled on first use, one per (message, version), and kept; the declared versions
bound how many there can be.

A decoded message holds no part of the input except in `records` fields, which are memoryview slices of
the buffer given: code that keeps such a message keeps the buffer, and must not reuse it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, TypeVar

from mainstem.model import Buffer
from mainstem.protocol.errors import MalformedMessage, UnsupportedVersion
from mainstem.protocol.reader_generator import (
    MessageReader,
    SlicedReader,
    compile_reader,
    compile_sliced_reader,
)
from mainstem.protocol.schema import (
    ArrayKind,
    Declaration,
    Kind,
    StructKind,
    declaration_of,
    records,
)
from mainstem.protocol.writer_generator import (
    ElementsWriter,
    MessageWriter,
    SlicedWriter,
    compile_elements_writer,
    compile_sliced_writer,
    compile_writer,
)

M = TypeVar("M")
E = TypeVar("E")

_readers: dict[tuple[type[Any], int], tuple[MessageReader, bool]] = {}
_sliced_readers: dict[tuple[type[Any], int], SlicedReader] = {}
_writers: dict[tuple[type[Any], int], MessageWriter] = {}
_sliced_writers: dict[tuple[type[Any], int], SlicedWriter] = {}
_elements_writers: dict[tuple[type[Any], int, type[Any]], ElementsWriter] = {}


def read(message_class: type[M], version: int, buffer: Buffer, position: int = 0) -> M:
    """Decode the message that fills `buffer` from `position` to its end.

    Raises `UnsupportedVersion`, or `MalformedMessage` for any bytes that are not exactly one message.
    """
    message, stop = read_prefix(message_class, version, buffer, position)
    if stop != len(buffer):
        name = f"{message_class.__name__} v{version}"
        raise MalformedMessage(f"{name} is followed by {len(buffer) - stop} unknown bytes", stop)
    return message


def read_prefix(message_class: type[M], version: int, buffer: Buffer, position: int = 0) -> tuple[M, int]:
    """Decode a message that may be followed by other bytes; also returns the position after it."""
    reader, has_records = _readers.get((message_class, version)) or _reader(message_class, version)
    if not 0 <= position <= len(buffer):
        raise MalformedMessage(f"{message_class.__name__} v{version} starts outside the input", position)
    if has_records:
        source: bytes | memoryview = memoryview(buffer)  # sliced, never copied
    else:  # small, and bytes are faster to take apart
        source = buffer if type(buffer) is bytes else bytes(buffer)
    message, stop = reader(source, position, len(source))
    return message, stop


def read_in_slices(
    message_class: type[M], version: int, buffer: bytes | memoryview, position: int = 0
) -> Generator[None, None, tuple[M, int]]:
    """`read_prefix` for long messages, over bytes or, where records are not to be copied, a memoryview: a generator
    that yields whenever about a millisecond has passed, and returns what `read_prefix` does. Raises as that does, from
    where it is begun or from where it goes on."""
    key = message_class, version
    reader = _sliced_readers.get(key)
    if reader is None:
        reader = _sliced_readers[key] = compile_sliced_reader(_supported_declaration(message_class, version), version)
    return reader(buffer, position, len(buffer))


def write(message: Any, version: int) -> bytes:
    """Encode a message. Raises `UnsupportedVersion` or `UnwritableMessage`."""
    return b"".join(write_parts(message, version))


def write_parts(message: Any, version: int) -> list[Buffer]:
    """Encode a message as buffers to be sent one after the other; large `records` are not copied but
    stand in the list as given. Raises `UnsupportedVersion` or `UnwritableMessage`."""
    key = (message.__class__, version)
    writer = _writers.get(key) or _writer(*key)
    return writer(message)


def write_in_slices(message: Any, version: int) -> Generator[None, None, list[Buffer]]:
    """`write_parts` for long messages: a generator that yields whenever about a millisecond has passed, and returns
    what `write_parts` does, perhaps cut elsewhere. The message must not change meanwhile. Raises as that does."""
    key = message.__class__, version
    writer = _sliced_writers.get(key)
    if writer is None:
        writer = _sliced_writers[key] = compile_sliced_writer(_supported_declaration(*key), version)
    return writer(message)


def encode_elements(
    message_class: type[Any], version: int, element_class: type[E], elements: Iterable[E]
) -> list[Buffer]:
    """Encode elements of an array of a message, for an `EncodedArray` in it. Raises as `write_parts`."""
    key = (message_class, version, element_class)
    writer = _elements_writers.get(key)
    if writer is None:
        declaration = _supported_declaration(message_class, version)
        writer = compile_elements_writer(declaration, version, declaration_of(element_class))
        _elements_writers[key] = writer
    return writer(elements)


def _supported_declaration(message_class: type[Any], version: int) -> Declaration:
    declaration = declaration_of(message_class)
    versions = declaration.versions
    if version not in versions:
        supported = f"supported are {versions.first} to {versions.last}"
        raise UnsupportedVersion(f"{declaration.name} has no version {version}: {supported}")
    return declaration


def _reader(message_class: type[Any], version: int) -> tuple[MessageReader, bool]:
    declaration = _supported_declaration(message_class, version)
    reader = compile_reader(declaration, version), _has_records(declaration)
    _readers[message_class, version] = reader
    return reader


def _writer(message_class: type[Any], version: int) -> MessageWriter:
    writer = compile_writer(_supported_declaration(message_class, version), version)
    _writers[message_class, version] = writer
    return writer


def _has_records(declaration: Declaration) -> bool:
    return any(_carries_records(field.kind) for field in declaration.fields)


def _carries_records(kind: Kind[Any]) -> bool:
    if isinstance(kind, ArrayKind):
        return _carries_records(kind.element)
    if isinstance(kind, StructKind):
        return _has_records(declaration_of(kind.struct_class))
    return kind is records
