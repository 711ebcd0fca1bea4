"""Holds the callers that wait for something no single block tells: more copies than a majority, a confirmed leadership,
or a log that lies in the journal as a whole. Callers that wait for one block wait in that block (`LogBlock.join`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mainstem.model import Outcome
from mainstem.raft import ReadResult
from mainstem.storage.write_groups.log_block import Ticket


class WriteGroupWaiters:
    """The waiting callers of one write group, and how each of them is answered."""

    def __init__(self) -> None:
        self.copies: list[tuple[int, int, Ticket]] = []
        """(block index, copies, the waiting ticket); see `settle_copies`."""
        self._confirming: dict[asyncio.Future[None], None] = {}
        self.written: asyncio.Future[None] | None = None
        """Set when more is written (`wake_written`); None while no caller waits until all is."""

    # --- copies -------------------------------------------------------------------------------------------

    def await_copies(self, index: int, copies_min: int, ticket: Ticket) -> None:
        """Make a ticket wait until block `index` is committed, and durable on `copies_min` nodes."""
        ticket.blocks += 1
        self.copies.append((index, copies_min, ticket))

    def settle_copies(self, applied_index: int, durable_index: Callable[[int], int]) -> None:
        """Answer the tickets whose block is applied, and durable on as many nodes as they asked for.
        `durable_index(count)` is the last block that `count` nodes have."""
        awaited, self.copies = self.copies, []
        for index, copies_min, ticket in awaited:
            if index <= applied_index and index <= durable_index(copies_min):
                ticket.block_safe()
            else:
                self.copies.append((index, copies_min, ticket))

    # --- leadership ---------------------------------------------------------------------------------------

    def await_confirmation(self, confirmed: asyncio.Future[None]) -> None:
        """Hold this future until the core returns it as the context of a read."""
        self._confirming[confirmed] = None

    def confirmed(self, read: ReadResult, refusal: Callable[[], Exception]) -> None:
        """Answer a caller of `confirm`: a majority confirmed that this node leads, or it does not lead any more."""
        assert isinstance(read.context, asyncio.Future), read
        self._confirming.pop(read.context, None)
        if read.context.done():  # the caller was cancelled
            return
        if read.granted:
            read.context.set_result(None)
        else:
            read.context.set_exception(refusal())

    def give_up(self, group: int, error: Exception) -> None:
        """Fail all callers with `error`: this node leads no more, and will not learn what they wait for."""
        awaited, self.copies = self.copies, []
        for index, _copies, ticket in awaited:
            ticket.block_failed(group, index, Outcome.UNDECIDED)
        for confirmed in self._confirming:
            if not confirmed.done():
                confirmed.set_exception(error)
        self._confirming.clear()

    # --- the whole log ------------------------------------------------------------------------------------

    async def await_written(self) -> None:
        """Return when `wake_written` is called."""
        if self.written is None:
            self.written = asyncio.get_running_loop().create_future()
        await asyncio.shield(self.written)

    def wake_written(self) -> None:
        """Wake the callers of `await_written`, which look again: more of the log, or a term, is durable, or writing has
        ended."""
        if self.written is not None:
            self.written.set_result(None)
            self.written = None
