"""A member of the metadata quorum keeps in this file what it must never forget: its term, its vote, its
directory's id.

Two slots on pages of their own in `metadata/vote`. A change goes to the first and is forced to disk, then to the
second, and the member relies on it when both are there: so one slot is whole at any time, and damage to one costs
nothing, not even if the power fails right after a promise. The commit index rides along as a hint how far the state
may be applied before the quorum has a leader; it may be old.

Invariants: `write` returns when the change is on disk, and nothing that follows from it (a vote, an answer) may leave
before; a file without a whole slot is refused, never taken for a new one: a forgotten vote can be cast twice; no slot
is written before the other one is whole on disk and holds the newest promise.
"""

from __future__ import annotations

import logging
import struct
from functools import partial
from typing import NamedTuple

import google_crc32c

from mainstem.nameserver.disk.metadata_files import VOTE, write_aside
from mainstem.nameserver.disk.room import Wait, at_once
from mainstem.nameserver.errors import MetadataCorrupt, MetadataUnavailable
from mainstem.ports import File, Files

FORMAT_VERSION = 1
SLOT_STRIDE_BYTES = 4096
IDENTITY_BYTES = 16
STAMP_BYTES = 2
"""Bytes kept of the nonce of the start that wrote a slot: as many as older versions pass over. One older copy
in 65,536 goes undetected."""

_MAGIC = b"MSVOTE\r\n"
_SLOT = struct.Struct("<8sHHQQqQq16s")
_CRC = struct.Struct("<I")
SLOT_BYTES = _SLOT.size + _CRC.size

log = logging.getLogger(__name__)


class Vote(NamedTuple):
    """`vote` is the node voted for in `term`; None: none yet."""

    term: int
    vote: int | None
    commit: int


class DirectoryOwner(NamedTuple):
    """The node that the directory belongs to; `identity`, 16 bytes made with the directory, tells it from any
    other."""

    node_id: int
    identity: bytes


class VoteFile:
    """The open file, with the newest vote. Made by `create` or `open`. One writer."""

    def __init__(self, file: File, sequence: int, owner: DirectoryOwner, vote: Vote, stamp: bytes = b"") -> None:
        self.owner = owner
        self.written_in = stamp
        """The first bytes of the nonce of the start that wrote the file last; empty: its version wrote
        none."""
        self.stamp = stamp
        """The first bytes of this start's nonce."""
        self.vote = vote
        self._file = file
        self._sequence = sequence
        self._second_settled = False
        """Whether the second slot is known to be on disk, with the newest vote."""
        self._failure: OSError | None = None

    @classmethod
    async def create(cls, files: Files, owner: DirectoryOwner, vote: Vote) -> VoteFile:
        slot = _encode(1, owner, vote)
        await write_aside(files, VOTE, [slot.ljust(SLOT_STRIDE_BYTES, b"\0"), slot])
        return cls(await files.open(VOTE), 1, owner, vote)

    @classmethod
    async def open(cls, files: Files) -> VoteFile:
        """Raises `MetadataCorrupt` when no slot is whole."""
        file = await files.open(VOTE)
        try:
            content = [await file.read(position, SLOT_BYTES) for position in (0, SLOT_STRIDE_BYTES)]
            slots = list(map(_decode, content))
            found = [slot for slot in slots if slot is not None]
            if not found:
                zeros = not b"".join(content).strip(b"\0")
                what = "it holds zeros only" if zeros else "neither copy of term and vote passes its checksum"
                raise MetadataCorrupt(VOTE, 0, f"{what}: it was damaged")
            sequence, owner, vote, stamp = max(found, key=lambda slot: slot[0])
            opened = cls(file, sequence, owner, vote, stamp)
            if len(set(slots)) > 1:
                log.warning("%s: one of its two copies is torn, damaged or older, it is written again", VOTE)
                await file.sync()  # a killed process may leave bytes that are not on the disk yet
                await opened.write(vote)
        except BaseException:
            await file.close()
            raise
        return opened

    async def write(self, vote: Vote, wait: Wait = at_once) -> None:
        """Raises `MetadataUnavailable` when the disk refuses; nothing may follow from the change then."""
        if self._failure is not None:
            raise MetadataUnavailable(f"{VOTE} takes no more changes: {self._failure}")
        slot = _encode(self._sequence + 1, self.owner, vote, self.stamp)
        try:
            if not self._second_settled:
                newest = _encode(self._sequence, self.owner, self.vote, self.stamp)
                await wait(VOTE, SLOT_BYTES, partial(self._file.write, SLOT_STRIDE_BYTES, [newest], sync=True))
            self._second_settled = False
            for position in (0, SLOT_STRIDE_BYTES):
                await wait(VOTE, SLOT_BYTES, partial(self._file.write, position, [slot], sync=True))
        except OSError as error:
            self._failure = error
            raise MetadataUnavailable(f"{VOTE} cannot be written: {error}") from error
        self._second_settled = True
        self._sequence += 1
        self.vote = vote

    async def close(self) -> None:
        await self._file.close()


def _encode(sequence: int, owner: DirectoryOwner, vote: Vote, stamp: bytes = b"") -> bytes:
    assert len(owner.identity) == IDENTITY_BYTES, "an identity has 16 bytes"
    chosen = -1 if vote.vote is None else vote.vote
    written_in = int.from_bytes(stamp[:STAMP_BYTES], "little")
    slot = _SLOT.pack(
        _MAGIC, FORMAT_VERSION, written_in, sequence, vote.term, chosen, vote.commit, owner.node_id, owner.identity
    )
    return slot + _CRC.pack(google_crc32c.value(slot))


def _decode(data: bytes) -> tuple[int, DirectoryOwner, Vote, bytes] | None:
    if len(data) < SLOT_BYTES:
        return None
    (crc,) = _CRC.unpack_from(data, _SLOT.size)
    magic, version, stamp, sequence, term, chosen, commit, node_id, identity = _SLOT.unpack_from(data)
    if magic != _MAGIC or crc != google_crc32c.value(data[: _SLOT.size]):
        return None
    if version != FORMAT_VERSION:
        raise MetadataCorrupt(VOTE, 0, f"format version {version}, this program reads {FORMAT_VERSION}")
    written_in = stamp.to_bytes(STAMP_BYTES, "little") if stamp else b""
    return sequence, DirectoryOwner(node_id, identity), Vote(term, None if chosen < 0 else chosen, commit), written_in
