"""Which of its own files a replica keeps when it takes a snapshot, and which of the sender's it takes.

All replicas of a write group have the same blocks. So the files here that hold blocks up to this node's split position
are as good as the sender's, however both nodes have merged theirs, and only what lies behind is taken:

    here       ├──────┤├───────┤├──┤  split up to here
    there      ├───┤├────────────┤├─────────────┤├─────┤
    then       ├──────┤├───────┤├──┤├───────────┤├─────┤

Of the sender's files that hold blocks on both sides of that position, only what lies behind it is copied. A sender of
an earlier version gives whole files only: then those are taken whole, and own files go from where they begin. From the
first file here that is known to be damaged on, the sender's take the place of all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from mainstem.storage.queue_store.manifest.in_memory.spans import Span
from mainstem.storage.store_files.store_file import StoreFile

FilesOfBlocks = Sequence[tuple[int, int, StoreFile]]
"""(after, upto, file): files with blocks (after, upto] of a write group, oldest first."""


FILES_PER_TURN = 256
"""Own files that are looked at in one turn of the event loop: some milliseconds."""


class OwnSpan(NamedTuple):
    """A span here, with blocks (after, upto]."""

    after: int
    upto: int
    is_sound: bool
    """None of its files is known to be damaged."""


class Wanted(NamedTuple):
    """A file of the sender's of which blocks (after, upto] are taken."""

    after: int
    upto: int
    file: StoreFile
    holds_after: int
    """It holds blocks from behind this one on: where that is before `after`, only a part of it is wanted."""


class HistoryChoice(NamedTuple):
    """Own files with blocks up to `kept_upto` stay, and others are put behind them."""

    kept_upto: int
    wanted: list[Wanted]


async def own_spans(spans: Iterable[Span], sound: Callable[[str], bool]) -> list[OwnSpan]:
    """The spans of a write group, some of them in each turn of the event loop. `sound` says of a file here that it is
    not known to be damaged."""
    found: list[OwnSpan] = []
    looked_at = 0
    for span in spans:
        is_sound = True
        for entry in span:
            is_sound = is_sound and sound(entry.name)
            looked_at += 1
            if looked_at % FILES_PER_TURN == 0:
                await asyncio.sleep(0)
        found.append(OwnSpan(span.after, span.upto, is_sound))
    return found


def choose(own: Sequence[OwnSpan], split_upto: int, theirs: FilesOfBlocks, *, parts: bool) -> HistoryChoice:
    """Choose between a write group's own spans, of which those up to block `split_upto` may stay, and the sender's
    files. `parts`: the sender gives parts of files. It may take long where there are many: call it in a thread."""
    spans = [(span.after, span.upto) for span in own]
    kept_upto = _before(split_upto, spans)
    for span in own:
        if span.upto > kept_upto:
            break
        if not span.is_sound:
            kept_upto = span.after
            break
    if not parts:
        others = [(after, upto) for after, upto, _file in theirs]
        while (earlier := _before(_before(kept_upto, others), spans)) < kept_upto:
            kept_upto = earlier
    wanted = [Wanted(max(after, kept_upto), upto, file, after) for after, upto, file in theirs if upto > kept_upto]
    return HistoryChoice(kept_upto, wanted)


def _before(block: int, spans: Iterable[tuple[int, int]]) -> int:
    """The block, or where the span begins that holds blocks on both sides of it."""
    return min((after for after, upto in spans if after < block < upto), default=block)
