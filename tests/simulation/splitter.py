"""A splitter without Spark: plans by the node's split log, writes real runs, hands them in; and misbehaves.

It plays every splitter there could be at once: each `split` is one of them, and may overlap others. Their results are
remembered and sent again later, by a zombie, even after the node's next start."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Protocol

import numpy
from tests.fakes.files import SimulatedFiles
from tests.fakes.splitting.run_target import SimulatedTarget, dying_writers
from tests.simulation.oracle import require

from mainstem.pipeline.errors import SliceDamaged
from mainstem.pipeline.slices.journal_slice import places_of
from mainstem.pipeline.slices.split_slice import SplitSlice, split_slice
from mainstem.rpc.messages.split import PASSED_OVER, Slice, WriteGroupPositions
from mainstem.storage.errors import SegmentGone
from mainstem.storage.role import Storage

FINISHED_MAX = 20
"""Commits a zombie remembers."""


class Machine(Protocol):
    @property
    def disk2(self) -> SimulatedFiles: ...


class SplitNode(Protocol):
    """A node whose journal is to be split."""

    storage: Storage

    @property
    def machine(self) -> Machine: ...


class Splitters:
    """All splitters of a node."""

    def __init__(self, node: SplitNode, rng: random.Random) -> None:
        self._node = node
        self._rng = rng
        self._finished: list[SplitSlice] = []
        self.outcomes: dict[str, int] = {}
        self.damage_met = 0

    async def split(self, *, well_behaved: bool = False) -> None:
        """Split about everything there is, once."""
        rng, log = self._rng, self._node.storage.split_log
        for group in log.positions():
            self._check(group)
        after = {group.group: group.split for group in log.positions()}
        upto = log.limit(after, 1 << 30 if well_behaved else rng.choice([1, 10_000, 1 << 20]))
        slices = log.slices(after, upto, self._slice_bytes())
        if not well_behaved and rng.random() < 0.2:
            rng.shuffle(slices)
        for work in slices:
            if not well_behaved and rng.random() < 0.1:
                continue
            done = await self._split_slice(work)
            if done is None:
                return
            await self._record(done)
            if not well_behaved and rng.random() < 0.2:
                await self._record(done)

    async def replay(self) -> None:
        """A zombie hands in something again that was recorded, or refused, at some time."""
        if self._finished:
            await self._record(self._rng.choice(self._finished))

    async def _split_slice(self, work: Slice) -> SplitSlice | None:
        """Runs of a slice, or None when the journal does not have it any more: somebody else split it."""
        log = self._node.storage.split_log
        *places, size = places_of(work.extents)
        buffer = numpy.zeros(size, numpy.uint8)
        for extent, place in zip(work.extents, places, strict=True):
            try:
                content = await log.read(extent.sequence, extent.start, extent.end - extent.start)
            except SegmentGone:
                return None
            buffer[place : place + len(content)] = numpy.frombuffer(content, numpy.uint8)
        await asyncio.sleep(self._pause_seconds())
        try:
            return split_slice(
                work,
                buffer,
                await log.retention_classes(),
                self._open_run(),
                new_name=lambda: f"{self._rng.getrandbits(64):016x}",
            )
        except SliceDamaged as error:
            if error.position:
                self.damage_met += 1
                await log.damaged(error.position)
            raise

    def _open_run(self) -> Callable[[str], SimulatedTarget]:
        """Opens runs by their names."""
        return dying_writers(self._node.machine.disk2)

    def _check(self, group: WriteGroupPositions) -> None:
        require(group.pruned <= group.split <= group.committed, f"positions out of order: {group}")
        require(group.durable <= group.committed, f"durable beyond committed: {group}")

    def _slice_bytes(self) -> int:
        return self._rng.choice([1, 10_000, 1 << 20])

    def _pause_seconds(self) -> float:
        """How long a slice takes."""
        return self._rng.choice([0.0, 0.01, 0.5])

    def _remember(self, done: SplitSlice) -> None:
        """For a zombie."""
        self._finished = [*self._finished[1 - FINISHED_MAX :], done]

    async def _record(self, done: SplitSlice) -> None:
        self._remember(done)
        for outcome in await self._node.storage.split_log.record(done.ranges, done.files):
            kind = outcome.split(":")[0]
            require(kind in ("committed", "replayed", "refused", PASSED_OVER), outcome)
            self.outcomes[kind] = self.outcomes.get(kind, 0) + 1
