"""The bytes of the objects that say what counts in the store, for whoever has no log: changes, images, and the head.

Each is a sequence of frames, the first of which says what the object is, of which write group:

    magic 8 bytes · bytes of the payload u32 · CRC32C of the payload u32 · payload (msgpack)     (little-endian)

    change   one frame: the group, and the command as the log has it
    image    a frame with the position and names that do not count, frames with some files each, and a frame without
             any, behind which there is nothing: an image without its end is none
    head     one frame: the last change, and the newest image

A change has the same bytes, whichever leader writes it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

import google_crc32c
import msgspec

from mainstem.model import Buffer
from mainstem.rpc.messages.tier import GivenUpFile
from mainstem.storage.errors import FormatError
from mainstem.storage.remote.decided.remote_state import Notes, RemotePosition
from mainstem.storage.store_files.store_file import StoreFile
from mainstem.storage.write_groups.control import RemoteChanged, RemoteSpan

T = TypeVar("T")

FRAME = struct.Struct("<8sII")

CHANGE_MAGIC, IMAGE_MAGIC, HEAD_MAGIC = b"MSRCHG01", b"MSRIMG01", b"MSRHEAD1"

FILES_PER_FRAME = 1_000
"""Some 400 KB."""


class ChainedChange(msgspec.Struct, frozen=True, array_like=True):
    group: int
    change: RemoteChanged


class ImageStart(msgspec.Struct, frozen=True, array_like=True):
    group: int
    number: int
    epoch: int
    upto: int
    intended: dict[str, int]
    """Names that do not count, with the term in which they were intended."""
    leaving: dict[str, int]
    """Names that counted, with the term in which they went."""
    files: int
    """How many follow."""
    given_up: tuple[GivenUpFile, ...] = ()
    """Files that were lost, and that readers pass over."""


class Head(msgspec.Struct, frozen=True, array_like=True):
    """A hint: there may be later changes. From `image` on all changes are there."""

    group: int
    number: int
    """Of the last change."""
    image: int
    """Of the newest image; 0: there is none, and the chain begins with change 1."""
    kept_from: int
    """The chain has no change before this one, nor images of earlier ones, but for what could not be deleted."""


def encode_change(group: int, change: RemoteChanged) -> bytes:
    """A change has the bytes that programs give it which do not know what is given up: two leaders may write it."""
    if change.given_up:
        return frame(CHANGE_MAGIC, ChainedChange(group, change))
    fields = [getattr(change, name) for name in change.__struct_fields__[:-1]]
    return frame(CHANGE_MAGIC, [group, [change.__struct_config__.tag, *fields]])


def decode_change(content: Buffer, where: str, group: int, number: int) -> RemoteChanged:
    """Raises `FormatError` naming `where` if this is not change `number` of the write group."""
    found = only_frame(content, CHANGE_MAGIC, ChainedChange, where)
    if (found.group, found.change.number) != (group, number):
        raise FormatError(f"{where}: is change {found.change.number} of write group {found.group}")
    return found.change


def encode_image(
    group: int, position: RemotePosition, notes: Notes, count: int, files: Iterable[tuple[int, int, StoreFile]]
) -> Iterator[bytes]:
    """The frames of an image. `files`: all `count` of them as (after, upto, file), in their order."""
    intended, leaving = (
        {name: noted.epoch for name, noted in sorted(names.items())} for names in (notes.intended, notes.leaving)
    )
    yield frame(IMAGE_MAGIC, ImageStart(group, *position, intended, leaving, count, tuple(notes.given_up)))
    left = iter(files)
    while some := list(islice(left, FILES_PER_FRAME)):
        yield frame(IMAGE_MAGIC, _spans(some))
    yield frame(IMAGE_MAGIC, [])


def _spans(files: Iterable[tuple[int, int, StoreFile]]) -> list[RemoteSpan]:
    spans: dict[tuple[int, int], list[StoreFile]] = {}
    for after, upto, file in files:
        spans.setdefault((after, upto), []).append(file)
    return [RemoteSpan(*blocks, tuple(file.message() for file in of_span)) for blocks, of_span in spans.items()]


def decode_image(content: Buffer, where: str, group: int) -> tuple[ImageStart, list[tuple[int, int, StoreFile]]]:
    """The start of an image and all its files. Raises `FormatError` naming `where`."""
    payloads = frames(content, IMAGE_MAGIC, where)
    start = decoded(next(payloads, b""), ImageStart, where)
    files: list[tuple[int, int, StoreFile]] = []
    ended = False
    for payload in payloads:
        spans = decoded(payload, list[RemoteSpan], where)
        if ended:
            raise FormatError(f"{where}: goes on behind its end")
        ended = not spans
        files += [(span.after, span.upto, StoreFile.of(file)) for span in spans for file in span.files]
    if start.group != group or not ended or len(files) != start.files:
        raise FormatError(
            f"{where}: has {len(files)} of {start.files} files of write group {start.group}"
            + ("" if ended else ", and no end")
        )
    return start, files


def encode_head(head: Head) -> bytes:
    return frame(HEAD_MAGIC, head)


def decode_head(content: Buffer, where: str, group: int) -> Head:
    """Raises `FormatError` naming `where`."""
    head = only_frame(content, HEAD_MAGIC, Head, where)
    if head.group != group:
        raise FormatError(f"{where}: is the head of write group {head.group}")
    return head


def frame(magic: bytes, message: object) -> bytes:
    """The bytes of a frame."""
    payload = msgspec.msgpack.encode(message)
    return FRAME.pack(magic, len(payload), google_crc32c.value(payload)) + payload


def frames(content: Buffer, magic: bytes, where: str) -> Iterator[bytes]:
    """The payloads of an object's frames. Raises `FormatError` naming `where`."""
    position = 0
    while position < len(content):
        if len(content) - position < FRAME.size:
            raise FormatError(f"{where}: ends within a frame, at byte {position}")
        found, size, crc = FRAME.unpack_from(content, position)
        payload = bytes(content[position + FRAME.size : position + FRAME.size + size])
        if found != magic:
            raise FormatError(f"{where}: has {found!r} at byte {position}, not {magic!r}")
        if len(payload) < size or google_crc32c.value(payload) != crc:
            raise FormatError(f"{where}: fails its checksum at byte {position}")
        yield payload
        position += FRAME.size + size


def only_frame(content: Buffer, magic: bytes, kind: type[T], where: str) -> T:
    """The message of an object that is one frame. Raises `FormatError` naming `where`."""
    payloads = list(frames(content, magic, where))
    if len(payloads) != 1:
        raise FormatError(f"{where}: has {len(payloads)} frames, not one")
    return decoded(payloads[0], kind, where)


def decoded(payload: bytes, kind: type[T], where: str) -> T:
    """Raises `FormatError` naming `where`."""
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FormatError(f"{where}: {error}") from error
