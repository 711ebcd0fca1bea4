"""Recovery starts from the newest checkpoint, walks the blocks behind it, and rebuilds the logs from before the stop.

Blocks behind the checkpoint become the tail of their group's log, and are applied as soon as the group knows that they
are committed: a single voter at once, others when a leader says so. Blocks before it, in segments that have no index
file yet, are only indexed: what they changed is in the checkpoint. How long it takes depends on bytes that are neither
split nor checkpointed, never on how many queues there are.

A hole in the journal, or a missing segment, affects only the write groups whose blocks lay there. The checkpoint's logs
tell these blocks, as far as they reach. Behind that a group is whole if its next block is the next of its log, and of
the same term (the leader of a term only appends) or of a group that this node has alone; else it is `torn`: its log
ends before the hole, and what follows of it is dead until a block continues it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy

from mainstem.kernel import COMMITTED_END, NO_SLOT
from mainstem.ports import Files
from mainstem.raft import Unavailable
from mainstem.storage.errors import CorruptJournal
from mainstem.storage.journal.encoding.format import (
    DIRECTORY_ROW,
    FIRST_BLOCK,
    KIND_DATA,
    BlockHeader,
    offset_of,
    position_of,
    segment_name,
    sequence_of,
)
from mainstem.storage.journal.journal import Journal
from mainstem.storage.journal.mending.stand_ins import Lost
from mainstem.storage.journal.recovery import BeforeCut, Hole
from mainstem.storage.journal.stored_block import StoredPlace
from mainstem.storage.state import checkpoint as checkpoints
from mainstem.storage.state import queue_image
from mainstem.storage.state.applied import AppliedState
from mainstem.storage.state.producers.cold_producers import ColdProducers
from mainstem.storage.write_groups.log_block import LogBlock, recovered_block
from mainstem.storage.write_groups.write_group import WriteGroup

log = logging.getLogger(__name__)


NOWHERE = 1 << 64
"""Behind every journal position."""


class LostInHole(NamedTuple):
    """The loss of a write group in a hole, as far as the blocks before and behind it tell."""

    group: int
    hole: Hole
    first: int
    last: int
    """0: no later block of the group tells how many are lost."""
    term: int
    """Term of the block before; that of the lost ones is no lower, nor higher than that of the block behind."""
    known: Sequence[Lost] = ()
    """Lost blocks whose places the checkpoint knows."""
    offsets: Sequence[tuple[int, int, int]] = ()
    """(queue id, first, last) offsets that are missing between the batches before and behind the hole."""
    seen: frozenset[int] = frozenset()
    """The queues that have batches behind the hole."""
    applied: bool = False
    """The blocks had been applied, so that the ends of all queues are known."""


class _Torn:
    """The blocks found behind the hole before which a write group's log ends."""

    def __init__(self, hole: Hole, first: int, term: int, known: Sequence[Lost]) -> None:
        self.hole = hole
        self.first = first
        self.term = term
        self.known = known
        self.behind = 0
        """The group's first block behind the hole; 0: there is none."""
        self.directories: list[bytes] = []
        """Of its data blocks there."""

    def found(self, header: BlockHeader, directory: bytes) -> None:
        self.behind = self.behind or header.index
        if header.kind == KIND_DATA:
            self.directories.append(directory)


class RecoveredState(NamedTuple):
    """The result of a recovery: logs to apply, and the write groups that lost blocks."""

    checkpoint_position: int
    blocks_logged: int
    """Behind what the checkpoint had applied; they are applied again once their group knows them to be committed."""
    blocks_indexed: int
    end: int
    """Journal position behind the last block."""
    torn: Mapping[int, str] = {}
    """Write groups whose logs end before a hole, or may, and where that is."""
    holes: Sequence[Hole] = ()
    """The holes that the walk has stepped over."""
    unread: Sequence[StoredPlace] = ()
    """Applied blocks in holes: the state has them, but nothing that is read from disk does."""
    missing: Mapping[int, tuple[int, str]] = {}
    """Write groups that lost applied blocks, which are not split, with a segment: the last of them, and the segment."""
    lost: Sequence[LostInHole] = ()
    """The blocks that lay in the holes, as far as they can be told."""
    remote_numbers: Mapping[int, int] = {}
    """Per group the last change of the remote tier that the checkpoint relies on."""

    def reasons(self) -> Iterator[str]:
        """The losses, described for operators."""
        yield from self.torn.values()
        yield from (f"{place} cannot be read" for place in self.unread)
        yield from (f"journal/{name} is missing, with blocks up to {upto}" for upto, name in self.missing.values())


class Recovery:
    """Rebuilds the logs and the state of a node's write groups."""

    def __init__(
        self,
        files: Files,
        journal: Journal,
        groups: Sequence[WriteGroup],
        state: AppliedState,
        producers: ColdProducers,
        node_id: int = 0,
        alone: Callable[[int], bool] = lambda group: True,
        split: Callable[[int], int] = lambda group: 0,
        open_ended: Mapping[int, int] | None = None,
    ) -> None:
        """`node_id`: the node that the checkpoint must belong to; 0: any. `alone`: whether no other node has a vote in
        a write group; `split`: a group's last block that is in the queue store; `open_ended`: write groups that lost
        blocks before a journal position, of which `batches_behind` is wanted."""
        self._open_ended = open_ended or {}
        self.batches_behind: dict[int, set[int]] = {group: set() for group in self._open_ended}
        """For each of these write groups the queues that have batches behind that position."""
        self._alone = alone
        self._split = split
        self._files = files
        self._node_id = node_id
        self._journal = journal
        self._groups = groups
        self._state = state
        self._producers = producers
        self._position = 0
        self._mapped = 0
        """Journal position up to which the checkpoint's map knows the journal."""
        self._walked: list[tuple[BlockHeader, bytes]] = []
        """Data blocks that the checkpoint had applied, in the journal's order."""
        self._logged = 0
        self._run: list[LogBlock] = []
        """Blocks of one log that were written again, one after the other: they count once the log's last is there."""

        self._moved_from: set[int] = set()
        """Segments that had blocks of which a copy counts now."""
        self._present: frozenset[int] = frozenset()
        """Segments that are there."""
        self._doubted: dict[int, Hole] = {}
        """Groups that may have had blocks in a hole: no block behind it has told yet."""
        self._torn: dict[int, str] = {}
        self._lost: dict[int, _Torn] = {}
        """Torn write groups, whether or not blocks behind the hole continue the log."""
        self._holes: list[Hole] = []
        self._unread: list[StoredPlace] = []
        self._missing: dict[int, tuple[int, str]] = {}

    async def run(self, *, over_holes: bool = False, before_cut: BeforeCut | None = None) -> RecoveredState:
        """Load, walk, and index. Raises `FormatError` or `CorruptJournal`, naming file and place, when what was
        durable cannot be read, and with `over_holes` only when it cannot be told what else is whole. The walk awaits
        `before_cut` if it cuts off an end of the journal, when the groups' logs are read and nothing is changed."""
        checkpoint = await checkpoints.load(self._files, self._node_id)
        durable = 0
        if checkpoint is not None:
            queue_image.put_back(self._state.table, checkpoint.ranges, checkpoint.queues)
            self._load(checkpoint.state)
            durable = checkpoint.state.durable
        named = checkpoint.state.producer_files if checkpoint is not None else {}
        await self._producers.load({number: of for number, of in named.items() if number < len(self._groups)})
        self._present = frozenset(segment.sequence for segment in self._journal.segments())
        step_over = self._step_over if over_holes else None
        report = await self._journal.recover(
            self._start(), self._visit, durable=durable, step_over=step_over, before_cut=before_cut
        )
        self._give_up_run()
        for number, hole in self._doubted.items():
            self._tear(self._groups[number], self._groups[number].last_index + 1, hole)
        await self._journal.index_anew(self._moved_from)
        lost_unread = self._lost_unread()
        indexed = self._index()
        self._look_for_missing()
        if self._missing and not over_holes:
            number, (index, name) = min(self._missing.items())
            raise CorruptJournal(
                f"journal/{name}: missing, while blocks up to {index} of write group {number} that are not split lay "
                "there; restore the file, or fetch the groups from a replica", self._missing,
            )  # fmt: skip
        segments = self._journal.segments()
        if segments and not any(map(self._alone, self._missing)):  # those before were recycled, perhaps since
            self._state.journal_map.drop(segments[0].sequence)
            for group in self._groups:
                group.blocks.forget_to(min(self._state.journal_map.pruned(group.group), group.applied_index))
        return RecoveredState(
            self._position, self._logged, indexed, report.end, self._torn, self._holes, self._unread, self._missing,
            [*lost_unread, *map(self._lost_torn, self._torn)],
            checkpoint.state.remote_numbers if checkpoint is not None else {},
        )  # fmt: skip

    def _load(self, saved: checkpoints.State) -> None:
        self._position = saved.position
        self._state.journal_map.load(saved.journal_map)
        self._mapped = self._state.journal_map.end
        self._state.manifest.load(saved.splits)
        self._state.moves.load(saved.moves)
        for group in self._groups:
            group.hold()
        for number, state in saved.groups.items():
            if number >= len(self._groups):
                continue  # it was added, and never began here
            group = self._groups[number]
            group.load(state)
            group.transactions.load_image(saved.transactions.get(number, b""))
            if number in saved.logs:
                group.blocks.load(saved.logs[number])
            else:  # saved before logs were replicated: everything in the journal was applied
                group.blocks.begin_behind(state.applied_index, state.term)

    def _start(self) -> int:
        """The place to walk the journal from: the first segment without an index, or the checkpoint's."""
        for segment in self._journal.segments():
            if not segment.index_ready or segment.sequence >= sequence_of(self._position):
                lacking = segment.sequence > sequence_of(self._position) and bool(self._position)
                if lacking and self._journal.previous_end(segment.sequence) > self._position:
                    return self._position  # the segment that it is in, and that was written on, is missing
                return position_of(segment.sequence, FIRST_BLOCK)
        return 0

    # --- holes --------------------------------------------------------------------------------------------

    def _step_over(self, hole: Hole) -> None:
        """Take note of a hole between two blocks."""
        self._give_up_run()
        self._holes.append(hole)
        for group in self._groups:
            blocks = group.blocks
            for index in blocks.indexes_between(hole.start, hole.end):
                if index > group.applied_index:
                    self._tear(group, index, hole)
                    break
                if index <= self._split(group.group):
                    continue
                place = StoredPlace(
                    group.group, blocks.term(index), index, blocks.position_of(index), blocks.length_of(index)
                )
                if sequence_of(place.position) in self._present:
                    self._unread.append(place)
                else:
                    self._missing[group.group] = index, segment_name(sequence_of(place.position))
        if hole.end > self._mapped:
            for number in self._doubtful(hole):
                if number not in self._torn:
                    self._doubted.setdefault(number, hole)

    def _doubtful(self, hole: Hole) -> Sequence[int]:
        """The groups that may have had blocks in a hole that no checkpoint knows. If one block lay there and its header
        still says whose next block it was, those of whom it may be it."""
        numbers = [group.group for group in self._groups]
        claimed = hole.claimed
        if claimed is None:
            return numbers
        likely = [number for number in numbers if self._groups[number].last_index + 1 == claimed.index]
        return likely if claimed.group in likely else numbers

    def _tear(self, group: WriteGroup, index: int, hole: Hole) -> None:
        """The log ends before this block, as far as this node knows."""
        number = group.group
        if number not in self._lost or number not in self._torn:
            known = self._known_places(group, hole, index)
            self._lost[number] = _Torn(hole, index, group.blocks.term(index - 1), known)
        if index <= group.last_index:
            _dropped, places = group.blocks.truncate(index)
            self._state.journal_map.superseded(number, index, places, group.blocks.last_data_before(index))
        where = f"{segment_name(sequence_of(hole.start))} at byte {offset_of(hole.start)}"
        self._torn[number] = f"journal/{where} cannot be read, and block {index} of the group is not known behind it"

    def _goes_on(self, group: WriteGroup, header: BlockHeader) -> bool:
        """Whether a block behind a hole continues the log for certain."""
        number, last = group.group, group.last_index
        next_one = header.index == last + 1
        if next_one and (header.term == group.blocks.term(last) or self._alone(number)):
            self._doubted.pop(number, None)
            self._torn.pop(number, None)
            return True
        if number in self._doubted:
            self._tear(group, last + 1, self._doubted.pop(number))
        return False

    def _known_places(self, group: WriteGroup, hole: Hole, first: int) -> list[Lost]:
        """The blocks of a log that lie in a hole, from block `first` on."""
        blocks = group.blocks
        return [
            Lost(
                group.group, blocks.term(index), index, blocks.position_of(index), blocks.length_of(index),
                blocks.kind_of(index) == KIND_DATA,
            )
            for index in blocks.indexes_between(hole.start, hole.end)
            if index >= first
        ]  # fmt: skip

    def _lost_torn(self, number: int) -> LostInHole:
        torn, blocks = self._lost[number], self._groups[number].blocks
        before = [bytes(block.directory) for block in blocks.all_held() if block.index < torn.first]
        ends, begins = _ends(before), _begins(torn.directories)
        gaps = []
        for queue_id, begin in begins.items():
            slot = self._state.table.find(queue_id)
            committed = self._state.table.get(slot, COMMITTED_END) if slot != NO_SLOT else 0
            end = max(committed, ends.get(queue_id, 0))
            if begin > end:
                gaps.append((queue_id, end, begin - 1))
        last = torn.behind - 1 if torn.behind else 0
        return LostInHole(
            number, torn.hole, torn.first, last, torn.term, torn.known, sorted(gaps), frozenset(begins)
        )  # fmt: skip

    def _lost_unread(self) -> list[LostInHole]:
        """The content of the applied blocks that cannot be read. The ends of the queues are known; where a queue's
        batches before the hole lie in segments that are not walked, it is not told what it lost."""
        found = []
        for hole in self._holes:
            groups = {place.group for place in self._unread if hole.start <= place.position < hole.end}
            for number in sorted(groups):
                known = self._known_places(self._groups[number], hole, 0)
                walked = [pair for pair in self._walked if pair[0].group == number]
                ends = _ends([rows for header, rows in walked if header.position < hole.start])
                held = self._groups[number].blocks.all_held()
                begins = _begins([
                    *[rows for header, rows in walked if header.position > hole.start],
                    *[bytes(block.directory) for block in held],
                ])  # fmt: skip
                gaps = []
                for queue_id, end in ends.items():
                    slot = self._state.table.find(queue_id)
                    if slot != NO_SLOT:
                        begin = begins.get(queue_id, self._state.table.get(slot, COMMITTED_END))
                        if begin > end:
                            gaps.append((queue_id, end, begin - 1))
                indexes = [lost.index for lost in known]
                found.append(LostInHole(number, hole, min(indexes), max(indexes), 0, known, sorted(gaps), applied=True))
        return found

    def _look_for_missing(self) -> None:
        """Find segments that the checkpoint knows and that are missing: if all their blocks are split they were
        recycled."""
        for sequence, before, mark in self._state.journal_map.segments():
            if sequence in self._present or sequence >= sequence_of(self._position):
                continue
            for group in self._groups:
                number = group.group
                known = max(before.last_data[number], self._split(number))
                if mark.last_data[number] > known:
                    self._missing[number] = mark.last[number], segment_name(sequence)

    def _visit(self, header: BlockHeader, directory: bytes, payload: bytes) -> None:
        where = f"{segment_name(sequence_of(header.position))} at byte {offset_of(header.position)}"
        group = self._groups[header.group] if header.group < len(self._groups) else None
        if group is None:
            raise CorruptJournal(f"{where}: block {header.index} of write group {header.group}: no such group")
        is_dead = header.position in self._state.journal_map.dead
        if not is_dead and header.index > group.applied_index and group.blocks.is_copy(header):
            self._copy_found(group, recovered_block(header, directory, payload, where))
            return
        self._give_up_run()
        if header.kind == KIND_DATA and not is_dead and header.position >= self._open_ended.get(header.group, NOWHERE):
            self.batches_behind[header.group].update(_begins([directory]))
        if is_dead:
            pass
        elif header.index <= group.applied_index:
            if not self._counts(group, header):
                self._state.journal_map.dead.add(header.position)
            elif header.kind == KIND_DATA:
                self._walked.append((header, directory))
        elif (header.group in self._doubted or header.group in self._torn) and not self._goes_on(group, header):
            self._state.journal_map.dead.add(header.position)
            self._lost[header.group].found(header, directory)
        else:
            journal_map = self._state.journal_map
            try:
                dead = group.blocks.read_back(recovered_block(header, directory, payload, where))
            except Unavailable as error:
                if not journal_map.dead or header.position < self._mapped:
                    raise CorruptJournal(
                        f"{where}: write group {header.group}: {error}; the journal does not continue the checkpoint. "
                        "Nothing was changed: restore write_dir as a whole, or replace the node"
                    ) from error
                # It was being written when the log dropped it, and the block before it, which the checkpoint knows to
                # be dead. Nothing that lives can get here: the block before it was written before it, so it is in the
                # checkpoint's log or was walked, and the chain of checksums vouches for it that none of those that
                # were written since is missing.
                dead = [header.position]
            self._logged += 1
            if header.position in dead:
                journal_map.dead.add(header.position)
            elif dead:
                last_data = group.blocks.last_data_before(header.index)
                journal_map.superseded(header.group, header.index, dead, last_data)
        if header.end > self._mapped:
            self._state.journal_map.add(header, live=header.position not in self._state.journal_map.dead)

    def _counts(self, group: WriteGroup, header: BlockHeader) -> bool:
        """Whether an applied block lies where the log has it, and is no copy that came too late. For blocks before the
        log's beginning, the checkpoint's map has seen all there were."""
        place = group.blocks.position_of(header.index)
        return place == header.position if place else header.position < self._mapped

    def _copy_found(self, group: WriteGroup, block: LogBlock) -> None:
        """Take note of a copy of a block of the log. Copies were written in one go, up to the log's last block, so a
        sequence that ends before it was cut off: then the originals count."""
        header, journal_map = block.header, self._state.journal_map
        assert header is not None
        newest = self._run[-1].header if self._run else None
        if newest is not None and (newest.group, newest.index + 1) != (header.group, header.index):
            self._give_up_run()
        self._run.append(block)
        if header.index < group.blocks.last_index():
            return
        run, self._run = self._run, []
        before = [group.blocks.read_again(copy) for copy in run]
        self._moved_from.update(map(sequence_of, before))
        first = run[0].index
        journal_map.superseded(header.group, first, before, group.blocks.last_data_before(first))
        self._logged += len(run)
        for copy in run:
            self._mapped_block(copy, live=True)

    def _give_up_run(self) -> None:
        """Drop the copies found last: they do not reach the end of their log."""
        run, self._run = self._run, []
        for copy in run:
            self._mapped_block(copy, live=False)

    def _mapped_block(self, block: LogBlock, *, live: bool) -> None:
        header = block.header
        assert header is not None
        if header.end > self._mapped:
            self._state.journal_map.add(header, live=live)

    def _index(self) -> int:
        """Index the blocks that were walked and are part of the checkpoint's state."""
        for header, directory in self._walked:
            self._state.index.add(header, directory, None)
        indexed = len(self._walked)
        self._walked.clear()
        return indexed


def _ends(directories: Iterable[bytes]) -> dict[int, int]:
    """Per queue, the offset behind its last batch in these directories, which are in the order of the log."""
    rows = numpy.frombuffer(b"".join(directories), DIRECTORY_ROW)
    ends = rows["base_offset"] + rows["last_offset_delta"] + 1
    return dict(zip(rows["queue_id"].tolist(), ends.tolist(), strict=True))


def _begins(directories: Iterable[bytes]) -> dict[int, int]:
    """Per queue, the offset of its first batch in these directories, which are in the order of the log."""
    rows = numpy.frombuffer(b"".join(directories), DIRECTORY_ROW)[::-1]
    return dict(zip(rows["queue_id"].tolist(), rows["base_offset"].tolist(), strict=True))
