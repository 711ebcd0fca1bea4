"""Where a queue's history lies: which run, which extent.

It is spread over the runs of the queue's write group in the order of their commits. Blocks are split in log
order, so a queue's offsets rise from run to run: an offset is found by bisection over the runs, then over the
run's index. A run need not have the queue at all; most of those are stepped over by their filter alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from mainstem.storage.errors import StorageError
from mainstem.storage.queue_store.extent_index import ExtentIndex
from mainstem.storage.queue_store.manifest import FileRange, Manifest
from mainstem.storage.queue_store.run_reader import Run, RunFiles, RunGone

RUNS_PER_TURN = 512
"""Stepped over between two turns of the event loop: about a millisecond."""

Ranges = Sequence[FileRange]
"""The runs of one group, oldest first: a snapshot, unmoved by later changes."""


class Place(NamedTuple):
    """An extent of a queue; `at` is the place of its run among the ranges searched."""

    at: int
    run: Run
    extents: ExtentIndex
    row: int
    end: int
    """Behind the queue's last row in this run."""


class RunSearch:
    """Searches runs. Every search raises `RunGone` when it meets a run that was dropped meanwhile. One that cannot be
    read is stepped over, and its error raised only if what is looked for may be in it: a damaged run is in the way of
    what is in it, not of its queues' other runs."""

    def __init__(self, manifest: Manifest, run_files: RunFiles) -> None:
        self._manifest = manifest
        self._run_files = run_files
        self._runs: dict[str, Run] = {}

    async def find(self, queue_id: int, runs: Ranges, offset: int) -> Place | None:
        """The extent that holds `offset`, or the queue's next one behind it, by bisection over the runs. Runs
        without the queue are stepped over, for most by their filter alone."""
        low, high = 0, len(runs)
        found: Place | None = None
        unread: list[Exception] = []
        while low < high:
            probe = middle = (low + high) // 2
            extents = await self._extents_with(queue_id, runs[probe], unread)
            while extents is None and probe > low:
                probe -= 1
                if probe % RUNS_PER_TURN == 0:
                    await asyncio.sleep(0)
                extents = await self._extents_with(queue_id, runs[probe], unread)
            row = None if extents is None else extents.find(queue_id, offset)
            if extents is None or row is None:
                low = middle + 1
            else:
                found = Place(probe, self.run(runs[probe].name), extents, row, extents.queue_rows(queue_id)[1])
                high = probe
        return _sure(found, offset, unread)

    async def forward(self, queue_id: int, runs: Ranges, at: int, offset: int) -> Place | None:
        """As `find`, one run after the other from `at` on: for readers who are about there."""
        unread: list[Exception] = []
        for position in range(at, len(runs)):
            if position % RUNS_PER_TURN == 0:
                await asyncio.sleep(0)
            extents = await self._extents_with(queue_id, runs[position], unread)
            row = None if extents is None else extents.find(queue_id, offset)
            if extents is not None and row is not None:
                run = self.run(runs[position].name)
                place = Place(position, run, extents, row, extents.queue_rows(queue_id)[1])
                return _sure(place, offset, unread)
        return _sure(None, offset, unread)

    async def following(self, queue_id: int, runs: Ranges, place: Place) -> Place | None:
        """The queue's next extent."""
        if place.row + 1 < place.end:
            return place._replace(row=place.row + 1)
        next_offset = int(place.extents.rows["last_offset"][place.row]) + 1
        return await self.forward(queue_id, runs, place.at + 1, next_offset)

    async def _extents_with(
        self, queue_id: int, entry: FileRange, unread: list[Exception]
    ) -> ExtentIndex | None:
        """The index of a run if it has the queue; what keeps it from being read goes to `unread`."""
        run = self.run(entry.name)
        if not run.may_hold(queue_id):
            return None
        try:
            extents = await self._run_files.index(run)
        except RunGone:
            raise
        except (StorageError, OSError) as error:
            unread.append(error)
            return None
        first, end = extents.queue_rows(queue_id)
        return extents if first < end else None

    def run(self, name: str) -> Run:
        """What memory keeps of a run; one that was dropped may still be read by who holds an older snapshot of
        the ranges, but is not kept."""
        run = self._runs.get(name)
        if run is None:
            run = Run(name)
            run.dropped = name not in self._manifest.files
            if not run.dropped:
                self._runs[name] = run
        return run

    def forget(self, run: Run) -> None:
        """The manifest dropped the run."""
        self._runs.pop(run.name, None)
        run.dropped = True


def _sure(found: Place | None, offset: int, unread: Sequence[Exception]) -> Place | None:
    """What was found, if nothing between the offset and it can be in a run that could not be read. Raises why one
    could not otherwise."""
    if unread and (found is None or int(found.extents.rows["base_offset"][found.row]) > offset):
        raise unread[0]
    return found
