"""Messages that travel inside others and carry their version in front, as an int16.

So are written the records of `__consumer_offsets` and what members of a consumer group tell each other.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from typing import Any, TypeVar

from mainstem.model import Buffer
from mainstem.protocol.codec import read_in_slices, read_prefix, write, write_in_slices
from mainstem.protocol.errors import MalformedMessage
from mainstem.protocol.schema import declaration_of

M = TypeVar("M")

_VERSION = struct.Struct(">h")


def read_version(buffer: Buffer) -> int:
    """The version in front. Raises `MalformedMessage`."""
    if len(buffer) < _VERSION.size:
        raise MalformedMessage("no room for a version", 0)
    version: int = _VERSION.unpack_from(buffer)[0]
    return version


def read_versioned(message_class: type[M], buffer: Buffer, *, newer_as_last: bool = False) -> M:
    """Read a message behind its version; bytes after it are ignored, as Kafka does.

    `newer_as_last`: an unknown newer version is read as the last known one, for formats whose versions only
    ever append. Raises `UnsupportedVersion` or `MalformedMessage`.
    """
    version = read_version(buffer)
    if newer_as_last:
        version = min(version, declaration_of(message_class).versions.last)
    message, _ = read_prefix(message_class, version, buffer, _VERSION.size)
    return message


def read_versioned_in_slices(message_class: type[M], buffer: bytes) -> Generator[None, None, M]:
    """The same for a long message, as a generator that yields whenever about a millisecond has passed."""
    message, _ = yield from read_in_slices(message_class, read_version(buffer), buffer, _VERSION.size)
    return message


def write_versioned_in_slices(message: Any, version: int) -> Generator[None, None, bytes]:
    """`write_versioned` of a long message, as a generator that yields whenever about a millisecond has passed."""
    parts = yield from write_in_slices(message, version)
    return b"".join([_VERSION.pack(version), *parts])


def write_versioned(message: Any, version: int) -> bytes:
    """The version, then the message. Raises `UnsupportedVersion` or `UnwritableMessage`."""
    body = write(message, version)
    return _VERSION.pack(version) + body
