"""Counts what lies on which level of a queue store, from the manifest alone: it opens no file."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mainstem.storage.queue_store.manifest.in_memory.file_table import Level
from mainstem.storage.queue_store.manifest.manifest import Manifest
from mainstem.storage.store_files.store_file import FileKind, kind_of

FILES_PER_TURN = 50
"""Files counted in one turn of the event loop: a millisecond."""


class LevelCount(NamedTuple):
    """The files of one level and kind."""

    level: int
    kind: FileKind
    files: int
    bytes: int
    """Of whole files, without what lies beside queue segments."""
    batch_bytes: int


def of_store(manifest: Manifest) -> list[LevelCount]:
    """All files of a store, lowest level first."""
    return _in_order({level: list(sums) for level, sums in manifest.files.levels.items()})


async def of_group(manifest: Manifest, group: int) -> list[LevelCount]:
    """The files that count for a write group, whole: a run may count for several."""
    counts: dict[Level, list[int]] = {}
    for number, (_after, _upto, file) in enumerate(manifest.spans(group).described(), 1):
        count = counts.setdefault((file.level, kind_of(file.name)), [0, 0, 0])
        count[0] += 1
        count[1] += file.bytes
        count[2] += file.batch_bytes
        if number % FILES_PER_TURN == 0:
            await asyncio.sleep(0)
    return _in_order(counts)


def _in_order(counts: Mapping[Level, Sequence[int]]) -> list[LevelCount]:
    ordered = sorted(counts.items(), key=lambda item: (item[0][0], item[0][1].value))
    return [LevelCount(level, kind, *count) for (level, kind), count in ordered]
