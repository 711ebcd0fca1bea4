"""Who waits for something of a write group that no single block tells: more copies than a majority, that this node
still leads, a log that lies in the journal as a whole. Who waits for one block waits in it (`LogBlock.join`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mainstem.model import Outcome
from mainstem.raft import ReadResult
from mainstem.storage.log_block import Ticket


class GroupWaiters:
    """Of one group."""

    def __init__(self) -> None:
        self.copies: list[tuple[int, int, Ticket]] = []
        """(block index, copies, who waits); see `settle_copies`."""
        self._confirming: dict[asyncio.Future[None], None] = {}
        self.written: asyncio.Future[None] | None = None
        """Somebody waits until the whole log lies in the journal; see `all_written`."""

    # --- copies -------------------------------------------------------------------------------------------

    def await_copies(self, index: int, copies_min: int, ticket: Ticket) -> None:
        """Until block `index` is committed, and durable on that many nodes."""
        ticket.blocks += 1
        self.copies.append((index, copies_min, ticket))

    def settle_copies(self, applied_index: int, durable_index: Callable[[int], int]) -> None:
        """Answer those whose block is applied, and durable on as many nodes as they asked for; `durable_index` tells
        how far that many nodes have the log."""
        awaited, self.copies = self.copies, []
        for index, copies_min, ticket in awaited:
            if index <= applied_index and index <= durable_index(copies_min):
                ticket.block_safe()
            else:
                self.copies.append((index, copies_min, ticket))

    # --- leadership ---------------------------------------------------------------------------------------

    def await_confirmation(self, confirmed: asyncio.Future[None]) -> None:
        """Until the core brings this future as the context of a read."""
        self._confirming[confirmed] = None

    def confirmed(self, read: ReadResult, refusal: Callable[[], Exception]) -> None:
        """A majority confirmed that this node leads, or it does not any more."""
        assert isinstance(read.context, asyncio.Future), read
        self._confirming.pop(read.context, None)
        if read.context.done():  # nobody waits any more
            return
        if read.granted:
            read.context.set_result(None)
        else:
            read.context.set_exception(refusal())

    def give_up(self, group: int, error: Exception) -> None:
        """This node leads no more: whether what they wait for comes about will not be known here."""
        awaited, self.copies = self.copies, []
        for index, _copies, ticket in awaited:
            ticket.block_failed(group, index, Outcome.UNDECIDED)
        for confirmed in self._confirming:
            if not confirmed.done():
                confirmed.set_exception(error)
        self._confirming.clear()

    # --- the whole log ------------------------------------------------------------------------------------

    async def await_written(self) -> None:
        """Until `all_written`."""
        if self.written is None:
            self.written = asyncio.get_running_loop().create_future()
        await asyncio.shield(self.written)

    def all_written(self) -> None:
        """The whole log lies in the journal, or nothing is written any more."""
        if self.written is not None:
            self.written.set_result(None)
            self.written = None
