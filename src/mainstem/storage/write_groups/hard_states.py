"""Keeps what the consensus of a node's write groups must remember: per write group its term, and its vote in that term.

One file, `hard_states`, has two copies. A save writes and syncs one, then the other, and begins with the one that may
be torn or older; the node acts on it only when both are on the disk:

    magic (8 bytes) · CRC32C of all up to the seal (u32) · groups (u32) · sequence (u64) ·
    per group: number (u32) · how it began here (u16) · founders (u16) · term (u64) · vote (u64, 0: nobody) ·
               node id of each founder (u32)
    seal: magic (8 bytes) · sequence (u64) · nonce of the start that saved it (8 bytes) · node id (u32) ·
          the CRC32C from above (u32) · CRC32C of the seal (u32)

So one broken copy costs nothing: no promise was made on a torn write, and against damage the other copy holds the same.
Versions before the seal wrote the copies in turn; where one of those is damaged the other may be older than a vote that
was given, and the file is refused. They read what this version writes, and ignore the seal.

A group begins on a node in one of two ways: with the node among those that found it (0), or with a replica that moves
there (1). A replica of the latter kind has no vote until the write group's log gives it one. A replica that was moved
away is remembered as such (2), with the votes it gave, until another replica comes. That one has an empty log in place
of blocks that were acknowledged here, and is remembered as returned (3) until it has caught up. Founders remember each
other: the log has the members that came and went, not the first ones, and placement may want others by the next start.

Format 1 knew no founders. Each copy begins on a multiple of `COPY_BYTES`. Little-endian. The copy that is whole and of
the higher sequence counts. The node id tells the file from a neighbour's, the nonce from an older copy of itself.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Collection, Mapping
from typing import NamedTuple

from mainstem.kernel import crc32c
from mainstem.ports import File, Files
from mainstem.raft import HardState
from mainstem.storage.errors import FormatError, StorageFailed

NAME = "hard_states"
MAGIC = b"MSHARDS2"
MAGIC_1 = b"MSHARDS1"
FRAME = struct.Struct("<8sI")
SIZES = struct.Struct("<IQ")
SEAL_MAGIC = b"MSTWICE2"
SEAL = struct.Struct("<8sQ8sII")
SEAL_CRC = struct.Struct("<I")
ROW = struct.Struct("<IHHQQ")
NODE_ID = struct.Struct("<I")
LATER, LEFT, RETURNED = 1, 2, 3
COPY_BYTES = 64 * 1024
"""Room for 1,800 groups of three founders."""

log = logging.getLogger(__name__)


class HardStates:
    """The hard states of all groups, in memory and on disk. Made by `open`."""

    def __init__(self, file: File, node_id: int, newest: HardStatesCopy, *, zeroed: bool) -> None:
        self._file = file
        self._node_id = node_id
        self.saved_in = newest.nonce
        """The nonce of the start that saved the file last; empty: not recorded."""
        self.nonce = b""
        """The nonce of this start."""
        self._states = newest.states
        self.sequence = newest.sequence
        """How often the file was saved since it was made."""
        self.is_new = newest.sequence == 0
        """True when the file shows no save before this start."""
        self.zeroed = zeroed
        """True when the file exists and holds only zeros: made by a start that was cut short, or damaged."""
        self._came_later = newest.came_later
        self._left = newest.left
        self._returned = newest.returned
        self._founders = newest.founders
        self._next_place = COPY_BYTES - newest.place
        """Byte of the copy that is written next: the other one is whole, and on the disk."""
        self._turn = asyncio.Lock()

    @classmethod
    async def open(cls, files: Files, node_id: int = 0) -> HardStates:
        """`node_id`: the node it must belong to; 0: any. Raises `FormatError` when the file does not tell this node's
        last promises, `OSError`."""
        file = await files.open(NAME, create=True)
        try:
            content = await file.read(0, 2 * COPY_BYTES)
            newest = _newest(content)
            if newest.node_id not in (0, node_id) and node_id:
                raise FormatError(
                    f"{NAME}: the file belongs to node {newest.node_id}, this is node {node_id}: put the file of this "
                    f"node back. {REMEDY}"
                )
            if len(content) < 2 * COPY_BYTES:  # terms and votes must be writable on a full disk, too
                await file.size(truncate_to=2 * COPY_BYTES)
            await file.sync()  # a killed process may leave a copy that is not on the disk yet
        except BaseException:
            await file.close()
            raise
        return cls(file, node_id, newest, zeroed=not newest.sequence and len(content) == 2 * COPY_BYTES)

    def of(self, group: int) -> HardState:
        return self._states.get(group, HardState())

    def began(self, group: int) -> bool:
        """Whether the group ever began here."""
        return group in self._states

    @property
    def numbers_end(self) -> int:
        """The number behind that of the last group that ever began here."""
        return max(self._states, default=-1) + 1

    def came_later(self, group: int) -> bool:
        """Whether the write group began here with a replica that moved here, or will do so."""
        return group in self._came_later or group in self._left or group in self._returned

    def left(self, group: int) -> bool:
        """Whether the write group's replica was moved away, and none came since."""
        return group in self._left

    def returned(self, group: int) -> bool:
        """Whether the write group's replica came back after one was moved away, and has not `caught_up`."""
        return group in self._returned

    def caught_up(self, group: int) -> None:
        """Note that a replica that `returned` has everything that its predecessor here acknowledged; part of the next
        save."""
        self._returned.discard(group)
        self._came_later.add(group)

    def founders(self, group: int) -> frozenset[int]:
        """The nodes that founded the write group, this node among them; empty: its replica came later, or the founders
        were not recorded."""
        return self._founders.get(group, frozenset())

    def begin(self, group: int, founders: Collection[int] = ()) -> None:
        """Note that a write group begins here, founded by these nodes or, without any, with a replica that moves here;
        part of the next save."""
        self._states.setdefault(group, HardState())
        if founders:
            self._founders[group] = frozenset(founders)
        elif group in self._left or group in self._returned:
            self._returned.add(group)
        else:
            self._came_later.add(group)
        self._left.discard(group)

    def leave(self, group: int) -> None:
        """Note that a write group's replica was moved away; part of the next save."""
        self._came_later.discard(group)
        self._returned.discard(group)
        self._founders.pop(group, None)
        self._left.add(group)

    async def save(self, changed: Mapping[int, HardState]) -> None:
        """Save terms and votes, durable on return. Raises `StorageFailed`: the disk's content is unknown then, and must
        not be read."""
        async with self._turn:  # two at a time could tear both copies
            await self._save(changed)

    async def _save(self, changed: Mapping[int, HardState]) -> None:
        self._states.update(changed)
        self.sequence += 1
        rows = b"".join(self._row(group, state) for group, state in sorted(self._states.items()))
        content = SIZES.pack(len(self._states), self.sequence) + rows
        if FRAME.size + len(content) + SEAL.size + SEAL_CRC.size > COPY_BYTES:
            raise StorageFailed(f"{NAME}: {len(self._states)} write groups are more than the file has room for")
        checksum = crc32c(content)
        seal = SEAL.pack(SEAL_MAGIC, self.sequence, self.nonce, self._node_id, checksum)
        copy = FRAME.pack(MAGIC, checksum) + content + seal + SEAL_CRC.pack(crc32c(seal))
        try:
            for _ in range(2):  # one after the other: a stop in between leaves one copy whole
                await self._file.write(self._next_place, [copy], sync=True)
                self._next_place = COPY_BYTES - self._next_place
        except OSError as error:
            raise StorageFailed(f"{NAME}: terms and votes cannot be written: {error}") from error

    def _row(self, group: int, state: HardState) -> bytes:
        founders = sorted(self.founders(group))
        row = ROW.pack(group, self._beginning(group), len(founders), state.term, state.vote)
        return row + b"".join(map(NODE_ID.pack, founders))

    def _beginning(self, group: int) -> int:
        if group in self._left:
            return LEFT
        return RETURNED if group in self._returned else int(group in self._came_later)

    async def close(self) -> None:
        await self._file.close()


REMEDY = (
    "Which votes this node gave is unknown, and it might give them twice: restore write_dir and store_dir as a whole, "
    "or start a node with another node id and empty directories, and have it take the place of this one (mainstem "
    "cluster replace)"
)


class HardStatesCopy(NamedTuple):
    """One of the two copies. `came_later`, `left`, `returned`: numbers of write groups."""

    sequence: int
    states: dict[int, HardState]
    came_later: set[int]
    left: set[int]
    founders: dict[int, frozenset[int]]
    returned: set[int]
    sealed: bool = False
    """Written before the other copy was, so that the other is never newer than what was promised on this one."""
    node_id: int = 0
    """Id of the node it belongs to; 0: not recorded."""
    nonce: bytes = b""
    """The nonce of the start that saved it; empty: not recorded."""
    place: int = COPY_BYTES
    """Byte at which it begins."""


def _newest(content: bytes) -> HardStatesCopy:
    """The copy that counts; an empty copy where none was ever saved. Raises `FormatError`."""
    parts = [content[start : start + COPY_BYTES] for start in (0, COPY_BYTES)]
    copies = [_copy(part, place) for place, part in zip((0, COPY_BYTES), parts, strict=True)]
    whole = [copy for copy in copies if copy is not None]
    if not content.strip(b"\0"):
        return HardStatesCopy(0, {}, set(), set(), {}, set())
    if not whole:
        if content.startswith(MAGIC[:-1]) and not content.startswith((MAGIC, MAGIC_1)):
            found = content[: len(MAGIC)].decode("latin-1")
            raise FormatError(
                f"{NAME}: of format {found}, this version reads {MAGIC.decode()}: start the version that wrote it"
            )
        raise FormatError(f"{NAME}: neither copy passes its checksum. {REMEDY}")
    newest = max(whole, key=lambda copy: copy.sequence)
    if len(whole) == len(copies):
        return newest
    place = COPY_BYTES * copies.index(None)
    zeros = not parts[copies.index(None)].strip(b"\0")
    if not newest.sealed and not (zeros and newest.sequence == 1):
        raise FormatError(
            f"{NAME}: the copy at byte {place} is damaged, and the other one may be older than it was. {REMEDY}"
        )
    if not zeros or newest.sequence > 1:
        log.warning("%s: the copy at byte %d is torn or damaged, the other one takes its place", NAME, place)
    return newest


def _copy(content: bytes, place: int) -> HardStatesCopy | None:
    """Parse the copy that begins at this byte; None when it is not whole."""
    if len(content) < FRAME.size + SIZES.size:
        return None
    magic, checksum = FRAME.unpack_from(content)
    count, sequence = SIZES.unpack_from(content, FRAME.size)
    copy = HardStatesCopy(sequence, {}, set(), set(), {}, set(), place=place)
    kinds = {LATER: copy.came_later, LEFT: copy.left, RETURNED: copy.returned}
    end = FRAME.size + SIZES.size
    for _ in range(count):
        if end + ROW.size > len(content):
            return None
        group, beginning, founders, term, vote = ROW.unpack_from(content, end)
        end += ROW.size
        if end + founders * NODE_ID.size > len(content):
            return None
        node_ids = [NODE_ID.unpack_from(content, end + NODE_ID.size * place)[0] for place in range(founders)]
        end += founders * NODE_ID.size
        copy.states[group] = HardState(term, vote)
        if node_ids:
            copy.founders[group] = frozenset(node_ids)
        if beginning in kinds:
            kinds[beginning].add(group)
    if magic not in (MAGIC, MAGIC_1) or crc32c(content[FRAME.size : end]) != checksum:
        return None
    return _with_seal(copy, content[end : end + SEAL.size + SEAL_CRC.size], checksum)


def _with_seal(copy: HardStatesCopy, seal: bytes, checksum: int) -> HardStatesCopy:
    """Add the seal, if it is this copy's. A version without seals leaves an old seal, or other bytes, behind its own
    copy."""
    if len(seal) < SEAL.size + SEAL_CRC.size:
        return copy
    magic, sequence, nonce, node_id, sealed = SEAL.unpack_from(seal)
    (own,) = SEAL_CRC.unpack_from(seal, SEAL.size)
    if magic != SEAL_MAGIC or own != crc32c(seal[: SEAL.size]) or (sequence, sealed) != (copy.sequence, checksum):
        return copy
    return copy._replace(sealed=True, node_id=node_id, nonce=nonce.rstrip(b"\0"))
