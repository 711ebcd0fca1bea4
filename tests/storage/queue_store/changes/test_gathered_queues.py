"""Queues of files are gathered in ranges, each of as many queues as have room beside each other."""

from __future__ import annotations

import numpy
from hypothesis import given
from hypothesis import strategies as st

from mainstem.storage.compacting.compact_plan import Parts
from mainstem.storage.queue_store.changes.gathered_queues import FILE_BYTES, GatheredQueues, bytes_of
from mainstem.storage.queue_store.manifest.in_memory.spans import FileRange

LARGEST = (1 << 64) - 1

QUEUES = st.sets(st.sampled_from([0, 1, 2, 5, 9, 1 << 40, LARGEST - 1, LARGEST]), max_size=8)


def parts_of_queues(queues: set[int], number: int) -> Parts:
    """Each has as many bytes as its file has a number, which tells files apart."""
    queue_ids = numpy.array(sorted(queues), numpy.uint64)
    column = numpy.full(len(queue_ids), number, numpy.int64)
    return Parts(queue_ids, column, column, column, column, column)


@given(st.lists(QUEUES, max_size=12), st.integers(0, 12 * (FILE_BYTES + 8 * 48)))
def test_ranges_have_all_queues_once_and_no_more_of_them_than_there_is_room_for(
    files: list[set[int]], bytes_max: int
) -> None:
    first, ranges = 0, 0
    seen: dict[int, list[int]] = {}
    while True:
        found = GatheredQueues(first, bytes_max)
        for number, queues in enumerate(files):
            if queues and found.overlaps(min(queues), max(queues)):
                found.add(FileRange(number, 0, number, number + 1, str(number)), parts_of_queues(queues, number))
        there: dict[int, list[int]] = {}
        for file in found.files:
            queues = set(file.parts.queue_ids.tolist())
            assert queues
            assert all(found.first <= queue < found.end for queue in queues)
            assert file.reaches_beyond == (queues != files[file.entry.sequence])
            assert set(file.parts.bytes.tolist()) == {file.entry.sequence}
            for queue in queues:
                there.setdefault(queue, []).append(file.entry.sequence)
        assert found.held_bytes == sum(bytes_of(file.parts) for file in found.files)
        assert found.held_bytes <= bytes_max or len(there) == 1
        assert not seen.keys() & there.keys()
        seen |= there
        ranges += 1
        if found.is_last:
            break
        first = found.end
    wanted = {queue: [n for n, queues in enumerate(files) if queue in queues] for queue in set().union(*files)}
    assert seen == wanted
    assert ranges <= max(1, len(wanted))
    whole = sum(bytes_of(parts_of_queues(queues, 0)) for queues in files if queues)
    assert whole > bytes_max or ranges == 1
