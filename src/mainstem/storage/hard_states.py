"""What the consensus of a node's write groups must remember: per group its term, and whom it voted for in that term.

One file, `hard_states`, of two copies that are written in turn, so that a torn write leaves the other:

    magic (8 bytes) · CRC32C of all that follows (u32) · groups (u32) · sequence (u64) ·
    per group: number (u32) · how it began here (u32) · term (u64) · vote (u64, 0: nobody)

A group begins on a node in one of two ways: with the node among those that found it (0), or with a replica that moves
there (1). A replica of the latter kind has no say until the group's log gives it one. A replica that was moved away is
remembered as such (2), with the votes it gave, until another one comes.

Each copy begins on a multiple of `COPY_BYTES`. Little-endian. The copy that is whole and of the higher sequence counts.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from typing import NamedTuple

from mainstem.kernel import crc32c
from mainstem.ports import File, Files
from mainstem.raft import HardState
from mainstem.storage.errors import FormatError, StorageFailed

NAME = "hard_states"
MAGIC = b"MSHARDS1"
FRAME = struct.Struct("<8sI")
SIZES = struct.Struct("<IQ")
ROW = struct.Struct("<IIQQ")
LATER, LEFT = 1, 2
COPY_BYTES = 64 * 1024
"""Room for more than 2,700 groups."""
GROUPS_MAX = (COPY_BYTES - FRAME.size - SIZES.size) // ROW.size


class HardStates:
    """The hard states of all groups, in memory and on disk. Made by `open`."""

    def __init__(
        self, file: File, states: dict[int, HardState], sequence: int, came_later: set[int], gone: set[int]
    ) -> None:
        self._file = file
        self._states = states
        self.sequence = sequence
        """Counts the saves, for ever."""
        self.is_new = sequence == 0
        """Nothing was ever saved before this start."""
        self._came_later = came_later
        self._left = gone
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
            if content.startswith(MAGIC[:-1]) and not content.startswith(MAGIC):
                found = content[: len(MAGIC)].decode("latin-1")
                raise FormatError(
                    f"{NAME}: of format {found}, this version reads {MAGIC.decode()}: start the version that wrote it"
                )
            raise FormatError(
                f"{NAME}: neither copy passes its checksum. Which votes this node gave is unknown: restore the file, "
                "or replace the node by one with an empty directory"
            )
        newest = max(copies, key=lambda copy: copy.sequence, default=Copy(0, {}, set(), set()))
        return cls(file, newest.states, newest.sequence, newest.came_later, newest.left)

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

    def begin(self, group: int, *, later: bool) -> None:
        """It begins here; part of the next save."""
        self._states.setdefault(group, HardState())
        self._left.discard(group)
        if later:
            self._came_later.add(group)

    def leave(self, group: int) -> None:
        """Its replica was moved away; part of the next save."""
        self._came_later.discard(group)
        self._left.add(group)

    async def save(self, changed: Mapping[int, HardState]) -> None:
        """Durable when it returns. Raises `StorageFailed`: the disk's state is unknown then, and must not be asked."""
        async with self._turn:  # two at a time could tear both copies
            await self._save(changed)

    async def _save(self, changed: Mapping[int, HardState]) -> None:
        self._states.update(changed)
        self.sequence += 1
        rows = b"".join(
            ROW.pack(group, self._beginning(group), state.term, state.vote)
            for group, state in sorted(self._states.items())
        )
        content = SIZES.pack(len(self._states), self.sequence) + rows
        place = COPY_BYTES * (self.sequence % 2)
        try:
            await self._file.write(place, [FRAME.pack(MAGIC, crc32c(content)) + content], sync=True)
        except OSError as error:
            raise StorageFailed(f"{NAME}: terms and votes cannot be written: {error}") from error

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


def _copy(content: bytes) -> Copy | None:
    """What one copy says; None when it is not whole."""
    if len(content) < FRAME.size + SIZES.size:
        return None
    magic, checksum = FRAME.unpack_from(content)
    count, sequence = SIZES.unpack_from(content, FRAME.size)
    end = FRAME.size + SIZES.size + count * ROW.size
    if (
        magic != MAGIC
        or count > GROUPS_MAX
        or end > len(content)
        or crc32c(content[FRAME.size : end]) != checksum
    ):
        return None
    rows = list(ROW.iter_unpack(content[FRAME.size + SIZES.size : end]))
    states = {group: HardState(term, vote) for group, _, term, vote in rows}
    came_later = {group for group, beginning, _, _ in rows if beginning == LATER}
    return Copy(sequence, states, came_later, {group for group, beginning, _, _ in rows if beginning == LEFT})
