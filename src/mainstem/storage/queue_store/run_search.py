"""Finds the run and the extent in which an offset of a queue lies.

A queue's history is spread over the runs of its write group in the order of their commits. Blocks are split in log
order, so a queue's offsets rise from run to run: an offset is found by bisection over the runs, then over the run's
index. A run need not have the queue at all; most of those are stepped over by their filter alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from mainstem.storage.errors import StorageError
from mainstem.storage.extents.extent_index import ExtentIndex
from mainstem.storage.queue_store.manifest import FileRange, Manifest
from mainstem.storage.queue_store.run_reader import Run, RunFiles, RunGone

RUNS_PER_TURN = 512
"""Runs stepped over in one turn of the event loop: about a millisecond."""

Ranges = Sequence[FileRange]
"""The runs of one group, oldest first: a snapshot, unmoved by later changes."""


class ExtentPlace(NamedTuple):
    """An extent of a queue; `at` is the place of its run among the ranges searched."""

    at: int
    run: Run
    extents: ExtentIndex
    row: int
    end: int
    """Behind the queue's last row in this run."""


class RunSearch:
    """Searches runs. Every search raises `RunGone` when it meets a run that was dropped meanwhile. It steps over an
    unreadable run, and raises that run's error only if the offset may be in it: so a damaged run does not block its
    queues' other runs."""

    def __init__(self, manifest: Manifest, run_files: RunFiles) -> None:
        self._manifest = manifest
        self._run_files = run_files
        self._runs: dict[str, Run] = {}

    async def find(self, queue_id: int, runs: Ranges, offset: int) -> ExtentPlace | None:
        """The extent that holds `offset`, or the queue's next one behind it, by bisection over the runs. Runs
        without the queue are stepped over, for most by their filter alone."""
        low, high = 0, len(runs)
        found: ExtentPlace | None = None
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
                found = ExtentPlace(probe, self.run(runs[probe].name), extents, row, extents.queue_rows(queue_id)[1])
                high = probe
        return _sure(found, offset, unread)

    async def forward(self, queue_id: int, runs: Ranges, at: int, offset: int) -> ExtentPlace | None:
        """As `find`, one run after the other from `at` on: for readers that are near it."""
        unread: list[Exception] = []
        for position in range(at, len(runs)):
            if position % RUNS_PER_TURN == 0:
                await asyncio.sleep(0)
            extents = await self._extents_with(queue_id, runs[position], unread)
            row = None if extents is None else extents.find(queue_id, offset)
            if extents is not None and row is not None:
                run = self.run(runs[position].name)
                place = ExtentPlace(position, run, extents, row, extents.queue_rows(queue_id)[1])
                return _sure(place, offset, unread)
        return _sure(None, offset, unread)

    async def following(self, queue_id: int, runs: Ranges, place: ExtentPlace) -> ExtentPlace | None:
        """The queue's next extent."""
        if place.row + 1 < place.end:
            return place._replace(row=place.row + 1)
        next_offset = int(place.extents.rows["last_offset"][place.row]) + 1
        return await self.forward(queue_id, runs, place.at + 1, next_offset)

    async def _extents_with(self, queue_id: int, entry: FileRange, unread: list[Exception]) -> ExtentIndex | None:
        """The index of a run if it has the queue; an error of reading it is added to `unread`."""
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
        """The `Run` of a name. A reader with an older snapshot of the ranges may still read a dropped run, but it is
        not kept."""
        run = self._runs.get(name)
        if run is None:
            run = Run(name)
            run.dropped = name not in self._manifest.files
            if not run.dropped:
                self._runs[name] = run
        return run

    def forget(self, run: Run) -> None:
        """Forget a run that the manifest dropped."""
        self._runs.pop(run.name, None)
        run.dropped = True


def _sure(found: ExtentPlace | None, offset: int, unread: Sequence[Exception]) -> ExtentPlace | None:
    """Return the place found, unless an unreadable run may hold an offset before it; then raise that run's error."""
    if unread and (found is None or int(found.extents.rows["base_offset"][found.row]) > offset):
        raise unread[0]
    return found
