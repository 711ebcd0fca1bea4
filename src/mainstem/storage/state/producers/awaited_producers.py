"""Reads the producers of a node that appends wait for: their batches came while the producers' states lay in files.

A batch of an evicted producer waits here while the state is read; then it is appended as if it had come now. Batches
are served in order of arrival, so that a producer's batches stay in order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from mainstem.kernel import ProducerStates
from mainstem.kernel.pure.producer_states import KEY
from mainstem.model import Outcome, Sample
from mainstem.ports import Files
from mainstem.storage.state.producers.cold_producers import ColdProducers, has_expired
from mainstem.storage.state.producers.producer_expiry import ProducerExpiry
from mainstem.storage.state.producers.producer_files import pieces_of

log = logging.getLogger(__name__)

WAITING_MAX = 65_536
"""Producers read at a time and waiting: as many as memory holds by default in half of its groups. More are refused."""

Key = tuple[int, int, int]
"""Write group, queue id, producer id."""


class _WaitingAppend(NamedTuple):
    """An append that waits for states of producers to be read."""

    keys: frozenset[Key]
    go_on: Callable[[Mapping[Key, Outcome]], None]
    """Called when the states are in memory, with the unreadable producers and why."""


class AwaitedProducers:
    """Of all write groups of a node. `read` runs as a task of the storage role."""

    def __init__(
        self, files: Files, expiry: ProducerExpiry, states: Sequence[ProducerStates], cold: ColdProducers
    ) -> None:
        """`states`: of each write group."""
        self._files = files
        self._expiry = expiry
        self._states = states
        self._cold = cold
        self._waiting: list[_WaitingAppend] = []
        self._wake = asyncio.Event()
        self._reads = False
        self._loaded = 0
        self.asked: list[Key] = []
        """The kernel notes here whom batches were refused for as cold; `ask` takes them over."""
        self.grow()

    def grow(self) -> None:
        """There are more write groups than before, or the first ones."""
        for one in self._states:
            one.asked = self.asked

    @property
    def waiting(self) -> int:
        """How many appends wait for producers to be read."""
        return len(self._waiting)

    def ask(self, go_on: Callable[[Mapping[Key, Outcome]], None]) -> None:
        """Read the producers that the kernel has just asked for, and go on then."""
        keys = frozenset(self.asked)
        self.asked.clear()
        if not self._reads:
            go_on(dict.fromkeys(keys, Outcome.STORAGE_FAILED))
            return
        if sum(len(one.keys) for one in self._waiting) + len(keys) > WAITING_MAX:
            go_on(dict.fromkeys(keys, Outcome.STORAGE_BUSY))
            return
        self._waiting.append(_WaitingAppend(keys, go_on))
        self._wake.set()

    async def read(self) -> None:
        """Read the producers that appends wait for, until cancelled."""
        self._reads = True
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._waiting:
                    await self._read_waiting()
        finally:
            self._reads = False
            waiting, self._waiting = self._waiting, []
            for one in waiting:
                one.go_on(dict.fromkeys(one.keys, Outcome.STORAGE_FAILED))

    async def _read_waiting(self) -> None:
        keys = sorted({key for one in self._waiting for key in one.keys})
        found: dict[Key, bytes] = {}
        failed: dict[Key, Outcome] = {}
        changes = {number: self._cold.changes(number) for number, *_ in keys}
        for number in sorted({number for number, *_ in keys}):
            await self._read_group(number, [key for key in keys if key[0] == number], found, failed)
        if any(self._cold.changes(number) != count for number, count in changes.items()):
            return  # files came or went: they are read again
        for key in keys:
            if key not in failed:
                number, queue_id, producer_id = key
                self._states[number].warm(queue_id, producer_id, found.get(key, b""))
        self._loaded += len(found)
        for states in self._states:
            states.settled = True
        try:
            while self._waiting and self._waiting[0].keys <= set(keys):
                one = self._waiting.pop(0)
                one.go_on({key: failed[key] for key in one.keys if key in failed})
        finally:
            for states in self._states:
                states.settled = False

    async def _read_group(
        self, number: int, keys: Sequence[Key], found: dict[Key, bytes], failed: dict[Key, Outcome]
    ) -> None:
        expired = self._expiry.expired(number)
        names = {key[1:]: key for key in keys}
        pieces = await pieces_of(self._files, self._cold.files_of(number), names)
        for name, rows in pieces.rows.items():
            kept = [row.tobytes() for row in rows if not has_expired(row.reshape(1), expired)[0]]
            if not kept:
                continue
            if any(row["count"] for row in rows) or self._states[number].held(KEY.pack(*name)):
                found[names[name]] = b"".join(kept)
            else:
                log.error("producer %d of queue %#x is lost, it is answered that it is unknown", name[1], name[0])
                failed[names[name]] = Outcome.UNKNOWN_PRODUCER
        for name, damage in pieces.damaged.items():
            self._cold.damaged.met(number, self._expiry.applied(number), [damage])
            failed[names[name]] = Outcome.STORAGE_BUSY
        failed.update((names[name], Outcome.STORAGE_BUSY) for name in pieces.unread)
        for text in {str(error) for error in pieces.unread.values()}:
            log.warning("producers of write group %d cannot be read, they are asked to try again: %s", number, text)

    def samples(self) -> Iterable[Sample]:
        yield Sample(
            "mainstem_producers_read_total", "counter", "Producers read back from files.", self._loaded)  # fmt: skip
