"""Asks all other members of a write group before a block is given up here, so that no two replicas ever differ.

A block goes for good only when nobody has it. Any member that can read it gives it, and it is made whole. A member that
has given it up already has its stand-in copied. A member that cannot be asked might have it: nothing is done until it
can, or the operator has said that it is lost for good. And a member whose copy is damaged as well promises not to take
it for whole later on, when somebody has restored a file there, without asking the others as this start does.

Only a start asks, before it answers anybody itself: of two nodes that give a block up, one finds the other silent, and
waits. So they never stand in for it differently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mainstem.ports import Files
from mainstem.rpc.errors import RpcError
from mainstem.rpc.messages.blocks import BLOCK_FATE, STAND_IN, STORED, WHOLE, AskFate
from mainstem.rpc.other_nodes import Calls
from mainstem.storage.errors import StorageError
from mainstem.storage.journal.mending.block_mending import write_whole_unopened
from mainstem.storage.journal.mending.block_repair import Twin
from mainstem.storage.journal.mending.stand_ins import Lost
from mainstem.storage.journal.stored_block import StoredPlace
from mainstem.storage.repair.journal_damage import fetch_twin
from mainstem.storage.repair.lost_blocks import Loss, LossVerdict

ASK_SECONDS_MAX = 10.0
"""For one question: the node reads one block."""


class GivingUp:
    """Judges what is given up on a node that has others beside it, before its journal is opened."""

    def __init__(self, files: Files, calls: Calls | None, node_id: int, others: Callable[[int], Iterable[int]]) -> None:
        """`others`: the other nodes that a write group is placed on."""
        self._files = files
        self._calls = calls
        self._node_id = node_id
        self._others = others

    async def judge(self, loss: Loss) -> LossVerdict:
        """Ask about all blocks of a loss. Raises OSError."""
        twins: dict[int, Twin] = {}
        for promise in (False, True):
            mended = 0
            for block in loss.stand_ins:
                verdict = await self._judge(loss, block, promise=promise)
                if verdict.refusal:
                    return verdict
                mended += verdict.mended
                twins.update(verdict.twins)
            if mended == len(loss.stand_ins):
                return LossVerdict(mended=True)
        return LossVerdict(twins=twins)

    async def _judge(self, loss: Loss, block: Lost, *, promise: bool) -> LossVerdict:
        what = f"block {block.index} of write group {block.group}"
        for node_id in self._asked(loss, block.group):
            fate = await self._fate(node_id, block, promise=promise)
            if fate is None:
                return LossVerdict(
                    f"node {node_id}, which may have {what}, cannot be asked: start it, then start this node again; or "
                    f"give it up --without {node_id} if that node is lost for good"
                )
            if fate == STORED:
                return LossVerdict(
                    f"node {node_id} has {what} in its queue store: have another node take the place of this one"
                )
            if fate in (WHOLE, STAND_IN):
                twin = await fetch_twin(self._calls, node_id, block.group, 0, block.index)
                if twin is not None and fate == STAND_IN:
                    return LossVerdict(twins={block.position: twin[1]})
                if twin is not None and await self._mended(block, *twin):
                    return LossVerdict(mended=True, twins={block.position: twin[1]})
                return LossVerdict(f"node {node_id} has {what}, and it cannot be had from there now: it is not lost")
        return LossVerdict()

    def _asked(self, loss: Loss, group: int) -> list[int]:
        parts = [part for part in loss.parts if part.group == group]
        members = {*self._others(group), *(member for part in parts for member in part.members)}
        return sorted(members - {self._node_id, *(node for part in parts for node in part.without)})

    async def _fate(self, node_id: int, block: Lost, *, promise: bool) -> str | None:
        """The fate of a block on another node; None when that node cannot tell."""
        if self._calls is None:
            return None
        try:
            request = AskFate(self._node_id, block.group, block.index, promise)
            reply = await self._calls.call(node_id, BLOCK_FATE, request, timeout_seconds=ASK_SECONDS_MAX)
        except RpcError:
            return None
        return reply.message.fate

    async def _mended(self, block: Lost, term: int, twin: Twin) -> bool:
        place = StoredPlace(block.group, term, block.index, block.position, block.length)
        try:
            return await write_whole_unopened(self._files, place, twin)
        except StorageError:
            return False
