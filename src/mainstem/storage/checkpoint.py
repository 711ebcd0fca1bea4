"""Checkpoints: the applied state of a node at one journal position, so that a start applies only what follows.

A checkpoint is one file `checkpoint/<position, 20 digits>.checkpoint`:

    magic (8 bytes) · CRC32C of the body (u32) · length of the body (u64) · body (msgpack)

written beside the old one, synced, renamed, and only then the old one is removed. A journal segment is only
recycled when a checkpoint lies behind it. Integers are little-endian.
"""

from __future__ import annotations

import struct

import google_crc32c
import msgspec

from mainstem.kernel import Range
from mainstem.ports import Files
from mainstem.storage.errors import FormatError
from mainstem.storage.journal_map import MapImage
from mainstem.storage.manifest_queue import SplitImage
from mainstem.storage.write_group import GroupState

MAGIC = b"MSCHKPT1"
FRAME = struct.Struct("<8sIQ")
DIRECTORY = "checkpoint"
SUFFIX = ".checkpoint"
TEMPORARY = ".tmp"


class Checkpoint(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What is kept: everything `WriteGroup.apply` changed up to `position`."""

    position: int
    """Journal position; every block that ends at or below it is part of this state, none behind it."""
    groups: dict[int, GroupState]
    ranges: dict[int, list[Range]]
    images: list[bytes]
    journal_map: MapImage
    splits: list[SplitImage]
    """Per group, as of `position`."""


_decoder = msgspec.msgpack.Decoder(Checkpoint)


async def save(files: Files, checkpoint: Checkpoint) -> None:
    """Write a checkpoint and remove the older ones."""
    body = msgspec.msgpack.encode(checkpoint)
    frame = FRAME.pack(MAGIC, google_crc32c.value(body), len(body))
    name = f"{DIRECTORY}/{checkpoint.position:020d}{SUFFIX}"
    temporary = f"{name}{TEMPORARY}"
    for left in await files.names(DIRECTORY):
        if left.endswith(TEMPORARY):  # of a try that a full disk ended: it needs the room
            await files.remove(f"{DIRECTORY}/{left}")
    file = await files.open(temporary, create=True)
    try:
        await file.write(0, [frame, body], sync=True)
    finally:
        await file.close()
    await files.rename(temporary, name)
    for other in await files.names(DIRECTORY):
        if f"{DIRECTORY}/{other}" != name:
            await files.remove(f"{DIRECTORY}/{other}")


async def load(files: Files) -> Checkpoint | None:
    """The newest checkpoint; None when there never was one.

    Raises `FormatError` naming the file when it cannot be read: a checkpoint is written whole and synced
    before it gets its name, so a broken one is damage, and the journal before it may be gone."""
    names = [name for name in await files.names(DIRECTORY) if name.endswith(SUFFIX)]
    if not names:
        return None
    path = f"{DIRECTORY}/{names[-1]}"
    file = await files.open(path)
    try:
        content = await file.read(0, await file.size())
    finally:
        await file.close()
    if len(content) < FRAME.size:
        raise FormatError(f"{path}: cut short at {len(content)} bytes; restore it from a copy or a replica")
    magic, crc, length = FRAME.unpack_from(content)
    body = content[FRAME.size :]
    if magic != MAGIC or length != len(body) or google_crc32c.value(body) != crc:
        raise FormatError(f"{path}: fails its checksum; restore it from a copy or a replica")
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise FormatError(f"{path}: {error}") from error
