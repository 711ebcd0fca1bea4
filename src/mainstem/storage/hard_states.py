"""What the consensus of a node's write groups must remember: per group its term, and whom it voted for in that term.

One file, `hard_states`, of two copies that are written in turn, so that a torn write leaves the other:

    magic (8 bytes) · CRC32C of all that follows (u32) · groups (u32) · sequence (u64) ·
    per group: number (u32) · how it began here (u16) · founders (u16) · term (u64) · vote (u64, 0: nobody) ·
               node id of each founder (u32)

A group begins on a node in one of two ways: with the node among those that found it (0), or with a replica that moves
there (1). A replica of the latter kind has no say until the group's log gives it one. A replica that was moved away is
remembered as such (2), with the votes it gave, until another one comes. Founders remember each other: the log tells of
the members that came and went, not of the first ones, and placement may want others by the time it is read again.

Format 1 knew no founders. Each copy begins on a multiple of `COPY_BYTES`. Little-endian. The copy that is whole and of
the higher sequence counts.
"""

from __future__ import annotations

import asyncio
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
ROW = struct.Struct("<IHHQQ")
NODE_ID = struct.Struct("<I")
LATER, LEFT = 1, 2
COPY_BYTES = 64 * 1024
"""Room for 1,800 groups of three founders."""


class HardStates:
    """The hard states of all groups, in memory and on disk. Made by `open`."""

    def __init__(
        self,
        file: File,
        states: dict[int, HardState],
        sequence: int,
        came_later: set[int],
        gone: set[int],
        founders: dict[int, frozenset[int]],
    ) -> None:
        self._file = file
        self._states = states
        self.sequence = sequence
        """Counts the saves, for ever."""
        self.is_new = sequence == 0
        """Nothing was ever saved before this start."""
        self._came_later = came_later
        self._left = gone
        self._founders = founders
        self._turn = asyncio.Lock()

    @classmethod
    async def open(cls, files: Files) -> HardStates:
        """Raises `FormatError` when both copies are damaged, `OSError`."""
        file = await files.open(NAME, create=True)
        content = await file.read(0, 2 * COPY_BYTES)
        if len(content) < 2 * COPY_BYTES:  # terms and votes have to be written on a full disk, too
            await file.size(truncate_to=2 * COPY_BYTES)
        copies = [
            copy
            for start in (0, COPY_BYTES)
            if (copy := _copy(content[start : start + COPY_BYTES])) is not None
        ]
        if not copies and content.strip(b"\0"):
            await file.close()
            if content.startswith(MAGIC[:-1]) and not content.startswith((MAGIC, MAGIC_1)):
                found = content[: len(MAGIC)].decode("latin-1")
                raise FormatError(
                    f"{NAME}: of format {found}, this version reads {MAGIC.decode()}: start the version that wrote it"
                )
            raise FormatError(
                f"{NAME}: neither copy passes its checksum. Which votes this node gave is unknown: restore the file, "
                "or replace the node by one with an empty directory"
            )
        newest = max(copies, key=lambda copy: copy.sequence, default=Copy(0, {}, set(), set(), {}))
        return cls(file, newest.states, newest.sequence, newest.came_later, newest.left, newest.founders)

    def of(self, group: int) -> HardState:
        return self._states.get(group, HardState())

    def began(self, group: int) -> bool:
        """Whether the group ever began here."""
        return group in self._states

    def came_later(self, group: int) -> bool:
        """Whether it began here with a replica that moved here, or will."""
        return group in self._came_later or group in self._left

    def left(self, group: int) -> bool:
        """Whether its replica was moved away, and none came since."""
        return group in self._left

    def founders(self, group: int) -> frozenset[int]:
        """The nodes that founded it, this one among them; empty: it came later, or that was not written down."""
        return self._founders.get(group, frozenset())

    def begin(self, group: int, founders: Collection[int] = ()) -> None:
        """It begins here, founded by these nodes or, without any, with a replica that moves here; part of the next
        save."""
        self._states.setdefault(group, HardState())
        self._left.discard(group)
        if founders:
            self._founders[group] = frozenset(founders)
        else:
            self._came_later.add(group)

    def leave(self, group: int) -> None:
        """Its replica was moved away; part of the next save."""
        self._came_later.discard(group)
        self._founders.pop(group, None)
        self._left.add(group)

    async def save(self, changed: Mapping[int, HardState]) -> None:
        """Durable when it returns. Raises `StorageFailed`: the disk's state is unknown then, and must not be asked."""
        async with self._turn:  # two at a time could tear both copies
            await self._save(changed)

    async def _save(self, changed: Mapping[int, HardState]) -> None:
        self._states.update(changed)
        self.sequence += 1
        rows = b"".join(self._row(group, state) for group, state in sorted(self._states.items()))
        content = SIZES.pack(len(self._states), self.sequence) + rows
        if FRAME.size + len(content) > COPY_BYTES:
            raise StorageFailed(f"{NAME}: {len(self._states)} write groups are more than it has room for")
        place = COPY_BYTES * (self.sequence % 2)
        try:
            await self._file.write(place, [FRAME.pack(MAGIC, crc32c(content)) + content], sync=True)
        except OSError as error:
            raise StorageFailed(f"{NAME}: terms and votes cannot be written: {error}") from error

    def _row(self, group: int, state: HardState) -> bytes:
        founders = sorted(self.founders(group))
        row = ROW.pack(group, self._beginning(group), len(founders), state.term, state.vote)
        return row + b"".join(map(NODE_ID.pack, founders))

    def _beginning(self, group: int) -> int:
        return LEFT if group in self._left else int(group in self._came_later)

    async def close(self) -> None:
        await self._file.close()


class Copy(NamedTuple):
    """One of the two. `came_later`, `left`: numbers of groups."""

    sequence: int
    states: dict[int, HardState]
    came_later: set[int]
    left: set[int]
    founders: dict[int, frozenset[int]]


def _copy(content: bytes) -> Copy | None:
    """What one copy says; None when it is not whole."""
    if len(content) < FRAME.size + SIZES.size:
        return None
    magic, checksum = FRAME.unpack_from(content)
    count, sequence = SIZES.unpack_from(content, FRAME.size)
    copy = Copy(sequence, {}, set(), set(), {})
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
        if beginning in (LATER, LEFT):
            (copy.came_later if beginning == LATER else copy.left).add(group)
    if magic not in (MAGIC, MAGIC_1) or crc32c(content[FRAME.size : end]) != checksum:
        return None
    return copy
