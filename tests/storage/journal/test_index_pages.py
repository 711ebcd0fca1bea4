"""Look-ups in large indexes of sealed segments: pages instead of the whole, and what damage leads to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import numpy
import pytest
from tests.storage.queue_store.runs import WatchedFiles, extent_rows

from mainstem.storage.extents import extent_pages
from mainstem.storage.journal.segments.index_files import IndexFiles
from mainstem.storage.journal.segments.segment_files import index_path

QUEUES = range(1, 1_001)
SEQUENCE, IDENTITY = 3, 77


def rows_of_segment() -> numpy.ndarray:
    """A batch of each queue: an index of 64,000 bytes."""
    return extent_rows(*((queue, 5, 9, 0, 100) for queue in QUEUES))


ROWS_OF = {row[0]: row for row in rows_of_segment().tolist()}


class Segment:
    """Index files on a watched disk, with one index written."""

    def __init__(self) -> None:
        self.files = WatchedFiles()
        self.indexes = IndexFiles(self.files, 0)
        self.rebuilt = 0

    async def rebuild(self) -> numpy.ndarray:
        self.rebuilt += 1
        return rows_of_segment()

    async def has(self, queue_id: int) -> bool:
        """Whether the index has what it should have of a queue: a batch, or nothing."""
        found = await self.indexes.rows_with(SEQUENCE, IDENTITY, queue_id, self.rebuild)
        first, end = found.queue_rows(queue_id)
        wanted = [ROWS_OF[queue_id]] if queue_id in ROWS_OF else []
        return bool(found.rows[first:end].tolist() == wanted)

    @property
    def bytes_read(self) -> int:
        return sum(length for _path, _position, length in self.files.reads)


def run(story: Callable[[Segment], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extent_pages, "PAGED_BYTES_MIN", 60_000)

    async def scenario() -> None:
        segment = Segment()
        await segment.indexes.write(SEQUENCE, rows_of_segment(), IDENTITY)
        await story(segment)

    asyncio.run(scenario())


def test_a_segment_indexed_since_the_start_is_looked_up_by_pages_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(segment: Segment) -> None:
        for queue_id in (*QUEUES, 0, 2_000):
            assert await segment.has(queue_id)
        assert segment.indexes.loads == segment.rebuilt == 0
        assert segment.bytes_read < 1_002 * 2 * extent_pages.PAGE_BYTES

    run(story, monkeypatch)


def test_after_a_start_the_index_is_read_whole_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(segment: Segment) -> None:
        segment.indexes = IndexFiles(segment.files, 0)
        for queue_id in QUEUES:
            assert await segment.has(queue_id)
        assert segment.indexes.loads == 1

    run(story, monkeypatch)


def test_a_page_that_rots_or_is_missing_is_made_anew_from_the_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(segment: Segment) -> None:
        path = index_path(SEQUENCE)
        segment.files.flip(path, 8 * (64 + 900 * 64 + 12))
        assert await segment.has(10)
        assert segment.rebuilt == 0, "another page"
        assert await segment.has(900)
        assert segment.rebuilt == 1
        assert await segment.has(901)
        await segment.files.remove(path)
        assert await segment.has(10)
        assert segment.rebuilt == 2

    run(story, monkeypatch)


def test_pages_go_with_their_index(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(segment: Segment) -> None:
        assert await segment.has(10)
        await segment.indexes.discard(SEQUENCE)
        assert await segment.has(10)
        assert segment.rebuilt == 1

    run(story, monkeypatch)
