"""The log on disk as a follower uses it: entries replaced, snapshots of its own and from elsewhere, power cuts."""

from __future__ import annotations

import asyncio
import errno
import os
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fakes.files import PowerLoss, SimulatedFiles

from mainstem.nameserver.disk.log_format import LogEntry, LogRecordKind
from mainstem.nameserver.disk.metadata_log import MetadataLog, MetadataSnapshot
from mainstem.nameserver.disk.metadata_recovery import FoundEntries
from mainstem.nameserver.disk.room import Room
from mainstem.nameserver.errors import MetadataUnavailable

BYTES_MAX = 600


class Follower:
    """The state that a member wrote, and the states that it may find again: after a cut, the last step is done, or not,
    or in part."""

    def __init__(self, seed: int, *, full: bool = False) -> None:
        """`full`: its disk fills now and then, and refuses syncs for want of room."""
        self.full = full
        self.rng = random.Random(seed)
        self.disk = SimulatedFiles(seed)
        self.base = 0
        self.entries: list[LogEntry] = []
        self.committed = 0
        self.term = 1
        self.possible: list[tuple[int, list[LogEntry]]] = []
        self.room = Room(lambda _seconds: asyncio.sleep(0), self.clear)
        self.waited = 0

    def clear(self) -> None:
        """Others free some space while something waits."""
        self.waited += 1
        if self.disk.capacity_bytes is not None:
            asyncio.get_running_loop().call_later(0.001, self.free)

    def free(self) -> None:
        self.disk.capacity_bytes = None

    async def fill(self) -> None:
        usage = await self.disk.usage()
        self.disk.takes_what_fits = True
        self.disk.capacity_bytes = usage.total_bytes - usage.free_bytes + self.rng.choice([0, 20, 60, 200])

    @property
    def last(self) -> int:
        return self.base + len(self.entries)

    async def session(self, cut_after: int) -> None:
        log, found = await MetadataLog.open(self.disk, bytes_max=BYTES_MAX)
        self.free()
        self.check(found)
        self.disk.cut_power(after=cut_after)
        if found.snapshot is None:
            await log.begin(MetadataSnapshot(0, 0, b"members", ()))
        await log.start(found)
        for _ in range(40):
            if self.full and self.rng.random() < 0.3:
                await self.fill()
            if self.full and self.rng.random() < 0.1:
                self.disk.fail(self.rng.choice(["sync", "rename"]), path="metadata/", error=errno.EDQUOT)
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
                self.possible = [before, (self.base, [])]
                name = MetadataSnapshot(self.base, self.term, b"members", self.commands(self.base))
                await log.install(name, self.room.wait)
                self.committed = self.base
            case 2 | 3 if log.wants_snapshot and self.committed > self.base:
                behind = self.entries[self.committed - self.base :]
                self.possible = [before, (self.committed, behind)]
                snapshot = MetadataSnapshot(self.committed, self.term_at(), b"members", self.commands(self.committed))
                if await log.snapshot(snapshot, lambda: behind):
                    self.base, self.entries = self.committed, behind
                else:
                    assert self.full
            case _:
                new = self.made(self.last + 1)
                self.possible = [(self.base, self.entries + new[:count]) for count in range(len(new) + 1)]
                await log.append(new, self.room.wait)
                self.entries += new
                self.committed = self.rng.randint(self.committed, self.last)
        self.possible = [(self.base, list(self.entries))]

    async def replace(self, log: MetadataLog, before: tuple[int, list[LogEntry]]) -> None:
        self.term += 1
        first = self.rng.randint(self.committed + 1, self.last)
        kept = self.entries[: first - self.base - 1]
        new = self.made(first)
        self.possible = [before, *((self.base, kept + new[:count]) for count in range(1, len(new) + 1))]
        await log.append(new, self.room.wait)
        self.entries = kept + new

    def made(self, first: int) -> list[LogEntry]:
        return [
            LogEntry(first + n, self.term, LogRecordKind.CHANGE, self.rng.randbytes(self.rng.randint(1, 60)))
            for n in range(self.rng.randint(1, 4))
        ]

    def term_at(self) -> int:
        return self.entries[self.committed - self.base - 1].term

    def commands(self, index: int) -> list[bytes]:
        return [b"state after %d" % index] * self.rng.randint(0, 3)

    def check(self, found: FoundEntries) -> None:
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
                self.committed = max(self.committed, base)  # never less: what is committed is not replaced
                self.possible = [state]
                return
        raise AssertionError(f"found {state}, possible was {self.possible}")


@given(st.integers(0, 2**32), st.lists(st.integers(1, 120), min_size=1, max_size=4))
@settings(max_examples=80, deadline=None)
def test_what_was_written_is_found_again_whatever_replaced_it(seed: int, cuts: list[int]) -> None:
    play(Follower(seed), cuts)


@example(seed=97753, cuts=[25, 48, 136, 1])
@given(st.integers(0, 2**32), st.lists(st.integers(1, 160), min_size=1, max_size=4))
@settings(max_examples=examples(120), deadline=None)
def test_what_was_written_is_found_again_though_the_disk_is_full_now_and_then(seed: int, cuts: list[int]) -> None:
    play(Follower(seed, full=True), cuts)


def play(follower: Follower, cuts: list[int]) -> None:
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


class LateRefusal(SimulatedFiles):
    """A rename takes effect, but its directory cannot be forced to disk."""

    refuse = ""

    async def rename(self, source: str, target: str) -> None:
        await super().rename(source, target)
        if self.refuse and target.endswith(self.refuse):
            self.refuse = ""
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), target)


@pytest.mark.parametrize("refuse", [".log", ".snapshot"])
@pytest.mark.parametrize("failing", ["", "remove"])
def test_a_log_that_did_not_take_over_hides_nothing(refuse: str, failing: str) -> None:
    def entry(index: int) -> LogEntry:
        return LogEntry(index, 1, LogRecordKind.CHANGE, b"change %d" % index)

    async def scenario() -> None:
        disk = LateRefusal(1)
        log, found = await MetadataLog.open(disk, bytes_max=BYTES_MAX)
        await log.begin(MetadataSnapshot(0, 0, b"members", ()))
        await log.start(found)
        await log.append([entry(1), entry(2)])
        disk.refuse = refuse
        if failing:
            disk.fail("remove", path=".log")
        assert not await log.snapshot(MetadataSnapshot(1, 1, b"members", [b"state"]), lambda: [entry(2)])
        answered = 2
        try:
            await log.append([entry(3)])
            answered = 3
        except MetadataUnavailable:
            assert failing, "where it is known what is there, the log goes on"
        disk.crash()
        again, found = await MetadataLog.open(disk, bytes_max=BYTES_MAX)
        assert [it.index for it in found.entries][-1] == answered
        await again.close()

    asyncio.run(scenario())
