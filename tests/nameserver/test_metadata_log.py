"""The log on disk as a follower uses it: entries replaced, snapshots of its own and from elsewhere, power cuts."""

from __future__ import annotations

import asyncio
import random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.files import PowerLoss, SimulatedFiles

from mainstem.nameserver.log_format import Entry, Kind
from mainstem.nameserver.metadata_log import MetadataLog, Snapshot
from mainstem.nameserver.metadata_recovery import Found

BYTES_MAX = 600


class Follower:
    """What a member wrote, and what it may find again: after a cut, the last step is done, or not, or in part."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk = SimulatedFiles(seed)
        self.base = 0
        self.entries: list[Entry] = []
        self.committed = 0
        self.term = 1
        self.possible: list[tuple[int, list[Entry]]] = []

    @property
    def last(self) -> int:
        return self.base + len(self.entries)

    async def session(self, cut_after: int) -> None:
        log, found = await MetadataLog.open(self.disk, bytes_max=BYTES_MAX)
        self.check(found)
        self.disk.cut_power(after=cut_after)
        if found.snapshot is None:
            await log.begin(Snapshot(0, 0, b"members", ()))
        await log.start(found)
        for _ in range(40):
            await self.step(log)
        await log.close()

    async def step(self, log: MetadataLog) -> None:
        before = (self.base, list(self.entries))
        match self.rng.randrange(10):
            case 0 if self.committed < self.last:
                await self.replace(log, before)
            case 1:
                self.term += 1
                self.base, self.entries = self.last + self.rng.randint(1, 5), []
                self.committed = self.base
                self.possible = [before, (self.base, [])]
                await log.install(Snapshot(self.base, self.term, b"members", self.commands(self.base)))
            case 2 | 3 if log.wants_snapshot and self.committed > self.base:
                behind = self.entries[self.committed - self.base :]
                self.possible = [before, (self.committed, behind)]
                snapshot = Snapshot(self.committed, self.term_at(), b"members", self.commands(self.committed))
                assert await log.snapshot(snapshot, lambda: behind)
                self.base, self.entries = self.committed, behind
            case _:
                new = self.made(self.last + 1)
                self.possible = [(self.base, self.entries + new[:count]) for count in range(len(new) + 1)]
                await log.append(new)
                self.entries += new
                self.committed = self.rng.randint(self.committed, self.last)
        self.possible = [(self.base, list(self.entries))]

    async def replace(self, log: MetadataLog, before: tuple[int, list[Entry]]) -> None:
        self.term += 1
        first = self.rng.randint(self.committed + 1, self.last)
        kept = self.entries[: first - self.base - 1]
        new = self.made(first)
        self.possible = [before, *((self.base, kept + new[:count]) for count in range(1, len(new) + 1))]
        await log.append(new)
        self.entries = kept + new

    def made(self, first: int) -> list[Entry]:
        return [
            Entry(first + n, self.term, Kind.CHANGE, self.rng.randbytes(self.rng.randint(1, 60)))
            for n in range(self.rng.randint(1, 4))
        ]

    def term_at(self) -> int:
        return self.entries[self.committed - self.base - 1].term

    def commands(self, index: int) -> list[bytes]:
        return [b"state after %d" % index] * self.rng.randint(0, 3)

    def check(self, found: Found) -> None:
        if not self.possible:
            return
        base = found.snapshot.index if found.snapshot is not None else 0
        state = (base, found.entries)
        whole = {entry.index: entry for entry in found.entries}
        for possible_base, entries in self.possible:
            if (
                base <= possible_base
                and all(whole.get(entry.index) == entry for entry in entries)
                and (found.last_index == possible_base + len(entries))
            ):
                # a snapshot that was not finished leaves older entries, which say the same
                self.base, self.entries = base, list(found.entries)
                self.committed = max(self.committed if self.committed <= self.last else base, base)
                self.possible = [state]
                return
        raise AssertionError(f"found {state}, possible was {self.possible}")


@given(st.integers(0, 2**32), st.lists(st.integers(1, 120), min_size=1, max_size=4))
@settings(max_examples=80, deadline=None)
def test_what_was_written_is_found_again_whatever_replaced_it(seed: int, cuts: list[int]) -> None:
    follower = Follower(seed)
    for cut_after in cuts:
        try:
            asyncio.run(follower.session(cut_after))
        except PowerLoss:
            pass
        follower.disk.crash()

    async def look() -> None:
        log, found = await MetadataLog.open(follower.disk, bytes_max=BYTES_MAX)
        follower.check(found)
        await log.close()

    asyncio.run(look())
