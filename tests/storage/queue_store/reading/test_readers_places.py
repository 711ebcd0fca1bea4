"""A reader that comes back goes on where it ended, without a search, for as long as its files are those that count."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from tests.storage.queue_store.runs import Batch, make_batch, write_merged, write_run
from tests.storage.queue_store.test_store import Bench

from mainstem.storage.queue_store.reading.file_search import FileSearch

QUEUE, OTHER = 1, 2
SPANS = 6
PER_SPAN = 40
SIZE = 20_000
LOG = [make_batch(QUEUE, offset, size=SIZE) for offset in range(SPANS * PER_SPAN)]


async def add_span(bench: Bench, span: int) -> None:
    mine = LOG[span * PER_SPAN : (span + 1) * PER_SPAN]
    run = write_run(bench.files, f"{span}.run", [*mine, make_batch(OTHER, span, size=SIZE)])
    await bench.store.splits.record(0, span, span + 1, [run], applied_index=span + 1)


async def merge(bench: Bench, spans: range, name: str) -> None:
    entries = [one for one in bench.store.manifest.ranges(0) if spans.start <= one.after < spans.stop]
    batches: list[Batch] = [*LOG[spans.start * PER_SPAN : spans.stop * PER_SPAN]]
    batches += [make_batch(OTHER, span, size=SIZE) for span in spans]
    await bench.store.changes.merge(0, entries, [write_merged(bench.files, name, 0, batches)])


def test_a_reader_that_comes_back_is_not_searched_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searched: set[int] = set()
    forward = FileSearch.forward

    async def watched(search: FileSearch, queue_id: int, spans: object, at: int, offset: int) -> object:
        searched.add(offset)
        return await forward(search, queue_id, spans, at, offset)  # type: ignore[arg-type]

    monkeypatch.setattr(FileSearch, "forward", watched)

    async def scenario(bench: Bench) -> None:
        for span in range(SPANS):
            await add_span(bench, span)
        found: list[bytes] = []
        begun: list[int] = []
        while (stored := await bench.store.history.read(QUEUE, 0, len(found), 3 * SIZE)) is not None:
            begun.append(len(found))
            found += map(bytes, stored.batches)
        assert found == [batch.data for batch in LOG]
        ends = {span * PER_SPAN for span in range(SPANS + 1)}
        assert len(begun) > 10 * SPANS
        assert searched <= ends, "a search is for what lies behind a file, by whoever reads ahead or comes to its end"

    Bench(tmp_path).run(scenario)


@pytest.mark.parametrize("seed", range(8))
def test_readers_go_on_while_their_files_are_replaced_and_others_come(tmp_path: Path, seed: int) -> None:
    async def scenario(bench: Bench) -> None:
        chance = random.Random(seed)
        await add_span(bench, 0)
        spans, merged, names = 1, 0, 0
        found: list[list[bytes]] = [[], [], []]
        while min(map(len, found)) < len(LOG):
            action = chance.randrange(12)
            if action == 0 and spans < SPANS:
                await add_span(bench, spans)
                spans += 1
            elif action == 1 and spans - merged >= 2:
                await merge(bench, range(merged, spans), f"0-{names}.pack")
                merged, names = spans, names + 1
            mine = chance.choice(found)
            stored = await bench.store.history.read(QUEUE, 0, len(mine), chance.choice([1, 3 * SIZE, 30 * SIZE]))
            if stored is not None:
                assert stored.base_offset == len(mine)
                mine += map(bytes, stored.batches)
                assert stored.next_offset == len(mine)
            elif spans < SPANS:
                await add_span(bench, spans)
                spans += 1
            await asyncio.sleep(0)
        assert found == [[batch.data for batch in LOG]] * 3

    Bench(tmp_path).run(scenario)
