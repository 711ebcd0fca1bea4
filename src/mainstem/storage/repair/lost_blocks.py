"""`<write_dir>/lost_blocks` says which blocks of the journal this node has lost, and which of them an operator gave up.

The node writes down what it cannot read and can get from nowhere, with the offsets that are lost with it; `mainstem
cluster recover` shows that, and notes what the operator gives up. The next start puts stand-ins in the place of what
was given up (`stand_ins`), and nothing else: a loss is known by the checksum of the bytes that lay there, so that bytes
that were restored since, or went bad since, are not covered.

The file is small, written whole under another name, synced and renamed. It is JSON, so that people can read it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence

import msgspec

from mainstem.ports import Files
from mainstem.storage.errors import FormatError, StorageError
from mainstem.storage.journal.format import FIRST_BLOCK, offset_of, segment_name, sequence_of
from mainstem.storage.journal.segment_files import segment_path
from mainstem.storage.journal.stand_ins import Lost, content_crc, stand_in

NAME = "lost_blocks"
TEMPORARY = "lost_blocks.tmp"

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
    known: bool = True
    """Whether `offsets` are all that is lost; False: which queues had batches there is not known."""
    members: list[int] = []
    """Other nodes that have the write group: one of them may have what is lost here."""
    given_up: bool = False

    @property
    def name(self) -> str:
        """What the operator gives to give this up."""
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
    """What stands in for the lost blocks, once all parts are given up; empty: nothing can, as blocks of unknown places
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


class LostBlocks:
    """The losses that a node knows of, and the file that keeps them."""

    def __init__(self, files: Files, losses: Sequence[Loss]) -> None:
        self._files = files
        self.losses = list(losses)

    @classmethod
    async def open(cls, files: Files) -> LostBlocks:
        """Raises `FormatError` when the file cannot be read, OSError."""
        try:
            file = await files.open(NAME)
        except FileNotFoundError:
            return cls(files, [])
        try:
            content = await file.read(0, await file.size())
        finally:
            await file.close()
        try:
            return cls(files, msgspec.json.decode(content, type=list[Loss]))
        except msgspec.MsgspecError as error:
            raise FormatError(
                f"{NAME} cannot be read: {error}. It says which lost blocks were given up: restore it, or remove it "
                "and start the node, which writes it anew without what was given up"
            ) from error

    async def _save(self, losses: Sequence[Loss]) -> None:
        if not losses:
            await self._files.remove(NAME)
        else:
            file = await self._files.open(TEMPORARY, create=True)
            try:
                content = msgspec.json.format(msgspec.json.encode(losses), indent=1)
                await file.size(truncate_to=len(content))
                await file.write(0, [content], sync=True)
            finally:
                await file.close()
            await self._files.rename(TEMPORARY, NAME)
        self.losses = list(losses)

    # --- what is lost -------------------------------------------------------------------------------------

    async def note(self, losses: Iterable[Loss]) -> None:
        """Write down what this start, or a reader, has found lost. What is known already, with the same content, stays
        as it is, given up or not."""
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
            if not loss.stand_ins and not loss.missing and any(part.name in names for part in loss.parts):
                raise StorageError(
                    f"{loss.where}: nothing can stand in for what is lost there, as it cannot be told which blocks lay "
                    "where; restore the segment, or both directories from a backup"
                )

    async def give_up(self, names: Collection[str]) -> None:
        """Note that the operator gives up the parts of these names; durable on return. Raises `StorageError` as `check`
        does, OSError."""
        self.check(names)
        await self._save([
            msgspec.structs.replace(
                loss,
                parts=[
                    msgspec.structs.replace(part, given_up=part.given_up or part.name in names) for part in loss.parts
                ],
            )
            for loss in self.losses
        ])  # fmt: skip

    async def replace(self, now_ms: int) -> list[LostPart]:
        """Put stand-ins in the place of what was given up, in a journal that no process has open. Returns the parts
        that are done with this. Raises OSError."""
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
            if unchanged:
                try:
                    await stand_in(self._files, loss.stand_ins, now_ms)
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

    async def raised(self, group: int) -> None:
        """Note that the queues of a write group are raised, durably."""
        losses = [
            msgspec.structs.replace(
                loss,
                parts=[
                    msgspec.structs.replace(part, raised_by=0) if loss.replaced and part.group == group else part
                    for part in loss.parts
                ],
            )
            for loss in self.losses
        ]
        await self._save([loss for loss in losses if not loss.replaced or any(part.raised_by for part in loss.parts)])


def missing_segment(sequence: int, parts: Sequence[LostPart]) -> Loss:
    start = sequence << 32 | FIRST_BLOCK
    return Loss(start, start, 0, f"{segment_path(sequence)} is missing", list(parts), missing=True)


def _blocks(part: LostPart) -> str:
    if part.first == part.last:
        return f"block {part.first} of write group {part.group}"
    return f"blocks {part.first} to {part.last or 'an unknown one'} of write group {part.group}"
