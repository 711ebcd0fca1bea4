"""The facts about levels from the manifest alone."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from tests.storage.queue_store.changes.test_merged_files import Merges
from tests.storage.queue_store.test_store import Bench

from mainstem.storage.queue_store.usage import levels
from mainstem.storage.store_files.store_file import StoreFile, kind_of


@pytest.mark.parametrize("seed", range(5))
def test_files_are_counted_once_in_all_and_for_each_write_group(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(levels, "FILES_PER_TURN", 2)
    bench = Bench(tmp_path)

    async def story(bench: Bench) -> None:
        merges = Merges(bench, random.Random(seed))
        manifest = bench.store.manifest
        assert levels.of_store(manifest) == await levels.of_group(manifest, 0) == []
        for _ in range(12):
            await merges.split()
            await merges.merge(0)
        expected = [list(manifest.files.values())]
        expected += [[manifest.files[entry.name] for entry in manifest.ranges(group)] for group in (0, 1)]
        found = [levels.of_store(manifest), *[await levels.of_group(manifest, group) for group in (0, 1)]]
        for counts, files in zip(found, expected, strict=True):
            assert {(it.level, it.kind): (it.files, it.bytes, it.batch_bytes) for it in counts} == by_hand(files)
            assert [it.level for it in counts] == sorted(it.level for it in counts)
        assert max(it.level for it in found[1]) > 0
        assert {it.level for it in found[2]} == {0}, "nothing of write group 1 was merged"

    bench.run(story)


def by_hand(files: list[StoreFile]) -> dict[object, tuple[int, int, int]]:
    numbers = Counter((file.level, kind_of(file.name)) for file in files)
    return {
        key: (
            number,
            sum(file.bytes for file in files if (file.level, kind_of(file.name)) == key),
            sum(file.batch_bytes for file in files if (file.level, kind_of(file.name)) == key),
        )
        for key, number in numbers.items()
    }
