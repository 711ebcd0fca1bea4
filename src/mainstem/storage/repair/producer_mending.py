"""Asks other replicas for the producers whose page of a file went bad on disk 1.

All replicas of a write group apply the same blocks, so what one of them knows at a block is what all know there. A
replica that has applied what this node had when it met the page knows at least what was in it; and what came later is
known here. So the two are put together, the newest batches of both, and written to a newer file:

    of an answer only batches count that are applied here as well: a node knows no batches that its log does not have
    an answer that lacks a batch it must have, or has another one in its place, is not used: somebody is wrong

A replica that cannot be reached, or is behind, is asked again, for a while. If all say that they know nothing of a
producer, or the while is over, its state is lost, and said to be. A replica whose version does not know the question
knows nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence

import numpy

from mainstem.kernel import crc32c
from mainstem.kernel.layout import REMEMBERED_BATCHES
from mainstem.kernel.pure.producer_states import KEY, ProducerState, joined, row_of, states_of
from mainstem.ports import Clock
from mainstem.rpc.errors import NotServed, RpcError
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.messages.repair import (
    FETCH_PRODUCERS,
    NAME_BYTES,
    NAMES_MAX,
    FetchedProducers,
    FetchProducers,
    ProducersNotNow,
)
from mainstem.rpc.other_nodes import Calls
from mainstem.rpc.wire.method import Reply
from mainstem.storage.errors import StorageError
from mainstem.storage.state.producers.cold_producers import ColdProducers, Known
from mainstem.storage.state.producers.producer_damage import DamagedPage
from mainstem.storage.state.producers.producer_files import ROWS_PER_PAGE
from mainstem.storage.state.producers.producer_rows import STATE, Name, States, known_at, lost_row
from mainstem.storage.write_groups.write_group import WriteGroup

log = logging.getLogger(__name__)

PAGES_AT_ONCE = 64
"""Names asked for in one call: 1,664 producers."""
assert PAGES_AT_ONCE * ROWS_PER_PAGE <= NAMES_MAX
assert KEY.size == NAME_BYTES

FETCH_SECONDS_MAX = 10.0
"""For a call: the other node reads some hundred pages."""

RETRY_SECONDS = 0.1
RETRY_SECONDS_MAX = 5.0
"""The pause before replicas are asked once more; doubled each time in a row."""

PATIENCE_SECONDS = 60.0
"""How long a replica is waited for that cannot answer: as long as a node takes to be started again, and half of what
clients give a batch by default. Its producers wait that long, and lose what they know here then."""

UNSERVED_SECONDS = 10.0
"""A node that serves no such method does so because its version knows none, or because it is about to start; for so
long it may be the latter."""

PRODUCERS_PER_TURN = 64
"""Producers joined in one turn of the event loop: some milliseconds."""


class Unanswered(Exception):
    """A replica cannot answer now."""


class ProducerMending:
    """Mends the damaged pages of a node's producer files, and answers other nodes that mend theirs."""

    def __init__(
        self,
        node_id: int,
        groups: Sequence[WriteGroup],
        producers: ColdProducers,
        clock: Clock,
        calls: Calls | None,
    ) -> None:
        """`calls` to the other nodes, None where there are none."""
        self._node_id = node_id
        self._groups = groups
        self._producers = producers
        self._pages = producers.damaged
        self._clock = clock
        self._calls = calls

    def register(self, handlers: Handlers) -> None:
        handlers.unary(FETCH_PRODUCERS, self._fetched)

    async def run(self) -> None:
        """Run rounds while pages are damaged, until cancelled."""
        pause = RETRY_SECONDS
        while True:
            try:
                async with asyncio.timeout(pause if self._is_asked() else None):
                    await self._pages.news.wait()
                pause = RETRY_SECONDS
            except TimeoutError:
                pause = min(2 * pause, RETRY_SECONDS_MAX)
            self._pages.news.clear()
            await self.round()

    def _is_asked(self) -> bool:
        return any(self._pages.asked(group.group) for group in self._groups)

    async def round(self) -> None:
        """Ask once for the pages of each write group that were asked for least."""
        for group in self._groups:
            pages = self._pages.asked(group.group)[:PAGES_AT_ONCE]
            if pages:
                try:
                    await self._mend(group, pages)
                except (StorageError, OSError) as error:
                    log.error("write group %d: producers are not written again: %s", group.group, error)

    # --- asking -------------------------------------------------------------------------------------------

    async def _mend(self, group: WriteGroup, pages: Sequence[DamagedPage]) -> None:
        for page in pages:
            page.tries += 1
        names = {page: self._producers.names_of(group.group, page.file, page.page) for page in pages}
        wanted = {name for of_page in names.values() for name in of_page}
        known = await self._producers.known(group.group, wanted)
        asked = frozenset(known.missing)
        answers, unanswered = await self._ask(group, pages, known)
        async with self._producers.turn:
            if any(page not in self._pages.asked(group.group) for page in pages):
                return  # a snapshot has replaced the files
            known = await self._producers.known_now(group.group, wanted)
            rows: dict[Name, bytes] = {}
            left: dict[Name, bool] = {}
            """The producers without an answer yet, and whether a replica may still know them."""
            for count, name in enumerate(sorted(wanted), 1):
                if name in known.missing:
                    row = together(name, answers.get(name), known)
                    if row is None:
                        left[name] = name in unanswered or name in answers or name not in asked
                        continue
                    rows[name] = row
                elif name in known.held:  # memory alone has it: it may go from there only if a file has it
                    rows[name] = known.rows[name][-1].tobytes()
                if count % PRODUCERS_PER_TURN == 0:
                    await asyncio.sleep(0)
            now = self._clock.monotonic()
            settled = [
                page for page in pages
                if now - page.since >= PATIENCE_SECONDS or not any(left.get(name) for name in names[page])
            ]  # fmt: skip
            for name in {name for page in settled for name in names[page] if name in left}:
                rows[name] = joined_rows(name, known.rows.get(name, ())) or lost_row(name, self._clock.now_ms())
            whole = {name for page in settled for name in names[page] if name in rows}
            if whole:
                await self._producers.add(group.group, numpy.frombuffer(b"".join(map(rows.__getitem__, whole)), STATE))
            for page in settled:
                self._pages.settle(page, sum(name in left for name in names[page]))

    async def _ask(
        self, group: WriteGroup, pages: Sequence[DamagedPage], known: Known
    ) -> tuple[dict[Name, tuple[States, ProducerState]], set[Name]]:
        """The states that other replicas have of the producers that are missing here, and of whom one may know that
        does not answer now."""
        found: dict[Name, tuple[States, ProducerState]] = {}
        wanted, unanswered = set(known.missing), False
        if self._calls is not None and group.consensus.core is None:
            return found, wanted  # its members are not known yet
        applied = max(page.applied for page in pages)
        since = min(page.since for page in pages)
        for node_id in sorted((group.consensus.voters | group.consensus.learners) - {self._node_id}):
            if not wanted:
                break
            try:
                reached, rows = await self._fetch(node_id, group.group, applied, wanted, since)
            except Unanswered as error:
                log.info(
                    "write group %d: producers are not to be had from node %d: %s",
                    group.group,
                    node_id,
                    error,
                )
                unanswered = True
                continue
            for count, row in enumerate(numpy.split(rows, len(rows)) if len(rows) else [], 1):
                ((*name, state),) = states_of(row.tobytes())
                key = name[0], name[1]
                if key in wanted and self._agrees(node_id, key, state, reached, known):
                    found[key] = row, state
                    wanted.discard(key)
                if count % PRODUCERS_PER_TURN == 0:
                    await asyncio.sleep(0)
        return found, wanted if unanswered else set()

    async def _fetch(
        self, node_id: int, group: int, applied: int, wanted: Collection[Name], since: float
    ) -> tuple[int, States]:
        """(last block that is part of them, states). Raises `Unanswered`."""
        assert self._calls is not None, "a node alone has no members to ask"
        request = FetchProducers(group, applied, b"".join(KEY.pack(*name) for name in sorted(wanted)))
        try:
            reply = await self._calls.call(node_id, FETCH_PRODUCERS, request, timeout_seconds=FETCH_SECONDS_MAX)
        except NotServed as error:
            if self._clock.monotonic() - since < UNSERVED_SECONDS:
                raise Unanswered(str(error)) from error
            return applied, numpy.zeros(0, STATE)
        except RpcError as error:
            raise Unanswered(str(error)) from error
        message, content = reply.message, b"".join(bytes(buffer) for buffer in reply.buffers)
        whole = len(content) % STATE.itemsize == 0 and crc32c(content) == message.crc and message.applied >= applied
        rows: States = numpy.frombuffer(content if whole else b"", STATE)
        if not whole or (len(rows) and not 1 <= rows["count"].min() <= rows["count"].max() <= REMEMBERED_BATCHES):
            log.warning("write group %d: what node %d sent of producers is not whole", group, node_id)
            raise Unanswered("it is not whole")
        return message.applied, rows

    def _agrees(self, node_id: int, name: Name, state: ProducerState, reached: int, known: Known) -> bool:
        """Whether an answer has all that this node knows up to the block that the answer reaches."""
        newest = state.batches[-1]
        answered = {batch.base_offset: batch for batch in state.batches}
        for row in known.rows.get(name, ()):
            ((*_name, own),) = states_of(row.tobytes())
            for batch in own.batches:
                late = batch.block_index <= reached and batch.base_offset > newest.base_offset
                if late or answered.get(batch.base_offset, batch) != batch:
                    log.error(
                        "producer %d of queue %#x: node %d has %s, this one %s: its answer is not used",
                        name[1], name[0], node_id, state, own,
                    )  # fmt: skip
                    return False
        return True

    # --- for other nodes ----------------------------------------------------------------------------------

    async def _fetched(self, call: RpcCall[FetchProducers]) -> Reply[FetchedProducers]:
        """Raises `ProducersNotNow`."""
        request = call.request
        group = self._groups[request.group] if request.group < len(self._groups) else None
        if group is None or group.consensus.core is None:
            raise ProducersNotNow(f"node {self._node_id} has no part in write group {request.group} now")
        if group.applied_index < request.applied:
            raise ProducersNotNow(
                f"node {self._node_id}: write group {request.group} is applied up to block {group.applied_index}, not "
                f"{request.applied}"
            )
        if len(request.names) % NAME_BYTES:
            raise ProducersNotNow(f"{len(request.names)} bytes are not a number of names of {NAME_BYTES}")
        names = set(KEY.iter_unpack(request.names))
        try:
            known = await self._producers.known(request.group, names)
        except (StorageError, OSError) as error:
            raise ProducersNotNow(f"node {self._node_id}: {error}") from error
        rows = []
        for count, name in enumerate(sorted(names - known.missing), 1):
            if name in known.rows:
                rows.append(together(name, None, known))
            if count % PRODUCERS_PER_TURN == 0:
                await asyncio.sleep(0)
        content = b"".join(row for row in rows if row is not None)
        return Reply(FetchedProducers(known.applied, crc32c(content)), content)


def together(name: Name, answer: tuple[States, ProducerState] | None, known: Known) -> bytes | None:
    """The row of what an answer and this node know of a producer, the newest batches of both; None where there must be
    an answer and is none that is applied here."""
    states: list[ProducerState] = []
    if name in known.missing:
        applied_here = known_at(known.applied, answer[0].tobytes()) if answer is not None else b""
        if not applied_here:
            return None
        states = [state for *_name, state in states_of(applied_here)]
    return joined_rows(name, known.rows.get(name, ()), states)


def joined_rows(name: Name, rows: Sequence[numpy.void], states: Sequence[ProducerState] = ()) -> bytes | None:
    """The row of all these states of a producer, the newest batches of them; None if there is none."""
    whole: ProducerState | None = None
    for state in [*states, *(state for row in rows for *_name, state in states_of(row.tobytes()))]:
        if whole is None:
            whole = state
        else:
            older, newer = sorted([state, whole], key=lambda one: one.batches[-1].base_offset if one.batches else -1)
            whole = joined(older, newer)
    return row_of(*name, whole) if whole is not None and whole.batches else None
