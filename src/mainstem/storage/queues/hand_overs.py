"""A leader that hands a write group over on purpose holds what clients send, and passes it on to the next one.

    held        the write group takes nothing here, and its next leader is not known: batches wait, in their order
    passed on   the next leader is known: it gets what was held, then whatever still comes here
    over        some seconds later: clients are told that another node leads

A client that is refused because the leader has changed waits before it sends again (librdkafka 100 ms, whatever the
answer names). So no client is refused that comes in time: its answer says that the batches are taken, and which node to
send to from now on. A hand-over that comes to nothing gives back what was held, before this node takes anything else.

Batches go to the next leader in the order in which they came, and the producers' sequence numbers are checked there.
A leader holds a bounded number of bytes; once it has refused something for that, it refuses everything behind it, so
that no batch of a producer passes an earlier one. Only what clients of this node send is held: what other nodes bring
is refused at once, which they take for what it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from mainstem.kernel import ProduceScan, Verdict, WriteGroupLog
from mainstem.model import AppendResult, AppendTransaction, BatchAppend, Outcome, slot_of
from mainstem.prompt_future import PromptFuture
from mainstem.storage.write_groups.log_block import Ticket

HELD_SECONDS_MAX = 2.0
"""The wait for the next leader: as long as an election takes at its longest. A leader that is asked to hand over gives
that up after half of it."""

PASSED_ON_SECONDS = 3.0
"""Clients that read who leads from an answer go there with their next request; the others ask for metadata when they
are refused, sooner or later."""

HELD_BYTES_MAX = 32 * 1024 * 1024
"""Of all write groups together: a tenth of a second at full load. A hand-over takes some hundredths."""


class NextLeaders(Protocol):
    """Appends to write groups that other nodes lead."""

    def append(
        self,
        batches: Sequence[BatchAppend],
        acks: int,
        *,
        copies_min: int | Mapping[int, int] = 0,
        transaction: AppendTransaction | None = None,
    ) -> PromptFuture[list[AppendResult]]: ...


class HeldAppend(NamedTuple):
    """The batches of one request for one write group, and what the request asked for."""

    scan: ProduceScan
    batches: list[tuple[int, BatchAppend]]
    """By their number in the request."""
    ticket: Ticket
    """It waits for one more block as long as these batches are not answered."""
    acks: int
    copies_min: int | Mapping[int, int]
    transaction: AppendTransaction | None

    @property
    def size(self) -> int:
        return sum(len(batch.data) for _, batch in self.batches)

    def answer(self, results: Sequence[AppendResult]) -> None:
        for (number, _), result in zip(self.batches, results, strict=True):
            self.scan.resettle(number, result, 0, 0)
        if not self.ticket.done():
            self.ticket.block_safe()

    def refuse(self) -> None:
        self.answer([AppendResult(Outcome.NOT_LEADER)] * len(self.batches))


class _HandOver:
    """One write group that was given away, or is about to be."""

    __slots__ = ("held", "refuses", "timer", "to")

    def __init__(self) -> None:
        self.to: int | None = None
        """The next leader; None: it is not known."""
        self.held: list[HeldAppend] = []
        self.refuses = False
        """Something was refused because too much is held."""
        self.timer: asyncio.TimerHandle | None = None


class HandOvers:
    """The write groups that this node gives away. `append_here` appends what was held, where this node leads on."""

    def __init__(self, append_here: Callable[[HeldAppend], None]) -> None:
        self._append_here = append_here
        self.next_leaders: NextLeaders | None = None
        """None: nothing is held, and clients are refused."""
        self._groups: dict[int, _HandOver] = {}
        self._held_bytes = 0
        self.passed_on_batches = 0

    @property
    def under_way(self) -> bool:
        """Whether anything that clients send may have to be held or passed on."""
        return bool(self._groups)

    def has_room(self, part: float) -> bool:
        """Whether producers may send more."""
        return self._held_bytes <= part * HELD_BYTES_MAX

    # --- how a hand-over goes -----------------------------------------------------------------------------

    def begin(self, group: int) -> None:
        """From now on what clients send for a write group is held, though this node leads it still; or leads it and
        takes nothing yet. If a hand-over has come to nothing that holds or has refused something, it goes on as before:
        what comes next must not pass that."""
        if self.next_leaders is None:
            return
        given = self._groups.get(group)
        if given is not None and given.to is None and (given.held or given.refuses):
            return
        self._end(group)
        given = self._groups[group] = _HandOver()
        given.timer = asyncio.get_running_loop().call_later(HELD_SECONDS_MAX, self._end, group)

    def led_by(self, group: int, node_id: int) -> None:
        """Another node leads a write group."""
        given = self._groups.get(group)
        if given is None or given.to == node_id:
            return
        given.to = node_id
        if given.timer is not None:
            given.timer.cancel()
        loop = asyncio.get_running_loop()
        given.timer = loop.call_later(PASSED_ON_SECONDS, self._end, group)
        held, given.held = given.held, []
        for append in held:
            self._held_bytes -= append.size
            self._pass_on(append)

    def stays(self, group: int) -> None:
        """This node leads on, or leads again."""
        for append in self._let_go(group):
            self._append_here(append)

    def close(self) -> None:
        """Refuse what is held."""
        for group in list(self._groups):
            self._end(group)
        self.next_leaders = None

    def _end(self, group: int) -> None:
        for append in self._let_go(group):
            append.refuse()

    def _let_go(self, group: int) -> list[HeldAppend]:
        """End a hand-over, if there is one; what was held is due to the caller."""
        given = self._groups.pop(group, None)
        if given is None:
            return []
        if given.timer is not None:
            given.timer.cancel()
        self._held_bytes -= sum(append.size for append in given.held)
        return given.held

    # --- what clients send --------------------------------------------------------------------------------

    def takers(self, takers: Sequence[WriteGroupLog | None]) -> list[WriteGroupLog | None]:
        """The logs that take what clients send: those that do anyway, except of write groups that are given away."""
        return [None if group in self._groups else log for group, log in enumerate(takers)]

    def given_away(self, scan: ProduceScan, taking: Sequence[int]) -> dict[int, list[tuple[int, BatchAppend]]]:
        """Copies of the batches that no log has taken and that are not refused either, by the write group that
        `taking` names for their slots. The scan holds its frame still."""
        found: dict[int, list[tuple[int, BatchAppend]]] = {}
        for number, batch in scan.late(Verdict.NOT_LEADER):
            group = taking[slot_of(batch.queue_id)]
            given = self._groups.get(group)
            if given is not None and not given.refuses:
                found.setdefault(group, []).append((number, batch))
        return found

    def take(self, group: int, append: HeldAppend) -> None:
        """Hold what was `given_away`, or pass it on."""
        given = self._groups[group]
        append.scan.taken_elsewhere = True
        append.ticket.blocks += 1
        if given.to is not None:
            self._pass_on(append)
        elif self._held_bytes + append.size > HELD_BYTES_MAX:
            given.refuses = True
            append.refuse()
        else:
            self._held_bytes += append.size
            given.held.append(append)

    def _pass_on(self, append: HeldAppend) -> None:
        assert self.next_leaders is not None, "nothing is held without"
        self.passed_on_batches += len(append.batches)
        answer = self.next_leaders.append(
            [batch for _, batch in append.batches],
            append.acks,
            copies_min=append.copies_min,
            transaction=append.transaction,
        )
        answer.add_done_callback(lambda answer: _told(append, answer))


def _told(append: HeldAppend, answer: PromptFuture[list[AppendResult]]) -> None:
    if answer.cancelled() or answer.exception() is not None:
        append.answer([AppendResult(Outcome.UNDECIDED)] * len(append.batches))
    else:
        append.answer(answer.result())
