"""Checkpoints: the applied state of a node at one journal position, so that a start applies only what follows.

A checkpoint is one file `checkpoint/<position, 20 digits>.checkpoint`:

    magic (8 bytes) · CRC32C of all that follows (u32) · bytes of the state, number of ranges, number of queues
    (u64 each) · state (msgpack) · ranges · queues (see `queue_image`)

written beside the old one, synced, renamed, and only then the old one is removed. A journal segment is only
recycled when a checkpoint lies behind it. Integers are little-endian.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import google_crc32c
import msgspec
import numpy

from mainstem.kernel.layout import REMEMBERED_BATCHES
from mainstem.model import Buffer
from mainstem.ports import File, Files
from mainstem.storage.errors import FormatError
from mainstem.storage.journal.journal_map import MapImage
from mainstem.storage.state.manifest_queue import SplitImage
from mainstem.storage.state.producers.producer_files import SavedFile
from mainstem.storage.state.queue_image import QUEUE_CELLS, RANGE_CELLS, QueueImage
from mainstem.storage.state.slot_moves import MovesImage
from mainstem.storage.write_groups.write_group import WriteGroupState
from mainstem.storage.write_groups.write_group_blocks import LogImage

MAGIC = b"MSCHKPT4"
MAGIC_WITHOUT_FILES = b"MSCHKPT3"
"""Magic of a checkpoint that holds all producers itself, as versions of the first feature level write and read it."""
MAGICS_READ = frozenset({b"MSCHKPT2", MAGIC_WITHOUT_FILES, MAGIC})
"""2: before logs were replicated; it lacks only fields that a single node does not need."""
NAME_BYTES = 7  # of the magic; the last byte is the format's version
FRAME = struct.Struct("<8sI")
SIZES = struct.Struct("<QQQ")
HEADER_BYTES = FRAME.size + SIZES.size
RANGE_BYTES = RANGE_CELLS * 8
QUEUE_BYTES = QUEUE_CELLS * 8
DIRECTORY = "checkpoint"
SUFFIX = ".checkpoint"
TEMPORARY = ".tmp"

REMEDY = "restore write_dir and store_dir as a whole, or have another node take the place of this one"

ENTRIES_PER_TURN = 500
"""List entries encoded in one turn of the event loop: about a millisecond."""

PIECE_BYTES = 1 << 20
"""Bytes of the state checksummed in one turn of the event loop."""

LIST_OF = struct.Struct(">BI")
LIST_MARK = 0xDD
"""How msgpack begins a list of any length: array 32, and how many entries follow."""

PRODUCER_ROW = numpy.dtype(
    [
        ("queue_id", "<u8"),
        ("producer_id", "<i8"),
        ("last_timestamp_ms", "<i8"),
        ("epoch", "<i2"),
        ("count", "u1"),
        ("padding", "V5"),
        (
            "batches",
            [("base_sequence", "<i4"), ("last_sequence", "<i4"), ("base_offset", "<i8"), ("block_index", "<i8")],
            REMEMBERED_BATCHES,
        ),
    ]
)
"""A row of the kernel's `ProducerStates.image`."""

SYNC_BYTES = 4 << 20
"""Bytes written and synced at a time: a single large sync makes the journal's own wait (p99 of publishing x 2 and
more)."""


class State(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The state that `WriteGroup.apply` had made up to `position`, except for the queues."""

    position: int
    """Journal position; every block that ends at or below it is part of this state, or dead. Of the blocks behind it,
    the state has those up to the applied block of their write group."""
    durable: int
    """Journal position up to which the journal was on the disk before this was saved; the queues may be as young."""
    groups: dict[int, WriteGroupState]
    journal_map: MapImage
    splits: list[SplitImage]
    """Per group, as of its applied block."""
    logs: dict[int, LogImage] = {}
    """Per group its log as far as it was written, applied or not."""
    producer_files: dict[int, list[SavedFile]] = {}
    """Per group its files of producers, oldest first; empty where `groups` has the producers themselves."""
    node_id: int = 0
    """Id of the node that saved it; 0: unknown."""
    remote_numbers: dict[int, int] = {}
    """Per group the last change of the remote tier that was in its manifest."""
    transactions: dict[int, bytes] = {}
    """Per group that ever met one, its transactions (`WriteGroupTransactions.image`). Earlier versions pass over this
    field; clusters with transactions do not let them in."""
    moves: MovesImage = MovesImage()
    """Slots that have moved, and those on their way. Earlier versions pass over this field; clusters in which slots
    move do not let them in."""


class Checkpoint(msgspec.Struct, frozen=True):
    """A checkpoint as read back; the pieces of the queues' image are joined."""

    state: State
    ranges: bytes
    queues: bytes


_decoder = msgspec.msgpack.Decoder(State)
_encoder = msgspec.msgpack.Encoder()


def packed_producers(rows: bytes) -> list[msgspec.Raw]:
    """Encode producers, given as the kernel's rows, as the state holds them."""
    table = numpy.frombuffer(rows, PRODUCER_ROW)
    columns = (table[name].tolist() for name in ("queue_id", "producer_id", "last_timestamp_ms", "epoch", "count"))
    batches = table["batches"].tolist()
    return [
        msgspec.Raw(_encoder.encode((queue_id, producer_id, (epoch, of_producer[:count], last_ms))))
        for (queue_id, producer_id, last_ms, epoch, count), of_producer in zip(
            zip(*columns, strict=True), batches, strict=True
        )
    ]


async def _encoded(state: State, producers: Mapping[int, Sequence[msgspec.Raw]]) -> bytes:
    """Encode the state with the producers given for its write groups. Lists that grow with the journal and with
    producers are encoded some entries at a time, the rest beside the event loop."""
    groups: dict[int, Any] = dict(state.groups)
    for number, packed in producers.items():
        groups[number] = groups[number]._replace(producers=await _packed_list(packed))
    marks: Any = await _packed_list(state.journal_map.marks)
    whole: Any = msgspec.structs.replace(state, groups=groups, journal_map=state.journal_map._replace(marks=marks))
    return await asyncio.to_thread(_encoder.encode, whole)


async def _packed_list(entries: Sequence[object]) -> msgspec.Raw:
    parts = [LIST_OF.pack(LIST_MARK, len(entries))]
    for first in range(0, len(entries), ENTRIES_PER_TURN):
        parts += map(_encoder.encode, entries[first : first + ENTRIES_PER_TURN])
        await asyncio.sleep(0)
    return msgspec.Raw(b"".join(parts))


async def save(
    files: Files, state: State, image: QueueImage, producers: Mapping[int, Sequence[msgspec.Raw]] | None = None
) -> None:
    """Write a checkpoint and remove the older ones. `producers` are those of the write groups whose state has none of
    its own, as `packed_producers` returns them."""
    encoded = await _encoded(state, producers or {})
    sizes = SIZES.pack(
        len(encoded),
        sum(map(len, image.ranges)) // RANGE_BYTES,
        sum(map(len, image.queues)) // QUEUE_BYTES,
    )
    view = memoryview(encoded)
    parts = [view[first : first + PIECE_BYTES] for first in range(0, len(view), PIECE_BYTES)]
    pieces: list[Buffer] = [sizes, *parts, *image.ranges, *image.queues]
    magic = MAGIC if state.producer_files else MAGIC_WITHOUT_FILES
    pieces.insert(0, FRAME.pack(magic, await _checksum(pieces)))
    name = path_of(state.position)
    temporary = f"{name}{TEMPORARY}"
    for left in await files.names(DIRECTORY):
        if left.endswith(TEMPORARY):  # left by an attempt that a full disk ended: the disk needs the room
            await files.remove(f"{DIRECTORY}/{left}")
    file = await files.open(temporary, create=True)
    try:
        await _write(file, pieces)
    finally:
        await file.close()
    await files.rename(temporary, name)
    for other in await files.names(DIRECTORY):
        if f"{DIRECTORY}/{other}" != name:
            await files.remove(f"{DIRECTORY}/{other}")


async def _checksum(pieces: Sequence[Buffer]) -> int:
    checksum = 0
    for piece in pieces:
        checksum = google_crc32c.extend(checksum, bytes(piece))
        await asyncio.sleep(0)
    return checksum


async def _write(file: File, pieces: Sequence[Buffer]) -> None:
    """Write and sync the pieces, some at a time. Write and sync are separate calls, since a combined one would go to
    the thread of the journal's commits, which must wait for no other work."""
    position, size = 0, 0
    taken: list[Buffer] = []
    for piece in pieces:
        taken.append(piece)
        size += len(piece)
        if size >= SYNC_BYTES:
            await file.write(position, taken)
            await file.sync()
            position, size, taken = position + size, 0, []
    if taken:
        await file.write(position, taken)
    await file.sync()


def path_of(position: int) -> str:
    return f"{DIRECTORY}/{position:020d}{SUFFIX}"


async def load(files: Files, node_id: int = 0) -> Checkpoint | None:
    """The newest checkpoint; None when there never was one. `node_id`: the node it must belong to; 0: any.

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
    if len(content) < HEADER_BYTES:
        raise FormatError(f"{path}: cut short at {len(content)} bytes; {REMEDY}")
    magic, checksum = FRAME.unpack_from(content)
    if magic not in MAGICS_READ and magic[:NAME_BYTES] == MAGIC[:NAME_BYTES]:
        raise FormatError(f"{path}: is of format {magic!r}, this program reads {MAGIC!r}")
    state_bytes, range_count, queue_count = SIZES.unpack_from(content, FRAME.size)
    ranges_at = HEADER_BYTES + state_bytes
    queues_at = ranges_at + range_count * RANGE_BYTES
    end = queues_at + queue_count * QUEUE_BYTES
    if magic not in MAGICS_READ or end != len(content) or google_crc32c.value(content[FRAME.size :]) != checksum:
        raise FormatError(f"{path}: fails its checksum; {REMEDY}")
    try:
        state = _decoder.decode(memoryview(content)[HEADER_BYTES:ranges_at])
    except msgspec.MsgspecError as error:
        raise FormatError(f"{path}: {error}") from error
    if path != path_of(state.position) or (node_id and state.node_id not in (0, node_id)):
        raise FormatError(
            f"{path}: is the checkpoint of node {state.node_id or node_id} at position {state.position}; {REMEDY}"
        )
    return Checkpoint(state, content[ranges_at:queues_at], content[queues_at:])
