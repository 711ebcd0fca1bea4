"""Makes blocks that went bad on disk 1 whole from another replica, and has the split wait before those it cannot mend.

A reader that meets one (mostly the split, which checks every byte) reports its position. The block is then read once
more, from the file itself. If it is damaged, its bytes are made again from memory or from a replica that has it; two
logs with a block of one term and index have the same block. The split of its write group, and of no other, stops before
a block that cannot be made whole. The block is examined again now and then, so that the write group goes on by itself
once an operator has restored the file or a replica answers again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from mainstem.kernel import crc32c
from mainstem.model import Buffer, Sample
from mainstem.ports import Clock, Files
from mainstem.rpc.errors import RpcError
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.messages.blocks import FETCH_BLOCK, BlockMissing, FetchBlock, FetchedBlock
from mainstem.rpc.other_nodes import Calls
from mainstem.rpc.wire.method import Reply
from mainstem.storage.errors import CorruptJournal, JournalHole, SegmentGone, StorageError
from mainstem.storage.journal.encoding.format import DIRECTORY_ROW_BYTES, KIND_DATA, segment_name, sequence_of
from mainstem.storage.journal.journal import Journal
from mainstem.storage.journal.mending.block_mending import look_at, write_whole, write_whole_unopened
from mainstem.storage.journal.mending.block_repair import Twin
from mainstem.storage.journal.stored_block import StoredPlace, read_block
from mainstem.storage.repair.lost_blocks import LostBlocks
from mainstem.storage.write_groups.write_group import WriteGroup

log = logging.getLogger(__name__)

FETCH_SECONDS_MAX = 10.0
"""For one block of some MiB; a node that takes longer is asked again later."""

DAMAGED_MAX = 1000
"""Damaged blocks remembered: each is examined every few seconds. A disk with more cannot be mended block by block;
readers that meet the others report them again."""


class DamagedBlock(NamedTuple):
    """A damaged block that could not be made whole yet."""

    place: StoredPlace
    fault: str
    since_ms: int


class JournalDamage:
    """Remembers the damaged blocks of a node's journal, mends them, and gives other nodes the blocks they ask for."""

    def __init__(
        self,
        files: Files,
        journal: Journal,
        groups: Sequence[WriteGroup],
        clock: Clock,
        node_id: int,
        calls: Calls | None,
        forget: Callable[[str], None],
        dead: Collection[int],
        lost: LostBlocks,
        placed: Callable[[int], Iterable[int]] = lambda group: (),
    ) -> None:
        """`calls` to the other nodes, None where there are none; `forget` drops what is cached of a file; `dead`: the
        places of blocks that are in no log any more; `lost`: what was given up, which other nodes may have replaced,
        and which counts for whole only when one of them gives it; `placed`: the nodes that have a group, if its log
        does not say."""
        self._placed = placed
        self._files = files
        self._journal = journal
        self._groups = groups
        self._clock = clock
        self._node_id = node_id
        self._calls = calls
        self._forget = forget
        self._dead = dead
        self._lost = lost
        self._damaged: dict[tuple[int, int], DamagedBlock] = {}
        """Damaged blocks by write group and index."""
        self._heard: set[int] = set()
        """Journal positions at which readers met damage since the last round."""
        self._unreadable: dict[int, int] = {}
        """Places (start → end) where the header of a block that no log needs cannot be read."""
        self.repaired = 0

    def register(self, handlers: Handlers) -> None:
        handlers.unary(FETCH_BLOCK, self._fetched)

    # --- what others ask ----------------------------------------------------------------------------------

    def waiting(self) -> list[DamagedBlock]:
        """The blocks that are still damaged, by write group and index."""
        return [self._damaged[key] for key in sorted(self._damaged)]

    def waits_for(self, group: int, index: int) -> bool:
        """Whether a block is known to be damaged, and not made whole yet."""
        return (group, index) in self._damaged

    def sound_before(self, group: int) -> int | None:
        """The last block of a write group before its first damaged one; None when none is damaged."""
        return min((index - 1 for of_group, index in self._damaged if of_group == group), default=None)

    def lost(self, place: StoredPlace) -> None:
        """Remember a block that a start could not walk over: it is examined and mended from the next round on."""
        if len(self._damaged) < DAMAGED_MAX:
            fault = f"{place}: the journal cannot be walked over it"
            self._damaged[place.group, place.index] = DamagedBlock(place, fault, self._clock.now_ms())

    def hole(self, start: int, end: int) -> None:
        """Remember a stretch of the journal that a start has stepped over: splits leave it out."""
        self._unreadable[start] = end

    async def met(self, position: int) -> bool:
        """Examine the block at a journal position that a reader could not read. Returns whether it is sound now."""
        for group in self._groups:
            index = group.blocks.index_at(position)
            if index:
                return await self._look(self.place(group, index))
        try:  # dead, or recycled: no reader needs it, but a walk over the journal must get past it
            segment = self._journal.segment(sequence_of(position))
        except SegmentGone:
            return True
        following = [group.blocks.next_position(position) for group in self._groups]
        following += [dead for dead in self._dead if dead > position]
        self._unreadable[position] = min([segment.end, *(place for place in following if place > position)])
        return False

    def holes(self) -> list[tuple[int, int]]:
        """(start, end) journal positions that cannot be walked over, and hold nothing that can be split."""
        places = [damaged.place for damaged in self._damaged.values()]
        damaged = [(place.position, place.position + place.length) for place in places]
        return sorted([*damaged, *self._unreadable.items()])

    def heard(self, position: int) -> None:
        """Have the next round examine this journal position, which a reader could not read."""
        if len(self._heard) < DAMAGED_MAX:
            self._heard.add(position)

    async def round(self) -> None:
        """Examine all damaged blocks once more, and the positions that readers have reported."""
        while self._heard:
            await self.met(self._heard.pop())
        oldest = self._journal.oldest_sequence
        self._unreadable = {start: end for start, end in self._unreadable.items() if sequence_of(start) >= oldest}
        for damaged in self.waiting():
            group, place = self._groups[damaged.place.group], damaged.place
            if group.blocks.position_of(place.index) != place.position:  # pruned, written again, or replaced
                del self._damaged[place.group, place.index]
            else:
                await self._look(place)

    # --- looking and mending ------------------------------------------------------------------------------

    def place(self, group: WriteGroup, index: int) -> StoredPlace:
        blocks = group.blocks
        return StoredPlace(group.group, blocks.term(index), index, blocks.position_of(index), blocks.length_of(index))

    async def _look(self, place: StoredPlace) -> bool:
        try:
            await look_at(self._files, self._journal, place)
            if self._lost.distrusts(place.group, place.index):
                raise CorruptJournal(f"{place}: other replicas may have given it up", position=place.position)
        except SegmentGone:
            self._damaged.pop((place.group, place.index), None)
            return True
        except (CorruptJournal, OSError) as error:
            if not await self._mend(place):
                self._note(place, str(error))
                return False
            log.warning("%s: was damaged on disk 1, and is made whole again from another copy", place)
            self.repaired += 1
            await self._lost.found_whole(place.group, place.index)
        else:
            if (place.group, place.index) in self._damaged:
                log.warning("%s: is sound again; its write group goes on", place)
        self._damaged.pop((place.group, place.index), None)
        self._forget(segment_name(sequence_of(place.position)))
        return True

    def _note(self, place: StoredPlace, fault: str) -> None:
        key = place.group, place.index
        if key in self._damaged or len(self._damaged) >= DAMAGED_MAX:
            return
        self._damaged[key] = DamagedBlock(place, fault, self._clock.now_ms())
        log.error(
            "%s. No other copy can be had now. The split of write group %d waits before this block, no other does: put "
            "the segment right, or have a replica answer",
            fault,
            place.group,
        )

    async def _mend(self, place: StoredPlace) -> bool:
        twin = self._held(place)
        if twin is not None and await self._write(place, twin):
            return True
        for node_id in self.others(place.group):
            fetched = await fetch_twin(self._calls, node_id, place.group, place.term, place.index)
            if fetched is not None and await self._write(place, fetched[1]):
                return True
        return False

    def others(self, group: int) -> list[int]:
        """The members besides this node, as far as it knows them: a waiting write group has no consensus here."""
        consensus, memberships = self._groups[group].consensus, self._groups[group].blocks.memberships
        members = consensus.voters | consensus.learners
        if not members and memberships:
            members = memberships[max(memberships)].members
        return sorted((members or frozenset(self._placed(group))) - {self._node_id})

    def _held(self, place: StoredPlace) -> Twin | None:
        """A block as memory has it; None when it does not."""
        block = self._groups[place.group].blocks.held(place.index)
        if block is None or block.term != place.term or block.payload is None:
            return None
        return Twin(block.kind, block.created_ms, block.batch_count, bytes(block.directory), bytes(block.payload))

    async def _write(self, place: StoredPlace, twin: Twin) -> bool:
        try:
            return await write_whole(self._files, self._journal, place, twin)
        except (StorageError, OSError) as error:
            log.warning("%s: cannot be written again: %s", place, error)
            return False

    # --- for other nodes ----------------------------------------------------------------------------------

    async def _fetched(self, call: RpcCall[FetchBlock]) -> Reply[FetchedBlock]:
        request = call.request
        blocks = self._groups[request.group].blocks if request.group < len(self._groups) else None
        if blocks is None or not blocks.position_of(request.index) or request.term not in (
            0, blocks.term(request.index)
        ):  # fmt: skip
            raise BlockMissing(f"node {self._node_id}: no block {request.index} of term {request.term} in the journal")
        place = self.place(self._groups[request.group], request.index)
        if self._lost.distrusts(place.group, place.index):
            raise BlockMissing(f"node {self._node_id}: {place} is given up, unless another replica has it")
        try:
            found = await read_block(self._journal, place)
        except (StorageError, OSError) as error:
            raise BlockMissing(f"node {self._node_id}: {error}") from error
        header = found.header
        content: list[Buffer] = [found.directory, found.payload]
        crc = crc32c(found.payload, crc32c(found.directory))
        return Reply(FetchedBlock(header.kind, header.created_ms, header.batch_count, crc, header.term), content)

    # --- statistics ---------------------------------------------------------------------------------------

    def samples(self) -> Iterable[Sample]:
        """Current values, for `/metrics`."""
        by_group = dict.fromkeys(range(len(self._groups)), 0)
        for group, _index in self._damaged:
            by_group[group] += 1
        for group, count in by_group.items():
            yield Sample(
                "mainstem_journal_damaged_blocks", "gauge",
                "Blocks that went bad on disk 1 and could not be made whole yet; the split of their write group waits",
                count, (("group", str(group)),),
            )  # fmt: skip
        yield Sample(
            "mainstem_journal_repaired_blocks_total", "counter",
            "Blocks that went bad on disk 1 and were made whole from another copy", self.repaired,
        )  # fmt: skip


async def fetch_twin(calls: Calls | None, node_id: int, group: int, term: int, index: int) -> tuple[int, Twin] | None:
    """Fetch (term, block) from another node, of any term where `term` is 0; None when that node cannot give it."""
    if calls is None:
        return None
    what = f"block {index} of write group {group}"
    try:
        request = FetchBlock(group, term, index)
        reply = await calls.call(node_id, FETCH_BLOCK, request, timeout_seconds=FETCH_SECONDS_MAX)
    except RpcError as error:
        log.info("%s: not from node %d: %s", what, node_id, error)
        return None
    message, content = reply.message, b"".join(bytes(buffer) for buffer in reply.buffers)
    end = message.batch_count * DIRECTORY_ROW_BYTES
    if crc32c(content) != message.crc or end > len(content) or (message.batch_count and message.kind != KIND_DATA):
        log.warning("%s: what node %d sent of it is not whole", what, node_id)
        return None
    twin = Twin(message.kind, message.created_ms, message.batch_count, content[:end], content[end:])
    return message.term or term, twin


async def mend_hole(
    files: Files, hole: JournalHole, calls: Calls | None, nodes: Callable[[int], Iterable[int]]
) -> bool:
    """Make a block whole that a start could not read, in a journal that no process has open. It is fetched from the
    other `nodes` of the write groups that miss a block there; its checksum, which the next block repeats, tells whether
    it is the right one. Raises `StorageError`, OSError."""
    for group, index in hole.candidates:
        for node_id in nodes(group):
            fetched = await fetch_twin(calls, node_id, group, 0, index)
            if fetched is None:
                continue
            place = StoredPlace(group, fetched[0], index, hole.position, hole.end - hole.position)
            if await write_whole_unopened(files, place, fetched[1]):
                log.warning("%s: was damaged on disk 1, and is made whole again from node %d", place, node_id)
                return True
    return False
