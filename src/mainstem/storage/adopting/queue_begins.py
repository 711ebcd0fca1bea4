"""Finds where the queues of a lost cluster begin and end, by the indexes of its files.

A queue begins at the first offset that the store has, as if retention had removed what was before it. A queue begins at
0 if something else may have taken that, and readers pass over what is missing, as they did in the cluster:

    given up     a file of its write group was, which may have had records of the queue, and whose blocks begin before
                 the end of those of the file that has the first offset left
    compacted    the topic is compacted, and nothing is deleted by age or size; DeleteRecords is refused then

Nobody knows which offsets a given-up file had. So a queue of which retention had removed something as well begins at 0
too: consumers who are that far behind are not told, and get the first record there is. If it began at what is left,
`auto.offset.reset=latest` would send a consumer who asks for an offset before that to the end, past all there is.

Queues of internal topics begin at what is left: the machines that write them move their log starts, and take an offset
that is missing behind them for a lost one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.model import PARTITION_BITS
from mainstem.storage.extents.extent_index import ExtentIndex
from mainstem.storage.remote.chain.chain_reading import StoredTier
from mainstem.storage.remote.chain.topic_list_format import ListedTopic
from mainstem.storage.store_files.object_names import object_of
from mainstem.storage.store_files.store_file import path_of

Queues = numpy.typing.NDArray[numpy.int64]
"""A row per queue, by their ids: id, first offset, end."""

Numbers = numpy.typing.NDArray[numpy.int64]

Flags = numpy.typing.NDArray[numpy.bool_]


class _OfFile(NamedTuple):
    name: str
    """Of the object."""
    queues: Queues


class QueueBegins:
    """Collects where queues begin and end, file by file."""

    def __init__(self) -> None:
        self._files: list[_OfFile] = []

    def add(self, name: str, index: ExtentIndex) -> None:
        """Add what lies in an object, in the cluster's folder."""
        rows = index.rows
        if not len(rows):
            return
        columns = [rows[name].astype(numpy.int64) for name in ("queue_id", "base_offset", "last_offset")]
        columns[2] += 1
        self._files.append(_OfFile(name, _reduced(numpy.stack(columns, axis=1))))

    def queues(self, tiers: Mapping[int, StoredTier], topics: Iterable[ListedTopic]) -> Queues:
        """All queues. `tiers`: what counts, per write group; `topics`: those that exist."""
        if not self._files:
            return numpy.empty((0, 3), numpy.int64)
        found = _reduced(numpy.concatenate([file.queues for file in self._files]))
        numbers, known = found[:, 0] >> PARTITION_BITS, list(topics)
        compacted = [topic.number for topic in known if topic.configs.get("cleanup.policy") == "compact"]
        whole: Flags = numpy.isin(numbers, compacted)
        for group, tier in tiers.items():
            if tier.notes.given_up:
                whole |= numpy.isin(found[:, 0], self._behind_given_up(group, tier))
        found[whole & ~numpy.isin(numbers, [topic.number for topic in known if topic.internal]), 1] = 0
        return found

    def _behind_given_up(self, group: int, tier: StoredTier) -> Numbers:
        """The queues of which a given-up file may have had what was before all that is left in the write group."""
        uptos: dict[str, int] = {}
        for _after, upto, file in tier.files:
            name = object_of(group, path_of(file.name))
            uptos[name] = max(upto, uptos.get(name, 0))
        parts = [
            numpy.insert(file.queues[:, :2], 2, uptos[file.name], axis=1) for file in self._files if file.name in uptos
        ]
        if not parts:
            return numpy.empty(0, numpy.int64)
        rows = numpy.concatenate(parts)
        rows = rows[numpy.lexsort((rows[:, 1], rows[:, 0]))]
        firsts = rows[numpy.diff(rows[:, 0], prepend=-1) != 0]
        behind: Flags = numpy.zeros(len(firsts), numpy.bool_)
        for lost in tier.notes.given_up:
            is_in_it = (firsts[:, 0] >= lost.first_queue) & (firsts[:, 0] <= lost.last_queue)
            behind |= is_in_it & (firsts[:, 2] > lost.after)
        found: Numbers = firsts[behind, 0]
        return found


def _reduced(rows: Queues) -> Queues:
    """One row for each queue."""
    rows = rows[numpy.argsort(rows[:, 0], kind="stable")]
    begins = numpy.flatnonzero(numpy.diff(rows[:, 0], prepend=rows[0, 0] - 1))
    firsts, ends = numpy.minimum.reduceat(rows[:, 1], begins), numpy.maximum.reduceat(rows[:, 2], begins)
    return numpy.stack([rows[begins, 0], firsts, ends], axis=1)
