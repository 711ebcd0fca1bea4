"""Follows what a node's journal has lost: writes it down, puts stand-ins in the place of what an operator gave up, and
has queues go on behind whatever offsets were lost with it.

    found       a start, or a reader, meets what cannot be read and nobody can give: `LostBlocks` gets an account of it
    given up    an operator says so, while the node is stopped (`mainstem cluster recover`)
    replaced    the next start puts stand-ins there before it walks the journal: the log goes on behind the lost blocks
    raised      as soon as this node serves the write group, queues without a later batch go on at a higher offset
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from mainstem.model import Topic
from mainstem.ports import Clock, Files
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.messages.blocks import (
    BLOCK_FATE,
    DAMAGED,
    STAND_IN,
    STORED,
    UNKNOWN,
    WHOLE,
    AskFate,
    BlockFate,
    BlockMissing,
)
from mainstem.rpc.wire.method import Reply
from mainstem.storage.errors import CorruptJournal
from mainstem.storage.journal.encoding.format import BLOCK_HEADER_BYTES, KIND_DATA, sequence_of
from mainstem.storage.journal.journal import Journal
from mainstem.storage.journal.mending.stand_ins import is_stand_in
from mainstem.storage.placement import Placement
from mainstem.storage.repair.journal_damage import JournalDamage
from mainstem.storage.repair.loss_account import LossAccount, floored_ends, raised_ends
from mainstem.storage.repair.lost_blocks import LostBlocks, LostPart, missing_segment
from mainstem.storage.state.applied import AppliedState
from mainstem.storage.state.state_recovery import RecoveredState
from mainstem.storage.write_groups.write_group import WriteGroup

log = logging.getLogger(__name__)

PATIENCE_MS = 60_000
"""For so long a block that other nodes may have is asked for before it is offered for being given up."""


class Losses:
    """The losses of one node's journal, from being found to being made up for."""

    def __init__(
        self,
        files: Files,
        lost: LostBlocks,
        groups: Sequence[WriteGroup],
        journal: Journal,
        state: AppliedState,
        placement: Placement,
        topics: Callable[[], Iterable[Topic]],
        members: Callable[[int], Sequence[int]],
        damage: JournalDamage,
        clock: Clock,
    ) -> None:
        """`members`: the other nodes that have a write group."""
        self._lost = lost
        self._groups = groups
        self._journal = journal
        self._state = state
        self._placement = placement
        self._members = members
        self._damage = damage
        self._clock = clock
        self._account = LossAccount(files, placement, topics, members)

    def register(self, handlers: Handlers) -> None:
        handlers.unary(BLOCK_FATE, self._fate)

    async def found(self, recovered: RecoveredState) -> None:
        """Write down what a start could not read. Raises OSError."""
        losses = await self._account.of_start(recovered.lost)
        await self._lost.miss({int(name.partition(".")[0]) for _upto, name in recovered.missing.values()})
        present = {segment.sequence for segment in self._journal.segments()}
        segments: dict[int, list[LostPart]] = {}
        for number, (upto, name) in recovered.missing.items():
            blocks, first = self._groups[number].blocks, self._state.manifest.reached(number) + 1
            if any(sequence_of(blocks.position_of(index)) in present for index in range(first, upto + 1)):
                continue  # the split would go over blocks that are not lost, and nothing can stand in for a file
            part = LostPart(number, first, upto, known=False, members=list(self._members(number)))
            segments.setdefault(int(name.partition(".")[0]), []).append(part)
        await self._lost.note([*losses, *(missing_segment(number, parts) for number, parts in segments.items())])

    def given_up(self, group: int, upto: int, segment: str) -> bool:
        """Whether the operator gave up a write group's unsplit blocks up to this one, gone with a segment."""
        return self._lost.is_given_up(group, upto, int(segment.partition(".")[0]))

    def begin(self, behind: Mapping[int, set[int]]) -> None:
        """Have the write groups concerned raise the ends of their queues when they are served; `behind`: the queues
        whose ends later batches tell."""
        for group, (_position, raised_by) in self._lost.raises().items():
            self._groups[group].raises = partial(
                raised_ends, self._state.table, self._placement, group, behind.get(group, set()), raised_by
            )
        for group, floor in self._lost.floors().items():
            before = self._groups[group].raises
            self._groups[group].raises = partial(self._with_floor, group, floor, before)

    def _with_floor(
        self, group: int, floor: tuple[int, int], before: Callable[[], Sequence[tuple[int, int]]] | None
    ) -> Sequence[tuple[int, int]]:
        """The queues to be raised besides, and then the queues that are below their floor: raised twice they stay."""
        more = before() if before is not None else ()
        return [*more, *floored_ends(self._state.table, self._placement, group, *floor)]

    async def round(self) -> None:
        """Write down blocks that readers could not read and nobody can give; note which queues are raised. Raises
        OSError."""
        for number in self._lost.raises() | self._lost.floors():
            group = self._groups[number]
            if group.raises is not None and group.serving and group.applied_index >= group.raised_at:
                await self._lost.raised(number)
                group.raises = None
        for damaged in self._damage.waiting():
            place, now_ms = damaged.place, self._clock.now_ms()
            if any(loss.start <= place.position < loss.end for loss in self._lost.losses):
                continue
            if self._members(place.group) and now_ms - damaged.since_ms < PATIENCE_MS:
                continue
            blocks = self._groups[place.group].blocks
            if blocks.position_of(place.index) != place.position:
                continue
            try:
                data = blocks.kind_of(place.index) == KIND_DATA
                await self._lost.note([await self._account.of_block(place, damaged.fault, data=data)])
            except FileNotFoundError:
                log.info("%s: its segment is gone", place)

    # --- what others ask ----------------------------------------------------------------------------------

    async def _fate(self, call: RpcCall[AskFate]) -> Reply[BlockFate]:
        request = call.request
        group = self._groups[request.group] if request.group < len(self._groups) else None
        fate = UNKNOWN if group is None else await self._fate_of(group, request.index)
        if fate == DAMAGED and request.promise:
            await self._lost.promise(request.group, request.index, request.asker)
            if not self._lost.distrusts(request.group, request.index):
                raise BlockMissing(f"block {request.index} of write group {request.group}: too much else is lost here")
        return Reply(BlockFate(fate))

    async def _fate_of(self, group: WriteGroup, index: int) -> str:
        """The fate of a block here. A damaged one is in the account of losses when this returns. Raises OSError."""
        position = group.blocks.position_of(index)
        if not position:
            if self._lost.of_block(group.group, index) is not None:
                return DAMAGED
            return STORED if index <= self._state.manifest.reached(group.group) else UNKNOWN
        place = self._damage.place(group, index)
        if self._lost.distrusts(group.group, index):
            return DAMAGED
        if await self._damage.met(position):
            header = await self._journal.read(position, BLOCK_HEADER_BYTES)
            return STAND_IN if is_stand_in(header) else WHOLE
        if self._lost.of_block(group.group, index) is None:
            data = group.blocks.kind_of(index) == KIND_DATA
            await self._lost.note([await self._account.of_block(place, f"{place} is damaged", data=data)])
        return DAMAGED


def refused(error: CorruptJournal, lost: LostBlocks) -> CorruptJournal:
    """The error of a start that nothing is left to be served, with what an operator can do about it."""
    names = sorted({part.name for loss in lost.losses for part in loss.parts})
    if not names:
        return error
    return CorruptJournal(
        f"{error}, or give up what is lost: `mainstem cluster recover --lost` says what that is", error.groups,
        error.hole, error.position,
    )  # fmt: skip
