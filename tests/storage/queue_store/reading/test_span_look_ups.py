"""Look-ups of offsets in the spans of a write group, of which no index is in memory."""

from __future__ import annotations

import asyncio
import random

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.storage.errors import FormatError
from mainstem.storage.extents.extent_format import EXTENT_ROW
from mainstem.storage.extents.extent_index import ExtentIndex
from mainstem.storage.queue_store.manifest.in_memory.spans import FileRange, SeenSpans, Span
from mainstem.storage.queue_store.reading.file_search import FileSearch
from mainstem.storage.queue_store.reading.open_files import KnownFile
from mainstem.storage.store_files.store_file import StoreFile

QUEUES = 4
FILES_MAX = 4
"""That a cold look-up of a queue with files of its own may touch."""


class ColdFiles:
    """Files of (queue, first offset, end), each extent one offset long; those of runs have no keys."""

    def __init__(self) -> None:
        self.content: dict[str, list[tuple[int, int, int]]] = {}
        self.files: dict[str, StoreFile] = {}
        self.damaged: set[str] = set()
        self.loads = 0

    def add(self, content: list[tuple[int, int, int]], *, merged: bool) -> str:
        name = f"{len(self.files)}.{'pack' if merged else 'run'}"
        self.content[name] = content
        keys = {"group": 0, "level": 1, "first_queue": content[0][0], "last_queue": content[-1][0]} if merged else {}
        self.files[name] = StoreFile(
            name=name, retention_class="7d", bytes=1, batch_bytes=1, batch_count=1, record_count=1, queue_count=1,
            min_timestamp=1, max_timestamp=1, first_offset=content[0][1] if merged else -1, **keys,
        )  # fmt: skip
        return name

    @property
    def summaries(self) -> ColdFiles:
        return self

    def may_hold(self, _name: str, _queue_id: int) -> bool:
        return True

    def has_small_queues(self, _known: KnownFile) -> bool:
        return False

    async def rows_with(self, known: KnownFile, _queue_id: int) -> ExtentIndex:
        self.loads += 1
        if known.name in self.damaged:
            raise FormatError(known.name)
        offsets = [(queue, offset) for queue, first, end in self.content[known.name] for offset in range(first, end)]
        rows = numpy.zeros(len(offsets), EXTENT_ROW)
        rows["queue_id"] = [queue for queue, _offset in offsets]
        rows["base_offset"] = rows["last_offset"] = [offset for _queue, offset in offsets]
        return ExtentIndex(rows, known.name)


class _Manifest:
    def __init__(self, files: ColdFiles) -> None:
        self.files = files.files


def at_random(choice: random.Random, files: ColdFiles) -> list[Span]:
    """Spans of runs, and of merged files that share queues or have one each."""
    ends = dict.fromkeys(range(QUEUES), 0)
    spans: list[Span] = []
    for number in range(choice.randint(1, 12)):
        stretches = []
        for queue in range(QUEUES):
            if choice.random() < 0.7:
                first = ends[queue] + choice.choice([0, 0, 2])
                ends[queue] = first + choice.randint(1, 5)
                stretches.append((queue, first, ends[queue]))
        if not stretches:
            continue
        names: list[str] = []
        if choice.random() < 0.3:
            names = [files.add([stretch], merged=False) for stretch in stretches]
        else:
            rest = [part for queue, first, end in stretches for part in _in_two(choice, queue, first, end)]
            while rest:
                count = choice.randint(1, len(rest))
                one_each = {queue for queue, _first, _end in rest[:count]}
                names.append(files.add(rest[:count] if len(one_each) == count else rest[:1], merged=True))
                rest = rest[len(files.content[names[-1]]) :]
        spans.append(Span([FileRange(at, 0, number, number + 1, name) for at, name in enumerate(names)], files.files))
    return spans


def _in_two(choice: random.Random, queue: int, first: int, end: int) -> list[tuple[int, int, int]]:
    middle = choice.randint(first, end)
    return [(queue, low, high) for low, high in ((first, middle), (middle, end)) if low < high]


@given(st.integers(0, 2**32))
def test_at_random_a_look_up_finds_the_offset_or_the_next_there_is(seed: int) -> None:
    choice, files = random.Random(seed), ColdFiles()
    spans = at_random(choice, files)
    search = FileSearch(_Manifest(files), files)  # type: ignore[arg-type]
    offsets = sorted(
        (queue, offset, name)
        for name, content in files.content.items()
        for queue, first, end in content
        for offset in range(first, end)
    )
    files.damaged = {choice.choice(list(files.files))} if spans and choice.random() < 0.4 else set()

    async def scenario() -> None:
        for queue in range(QUEUES + 1):
            seen = SeenSpans(spans, queue)
            for offset in range(0, 40, choice.randint(1, 7)):
                expected = next((one for one in offsets if one[:2] >= (queue, offset)), None)
                expected = expected if expected is not None and expected[0] == queue else None
                try:
                    found = await search.find(queue, choice.choice([spans, seen]), offset)
                except FormatError:
                    assert files.damaged
                    assert expected is None or expected[1] > offset or expected[2] in files.damaged
                    continue
                if expected is not None and expected[2] not in files.damaged:
                    assert found is not None
                    assert (found.file.name, int(found.extents.rows["base_offset"][found.row])) == expected[
                        2:
                    ] + expected[1:2]
                elif not files.damaged:
                    assert found is None

    asyncio.run(scenario())


@given(st.integers(0, 2**32))
def test_at_random_a_reader_that_remembers_spans_sees_what_they_have(seed: int) -> None:
    choice, files = random.Random(seed), ColdFiles()
    spans = at_random(choice, files)
    for queue in range(QUEUES):
        seen = SeenSpans(spans, queue)
        for at in choice.choices(range(len(spans)), k=2 * len(spans)):
            other, offset = choice.randrange(QUEUES), choice.randint(0, 40)
            assert [*seen[at].keyed(queue, offset)] == [*spans[at].keyed(queue, offset)]
            assert [*seen[at].keyed(other, offset)] == [*spans[at].keyed(other, offset)]
            assert (seen[at].runs, seen[at].begins_at(queue)) == (spans[at].runs, spans[at].begins_at(queue))
            may_have = [
                entry
                for entry in spans[at]
                if entry in spans[at].runs
                or files.files[entry.name].first_queue <= queue <= files.files[entry.name].last_queue
            ]
            assert spans[at].has_in_one_file(queue) == seen[at].has_in_one_file(queue)
            assert len(may_have) < 2 or not spans[at].has_in_one_file(queue)


@pytest.mark.parametrize("runs", [0, 2])
def test_a_cold_look_up_of_a_queue_with_files_of_its_own_touches_few(runs: int) -> None:
    files = ColdFiles()
    spans = []
    for number in range(500):
        merged = number < 500 - runs
        names = [files.add([(queue, 10 * number, 10 * number + 10)], merged=merged) for queue in range(QUEUES)]
        spans.append(Span([FileRange(at, 0, number, number + 1, name) for at, name in enumerate(names)], files.files))

    async def scenario() -> None:
        for offset in range(0, 4980, 97):
            files.loads = 0
            search = FileSearch(_Manifest(files), files)  # type: ignore[arg-type]
            found = await search.find(1, spans[: 500 - runs], offset)
            assert found is not None
            assert int(found.extents.rows["base_offset"][found.row]) == offset
            assert files.loads <= FILES_MAX, offset

    asyncio.run(scenario())
