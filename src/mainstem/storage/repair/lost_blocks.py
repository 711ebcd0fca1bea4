"""`<write_dir>/lost_blocks` says which blocks of the journal this node has lost, and which of them an operator gave up.

The node writes down what it cannot read and can get from nowhere, with the offsets that are lost with it; `mainstem
cluster recover` shows that, and notes what the operator gives up. The next start puts stand-ins in the place of what
was given up (`stand_ins`), and nothing else: a loss is known by the checksum of the bytes that lay there, so that bytes
that were restored since, or went bad since, are not covered. If other nodes have the write group, they are asked first
(`giving_up`), and bytes that were restored count only if none of them has given the block up.

The file is one for people (`disks/notes_for_people.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from mainstem.ports import Files
from mainstem.storage.disks.notes_for_people import read_notes, write_notes
from mainstem.storage.errors import StorageError
from mainstem.storage.journal.encoding.blocks import block_at
from mainstem.storage.journal.encoding.format import FIRST_BLOCK, offset_of, segment_name, sequence_of
from mainstem.storage.journal.mending.block_repair import Twin
from mainstem.storage.journal.mending.stand_ins import Lost, content_crc, is_stand_in, stand_in
from mainstem.storage.journal.segments.segment_files import segment_path

NAME = "lost_blocks"

LOSSES_MAX = 100
"""Losses written down: an operator decides on each. A disk with more is to be replaced."""

QUEUES_MAX = 1_000
"""Queues named for each write group of a loss; the others are counted."""

log = logging.getLogger(__name__)


class LostOffsets(msgspec.Struct, frozen=True):
    """Offsets of one queue that are lost."""

    queue: str
    first: int
    last: int
    """-1: no later batch tells how far they went."""


class LostPart(msgspec.Struct, frozen=True):
    """A write group's share of a loss."""

    group: int
    first: int
    """The first block that is lost."""
    last: int
    """The last; 0: no later block tells."""
    offsets: list[LostOffsets] = []
    others: int = 0
    """Queues with lost offsets that are not in `offsets`."""
    open_queues: int = 0
    """Queues that no later block tells the end of: any of them may have had batches there…"""
    raised_by: int = 0
    """…and so each of them goes on this much higher, which is more records than there was room for."""
    raised_to: int = 0
    """All queues go on at this offset at least, but for…"""
    topics_below: int = 0
    """…those of topics of this number or a higher one. 0: there are none to be raised so."""
    known: bool = True
    """Whether `offsets` are all that is lost; False: which queues had batches there is not known."""
    members: list[int] = []
    """Other nodes that have the write group: one of them may have what is lost here."""
    given_up: bool = False
    """By the operator here, or by another node, which asked."""
    without: list[int] = []
    """Of the other nodes those that are lost for good, as the operator says: they are not asked."""

    @property
    def name(self) -> str:
        """The name that the operator gives to give this up."""
        return f"{self.group}:{self.first}-{self.last or ''}"


class Loss(msgspec.Struct, frozen=True):
    """A stretch of one journal segment that cannot be read, or a segment that is missing."""

    start: int
    """Journal position."""
    end: int
    crc: int
    """Of what lies there; of no use where the segment is missing."""
    fault: str
    parts: list[LostPart]
    stand_ins: list[Lost] = []
    """The stand-ins for the lost blocks, once all parts are given up; empty: nothing can, as blocks of unknown places
    lie beside others, or the segment is missing."""
    missing: bool = False
    """The segment is missing."""
    replaced: bool = False
    """The stand-ins are in the journal; only the queues of `raised_by` are still to be raised."""

    @property
    def where(self) -> str:
        return (
            f"journal/{segment_name(sequence_of(self.start))}, bytes {offset_of(self.start)} to {offset_of(self.end)}"
        )

    @property
    def is_given_up(self) -> bool:
        return all(part.given_up for part in self.parts)


class LossVerdict(NamedTuple):
    """The answers of other nodes to a loss that was given up here (`giving_up`)."""

    refusal: str = ""
    """Why nothing may stand in for it now; empty: it may."""
    mended: bool = False
    """All of its blocks are whole again, from other replicas."""
    twins: Mapping[int, Twin] = {}
    """The content of other nodes in the place of blocks, by position here."""


Judge = Callable[[Loss], Awaitable[LossVerdict]]


class LostBlocks:
    """The losses that a node knows of, and the file that keeps them."""

    def __init__(self, files: Files, losses: Sequence[Loss]) -> None:
        self._files = files
        self.losses = list(losses)
        self.undecided: dict[int, str] = {}
        """Write groups of which a block may be given up, or whole, which only other nodes can tell; and why they did
        not."""

    @classmethod
    async def open(cls, files: Files) -> LostBlocks:
        """Raises `FormatError` when the file cannot be read, OSError."""
        losses = await read_notes(
            files, NAME, list[Loss],
            "It says which lost blocks were given up: restore it, or remove it and start the node, which writes it "
            "anew without what was given up",
        )  # fmt: skip
        return cls(files, losses)

    async def _save(self, losses: Sequence[Loss]) -> None:
        if not losses:
            await self._files.remove(NAME)
        else:
            await write_notes(self._files, NAME, losses)
        self.losses = list(losses)

    # --- what is lost -------------------------------------------------------------------------------------

    async def note(self, losses: Iterable[Loss]) -> None:
        """Write down what this start, or a reader, has found lost. A loss that is known already, with the same content,
        stays as it is, given up or not."""
        known = {(loss.start, loss.end, loss.crc) for loss in self.losses if not loss.replaced}
        new = [loss for loss in losses if (loss.start, loss.end, loss.crc) not in known]
        new = new[: max(0, LOSSES_MAX - len(self.losses))]
        if new:
            await self._save([*self.losses, *new])
            for loss in new:
                for part in loss.parts:
                    log.error(
                        "%s cannot be read, and no other node gives it now: %s. `mainstem cluster recover --lost` says "
                        "what is lost with it, --give-up %s gives that up",
                        loss.where, _blocks(part), part.name,
                    )  # fmt: skip

    async def note_raise(self, loss: Loss) -> None:
        """Write down a loss whose blocks are nowhere in the journal, so that only queues are to be raised. Raises
        OSError."""
        assert loss.replaced, "nothing stands in for it"
        await self._save([*self.losses, loss])

    async def look(self, segments: Collection[int]) -> None:
        """Forget losses that are none any more, since their bytes have changed or their segments are back; `segments`
        are there. Raises OSError."""
        left = [loss for loss in self.losses if loss.replaced or await self._is_still_lost(loss, segments)]
        if left != self.losses:
            await self._save(left)

    async def miss(self, segments: Collection[int]) -> None:
        """Forget all missing segments but these."""
        left = [loss for loss in self.losses if not loss.missing or sequence_of(loss.start) in segments]
        if left != self.losses:
            await self._save(left)

    async def _is_still_lost(self, loss: Loss, segments: Collection[int]) -> bool:
        sequence = sequence_of(loss.start)
        if loss.missing:
            return sequence not in segments
        if sequence not in segments:
            return False
        if any(part.given_up and part.members for part in loss.parts):
            return True
        return sequence_of(loss.end) != sequence or await content_crc(self._files, loss.start, loss.end) == loss.crc

    def is_given_up(self, group: int, upto: int, sequence: int) -> bool:
        """Whether the operator gave up a write group's unsplit blocks up to this one, gone with a segment."""
        return any(
            loss.missing and sequence_of(loss.start) == sequence and loss.is_given_up
            and any((part.group, part.last) == (group, upto) for part in loss.parts)
            for loss in self.losses
        )  # fmt: skip

    # --- giving up ----------------------------------------------------------------------------------------

    def check(self, names: Collection[str]) -> None:
        """Raise `StorageError` when one of these names is of nothing that is lost, or nothing can stand in for it."""
        offered = {part.name for loss in self.losses if not loss.replaced for part in loss.parts}
        if unknown := sorted(set(names) - offered):
            raise StorageError(
                f"{', '.join(unknown)}: not known to be lost; what is: {', '.join(sorted(offered)) or 'nothing'}"
            )
        for loss in self.losses:
            members = sorted({member for part in loss.parts if part.name in names for member in part.members})
            if loss.missing and members:
                raise StorageError(
                    f"{loss.where}: nodes {', '.join(map(str, members))} have the write group, and what was in the "
                    "segment is made anew from them: start them"
                )
            if not loss.stand_ins and not loss.missing and any(part.name in names for part in loss.parts):
                raise StorageError(
                    f"{loss.where}: nothing can stand in for what is lost there, as it cannot be told which blocks lay "
                    "where; restore the segment, or both directories from a backup"
                )

    async def give_up(self, names: Collection[str], without: Sequence[int] = ()) -> None:
        """Note that the operator gives up the parts of these names; durable on return. `without`: nodes that are lost
        for good. Raises `StorageError` as `check` does, OSError."""
        self.check(names)

        def given_up(part: LostPart) -> LostPart:
            if part.name not in names:
                return part
            return msgspec.structs.replace(part, given_up=True, without=sorted({*part.without, *without}))

        await self._save([
            msgspec.structs.replace(loss, parts=[given_up(part) for part in loss.parts]) for loss in self.losses
        ])  # fmt: skip

    def of_block(self, group: int, index: int) -> Loss | None:
        """The loss that a block of a write group is part of, if it is not made up for."""
        for loss in self.losses:
            for part in () if loss.replaced or loss.missing else loss.parts:
                if part.group == group and part.first <= index <= (part.last or index):
                    return loss
        return None

    def distrusts(self, group: int, index: int) -> bool:
        """Whether a block is given up here, so that other nodes may have stand-ins for it, whatever lies here now."""
        loss = self.of_block(group, index)
        return loss is not None and any(part.given_up and part.members for part in loss.parts if part.group == group)

    async def promise(self, group: int, index: int, node_id: int) -> None:
        """Give up a block because another node does so that found it damaged here; durable on return. Raises
        OSError."""
        loss = self.of_block(group, index)
        if loss is None or self.distrusts(group, index):
            return
        parts = [
            msgspec.structs.replace(part, given_up=True, members=sorted({*part.members, node_id}))
            if part.group == group else part
            for part in loss.parts
        ]  # fmt: skip
        await self._save([msgspec.structs.replace(one, parts=parts) if one is loss else one for one in self.losses])
        log.warning(
            "node %d gives up block %d of write group %d, which is damaged here, too: start this node again when that "
            "one runs, and it goes on as that one does", node_id, index, group,
        )  # fmt: skip

    async def found_whole(self, group: int, index: int) -> None:
        """Forget the loss of a block that is whole again from another copy, if it was the only one. Raises OSError."""
        loss = self.of_block(group, index)
        if loss is not None and [part.first for part in loss.parts] == [part.last for part in loss.parts] == [index]:
            await self._save([one for one in self.losses if one is not loss])

    async def replace(self, now_ms: int, judge: Judge | None = None) -> list[LostPart]:
        """Put stand-ins in the place of what was given up, in a journal that no process has open. Returns the parts
        that are done with this. `judge` asks the other nodes; None: there are none. Raises OSError."""
        done: list[LostPart] = []
        losses: list[Loss] = []
        for loss in self.losses:
            if loss.replaced or loss.missing or not loss.is_given_up:
                losses.append(loss)
                continue
            try:
                unchanged = await content_crc(self._files, loss.start, loss.end) == loss.crc
            except FileNotFoundError:
                unchanged = False
            verdict = LossVerdict() if judge is None or await self._is_replaced(loss) else await judge(loss)
            if verdict.refusal:
                log.error("%s: given up, and not replaced: %s", loss.where, verdict.refusal)
                if not unchanged:
                    self.undecided |= {part.group: f"{loss.where}: {verdict.refusal}" for part in loss.parts}
            if verdict.mended:
                log.warning("%s: given up, but another node had it: it is whole again", loss.where)
                done += loss.parts
                continue
            if verdict.refusal:
                losses.append(loss)
                continue
            if unchanged or verdict.twins:
                try:
                    await stand_in(self._files, loss.stand_ins, now_ms, verdict.twins)
                except StorageError as error:
                    log.error("%s", error)
                    losses.append(loss)
                    continue
                log.warning("%s: %s given up by the operator", loss.where, ", ".join(map(_blocks, loss.parts)))
            else:  # stand-ins, after a crash right here; or restored, or damaged further: the walk tells
                log.warning("%s: has changed since it was given up; what lies there now counts", loss.where)
            done += loss.parts
            if any(part.raised_by for part in loss.parts):
                losses.append(msgspec.structs.replace(loss, replaced=True))
        if losses != self.losses:
            await self._save(losses)
        return done

    async def _is_replaced(self, loss: Loss) -> bool:
        """Whether the stand-ins lie there, after a crash before that was noted."""
        if not loss.stand_ins:
            return False
        last = loss.stand_ins[-1]
        try:
            file = await self._files.open(segment_path(sequence_of(last.position)))
        except FileNotFoundError:
            return False
        try:
            content = await file.read(offset_of(last.position), last.length)
        finally:
            await file.close()
        found = block_at(content, 0, last.position)
        return found is not None and (found.group, found.index) == (last.group, last.index) and is_stand_in(content)

    # --- queues whose end is not known --------------------------------------------------------------------

    def raises(self) -> dict[int, tuple[int, int]]:
        """Write groups of whose queues nobody knows how far they went: (the journal position behind which a batch tells
        that, by how much the others are to be raised)."""
        found: dict[int, tuple[int, int]] = {}
        for loss in self.losses:
            for part in loss.parts if loss.replaced else ():
                if part.raised_by:
                    end, by = found.get(part.group, (0, 0))
                    found[part.group] = max(end, loss.end), by + part.raised_by
        return found

    def floors(self) -> dict[int, tuple[int, int]]:
        """Write groups whose queues are to go on at an offset at least: (that offset, the topic number from which on
        they need not)."""
        return {
            part.group: (part.raised_to, part.topics_below)
            for loss in self.losses
            for part in (loss.parts if loss.replaced else ())
            if part.raised_to
        }

    async def raised(self, group: int) -> None:
        """Note that the queues of a write group are raised, durably."""
        losses = [
            msgspec.structs.replace(
                loss,
                parts=[
                    msgspec.structs.replace(part, raised_by=0, raised_to=0)
                    if loss.replaced and part.group == group
                    else part
                    for part in loss.parts
                ],
            )
            for loss in self.losses
        ]
        await self._save([
            loss for loss in losses
            if not loss.replaced or any(part.raised_by or part.raised_to for part in loss.parts)
        ])  # fmt: skip


def missing_segment(sequence: int, parts: Sequence[LostPart]) -> Loss:
    start = sequence << 32 | FIRST_BLOCK
    return Loss(start, start, 0, f"{segment_path(sequence)} is missing", list(parts), missing=True)


def _blocks(part: LostPart) -> str:
    if part.first == part.last:
        return f"block {part.first} of write group {part.group}"
    return f"blocks {part.first} to {part.last or 'an unknown one'} of write group {part.group}"
