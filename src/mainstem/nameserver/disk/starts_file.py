"""`<write_dir>/starts` keeps on disk what a node remembers of starts (`starts`).

Two copies, at 0 and at `COPY_BYTES`, each written and synced before the next, first the one that may be torn or older;
of the whole copies the one with the higher sequence counts:

    magic (8 bytes) · CRC32C of all that follows (u32) · bytes of the content (u32) · sequence (u64) · content (msgpack)

A missing file, or one without a whole copy, remembers nothing: the nodes that have seen this one start
find that out, as they would of an older copy.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Collection

import google_crc32c
import msgspec

from mainstem.nameserver.disk import starts
from mainstem.nameserver.disk.starts import LossCause, Remembers
from mainstem.nameserver.errors import ForeignDirectory, MetadataUnavailable
from mainstem.ports import File, Files
from mainstem.rpc.handlers import RpcCall
from mainstem.rpc.messages.starts import NONCE_BYTES, StartJudged, StartShown
from mainstem.rpc.raft.raft_member import METADATA_QUORUM
from mainstem.rpc.wire.method import Reply

NAME = "starts"
MAGIC = b"MSSTART1"
FRAME = struct.Struct("<8sI")
SIZES = struct.Struct("<IQ")
COPY_BYTES = 128 * 1024
"""Room for the nonces of `STARTS_MAX` starts, what is known of 2,000 other nodes, and as many groups."""

log = logging.getLogger(__name__)


class StartsFile:
    """The open file and its content. Made by `open`; each start calls `begin` first of all."""

    def __init__(self, file: File, sequence: int, remembers: Remembers, next_place: int) -> None:
        self.remembers = remembers
        self._file = file
        self._sequence = sequence
        self._next_place = next_place
        """Byte of the copy that is written next: the other one, if there is any, is whole, and on the disk."""
        self._turn = asyncio.Lock()
        self._found_out = False
        """This run found out that the node has forgotten everything: nodes that do not know that yet do not
        know its newest nonce."""
        self._believed = False
        """A majority has judged this start and found nothing."""
        self._told_undecided: set[int] = set()
        """Nodes for which the log has said that this one cannot judge them: they ask several times a
        second."""

    @classmethod
    async def open(cls, files: Files, node_id: int | None) -> StartsFile:
        """`node_id`: the node that the file must belong to; None: any. Raises `ForeignDirectory`, OSError."""
        file = await files.open(NAME, create=True)
        try:
            content = await file.read(0, 2 * COPY_BYTES)
            if len(content) < 2 * COPY_BYTES:
                await file.size(truncate_to=2 * COPY_BYTES)
            await file.sync()  # a killed process may leave a copy that is not on the disk yet
            copies = [(place, _copy(content[place : place + COPY_BYTES])) for place in (0, COPY_BYTES)]
            whole = [(place, *copy) for place, copy in copies if copy is not None]
            if not whole and content.strip(b"\0"):
                log.error("%s: neither copy is whole; the other nodes are asked what this one has forgotten", NAME)
            place, sequence, remembers = max(whole, key=lambda copy: copy[1], default=(COPY_BYTES, 0, Remembers()))
            if remembers.drawn and node_id is not None and remembers.node_id != node_id:
                raise ForeignDirectory(
                    f"{NAME} belongs to node {remembers.node_id}, the configuration says node {node_id}: put this "
                    "node's own file back, or correct node_id"
                )
        except BaseException:
            await file.close()
            raise
        return cls(file, sequence, remembers, COPY_BYTES - place)

    async def begin(
        self, node_id: int, boot: str, randbytes: Callable[[int], bytes], *, acknowledges_unsynced: bool
    ) -> None:
        nonce = randbytes(NONCE_BYTES)
        await self.change(
            lambda before: starts.begun(before, node_id, nonce, boot, acknowledges_unsynced=acknowledges_unsynced)
        )

    # --- what this node has forgotten: `storage.rejoining.Forgotten` -----------------------------------------

    @property
    def loss(self) -> LossCause:
        return LossCause(self.remembers.loss)

    @property
    def why(self) -> str:
        """How the loss came about, in words; empty: nothing is forgotten."""
        return self.remembers.why

    @property
    def lost_power(self) -> bool:
        """Whether only the ends of logs are lost, and perhaps on many nodes at once."""
        return self.loss is LossCause.POWER

    def has_lost(self, group: int) -> bool:
        return starts.has_lost(self.remembers, group)

    async def got_back(self, group: int) -> None:
        if self.has_lost(group):
            await self.change(lambda before: starts.got_back(before, group))

    async def all_got_back(self) -> None:
        """Note that the loss of every Raft group is made good."""
        if self.loss is not LossCause.NOTHING and not self.has_lost(METADATA_QUORUM):
            await self.change(starts.all_got_back)

    async def blocks_lost(self, groups: Collection[int], count: int, why: str) -> None:
        """The journal lacks acknowledged blocks of `groups`, of `count` write groups."""
        await self.change(lambda before: starts.blocks_lost(before, groups, count, why))

    async def ends_lost(self, why: str) -> None:
        """The journal's end is cut off: the log of every write group may have gone further."""
        await self.change(lambda before: starts.ends_lost(before, why))

    async def forgot_all(self, why: str, *, copied: bool = True) -> None:
        """`copied`: the file's memories of other nodes are older, too."""
        await self.change(
            lambda before: starts.copied(before, why) if copied else starts.lost(before, LossCause.COPY, why)
        )
        self._found_out = True
        self._believed = False

    def found_believed(self) -> None:
        """A majority has judged this start, and found nothing."""
        self._believed = True

    @property
    def nonce(self) -> bytes:
        """This start's nonce."""
        return self.remembers.drawn[-1]

    async def check_votes(self, name: str, nonce: bytes) -> None:
        """Compare the write groups' file of terms and votes: a start with this nonce saved it last."""
        if starts.is_older(self.remembers, name, nonce):
            await self.change(lambda before: starts.votes_lost(before, f"{name} is an older copy of itself"))
            log.error("%s is an older copy of itself: votes of the write groups are forgotten", name)

    async def wrote(self, name: str) -> None:
        """Note that this start has written a file, durably."""
        if self.remembers.written.get(name) != self.nonce:
            nonce = self.nonce
            await self.change(lambda before: msgspec.structs.replace(before, written=before.written | {name: nonce}))

    # --- others, and the end ------------------------------------------------------------------------------------

    def shown(self) -> StartShown:
        """The list that this node shows to others."""
        return StartShown(self.remembers.drawn, self._found_out, self.remembers.restored, self._believed)

    async def answer(self, call: RpcCall[StartShown]) -> Reply[StartJudged]:
        """Judge the starts that another node shows."""
        assert call.node is not None, "the method is for nodes only"
        async with self._turn:
            after, matches, outdated = starts.judged(self.remembers, call.node, call.request)
            if after != self.remembers:
                await self._write(after)
        if outdated and call.node.node_id not in self._told_undecided:
            self._told_undecided.add(call.node.node_id)
            log.warning(
                "node %d lacks a start that an older copy of this node's directories has seen: it was restored since, "
                "or runs on an older copy, too; the other nodes tell which",
                call.node.node_id,
            )
        elif not matches and not outdated:
            log.error(
                "node %d runs on an older copy of its directories: it lacks a start that it has shown here",
                call.node.node_id,
            )
        return Reply(StartJudged(matches, outdated))

    async def end_well(self) -> None:
        """Note an orderly stop: everything is synced, and nothing is written any more."""
        await self.change(lambda before: msgspec.structs.replace(before, ended_well=True))

    async def believe(self) -> None:
        await self.change(starts.believed)

    async def give_up(self, node_ids: list[int]) -> None:
        """From the next start on, go on without these nodes."""
        await self.change(lambda before: starts.left_alone(before, node_ids))

    async def alone_from(self, group: int, last_index: int) -> int | None:
        """The entry of a Raft group from which on this node is its only member, until a later entry changes
        that; None: the group's log names the members. The first start without the others decides, by the end
        of the log."""
        if not self.remembers.given_up:
            return None
        if group not in self.remembers.alone_from:
            await self.change(
                lambda before: msgspec.structs.replace(before, alone_from=before.alone_from | {group: last_index})
            )
        return self.remembers.alone_from[group]

    async def close(self) -> None:
        await self._file.close()

    async def change(self, change: Callable[[Remembers], Remembers]) -> None:
        """Remember what a change makes of all that is remembered, durably. Changes are made one after the other, so
        that none takes back what another one noted while it waited: a nonce of a node that was answered already."""
        async with self._turn:
            await self._write(change(self.remembers))

    async def _write(self, remembers: Remembers) -> None:
        content = SIZES.pack(0, self._sequence + 1) + msgspec.msgpack.encode(remembers)
        content = SIZES.pack(len(content) - SIZES.size, self._sequence + 1) + content[SIZES.size :]
        copy = FRAME.pack(MAGIC, google_crc32c.value(content)) + content
        if len(copy) > COPY_BYTES:
            raise MetadataUnavailable(f"{NAME}: {len(copy)} bytes are more than it has room for")
        try:
            for _ in range(2):
                await self._file.write(self._next_place, [copy], sync=True)
                self._next_place = COPY_BYTES - self._next_place
        except OSError as error:
            raise MetadataUnavailable(f"{NAME} cannot be written: {error}") from error
        self._sequence += 1
        self.remembers = remembers


def _copy(content: bytes) -> tuple[int, Remembers] | None:
    """Decodes a copy; None: it is not whole."""
    if len(content) < FRAME.size + SIZES.size:
        return None
    magic, checksum = FRAME.unpack_from(content)
    length, sequence = SIZES.unpack_from(content, FRAME.size)
    end = FRAME.size + SIZES.size + length
    if magic != MAGIC or end > len(content) or google_crc32c.value(content[FRAME.size : end]) != checksum:
        return None
    try:
        return sequence, msgspec.msgpack.decode(content[FRAME.size + SIZES.size : end], type=Remembers)
    except msgspec.DecodeError as error:
        log.error("%s: a copy cannot be read: %s", NAME, error)
        return None
