"""The journal map tells which block indexes lie where in the journal, with a mark per MiB, for planning splits and for
pruning.

A mark says up to which journal position it reaches and, per write group, the last block (and the last data block) at or
before that position. All of these only grow, so "the first mark with data of group g behind index i" is a binary
search, and a journal of 100 GB needs 100,000 marks, not an entry per block. If a new leader's blocks replace
uncommitted ones, the marks before are set back to the remaining blocks, and the replaced blocks are dead: the map knows
their places as long as their segments exist.

Control blocks are never a reason to split: each split once logged a control block, and a splitter that took it for work
would never rest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from mainstem.rpc.messages.split import WriteGroupRange
from mainstem.storage.journal.encoding.format import KIND_DATA, BlockHeader, position_of, sequence_of

MARK_BYTES = 1 << 20
"""Journal bytes per mark: the granularity of a slice."""


class Mark(NamedTuple):
    start: int
    """Journal position of its first block."""
    end: int
    """Journal position behind its last block, in the same segment."""
    last: tuple[int, ...]
    """Per group, the last block index at or before `end`."""
    last_data: tuple[int, ...]
    """Per group, the index of the last data block at or before `end`."""
    data_bytes: tuple[int, ...]
    """Per group, the bytes of all data blocks the map has seen up to `end`."""
    data_ms: int
    """When its first data block was made; -1: it has none."""


class MapImage(NamedTuple):
    """A map as a checkpoint keeps it: the last mark that was dropped, those that are left, and the dead blocks."""

    gone: Mark
    marks: list[Mark]
    dead: Sequence[int] = ()


class JournalStretch(NamedTuple):
    """A contiguous part of the journal, cut out for one split task: what blocks it holds, and where."""

    ranges: tuple[WriteGroupRange, ...]
    places: tuple[tuple[int, int], ...]
    """(start, end) journal positions, each within one segment."""
    bytes: int


class JournalMap:
    """Marks over the journal, oldest first."""

    def __init__(self, groups: int) -> None:
        self.groups = groups
        self._last = [0] * groups
        self._last_data = [0] * groups
        self._data_bytes = [0] * groups
        none = (0,) * groups
        self._gone = Mark(0, 0, none, none, none, -1)
        """The mark before the first one."""
        self.dead: set[int] = set()
        """Journal positions of blocks that a new leader's blocks have replaced."""
        self._kept: list[Mark] = []
        """The marks, of which the last may have grown since; `_marks` has the current ones."""
        self._grown_to = 0
        """The position up to which the last mark reaches, if it has grown."""
        self._grows_to = 0
        """The position up to which it may reach; 0: the next block begins a mark."""

    def grow(self, groups: int) -> None:
        """From now on there are blocks of so many write groups. Takes some ms per GB of journal."""
        more = groups - self.groups
        assert more >= 0, "write groups stay"
        self.groups = groups
        self._last += [0] * more
        self._last_data += [0] * more
        self._data_bytes += [0] * more
        self._kept = [_of_groups(mark, groups) for mark in self._marks]
        self._gone = _of_groups(self._gone, groups)

    @property
    def _marks(self) -> list[Mark]:
        """The current marks. The last grows with nearly every block, so it is made anew only when it is read."""
        if self._grown_to:
            self._kept[-1] = self._mark(self._kept[-1].start, self._grown_to, self._kept[-1].data_ms)
            self._grown_to = 0
        return self._kept

    def _mark(self, start: int, end: int, data_ms: int) -> Mark:
        return Mark(start, end, tuple(self._last), tuple(self._last_data), tuple(self._data_bytes), data_ms)

    def add(self, header: BlockHeader, *, live: bool = True) -> None:
        """Add the journal's next block, in journal order; not `live`: its log dropped it while it was written."""
        group, end = header.group, header.end
        grows = end <= self._grows_to
        marks = self._kept if grows else self._marks  # as they are without this block
        data_ms = -1
        if not live:
            self.dead.add(header.position)
        else:
            self._last[group] = header.index
        if live and header.kind == KIND_DATA:
            self._last_data[group] = header.index
            self._data_bytes[group] += header.length
            data_ms = header.created_ms
        if grows and (data_ms < 0 or marks[-1].data_ms >= 0):
            self._grown_to = end
            return
        start = header.position
        if grows:  # the mark's first data
            start, self._grown_to = marks.pop().start, 0
        else:
            self._grows_to = min(start + MARK_BYTES, position_of(sequence_of(start) + 1, 0))
        marks.append(self._mark(start, end, data_ms))

    def superseded(self, group: int, first_index: int, positions: Iterable[int], last_data: int) -> None:
        """Mark the blocks at these positions dead: the write group's log differs from block `first_index` on.
        `last_data`: the last data block that the log has before that one (`WriteGroupBlocks.last_data_before`)."""
        self.dead.update(positions)
        last = first_index - 1

        def cut(values: Sequence[int], most: int) -> tuple[int, ...]:
            return tuple(min(value, most) if at == group else value for at, value in enumerate(values))

        if self._gone.last[group] > last:  # the log begins anew
            self._gone = self._gone._replace(last=cut(self._gone.last, last), last_data=cut(self._gone.last_data, last))
        marks = self._marks
        kept = len(marks)
        while kept and marks[kept - 1].last[group] > last:
            kept -= 1
        # what is left of the log before its end is in the journal: in the first mark that is cut, or before
        last_data = max(last_data, self._before(kept).last_data[group])
        for place in range(kept, len(marks)):
            mark = marks[place]
            marks[place] = mark._replace(last=cut(mark.last, last), last_data=cut(mark.last_data, last_data))
        newest = marks[-1] if marks else self._gone
        self._last, self._last_data = list(newest.last), list(newest.last_data)

    @property
    def end(self) -> int:
        """Journal position behind the newest block; 0: there was none."""
        return self._marks[-1].end if self._marks else self._gone.end

    @property
    def data_bytes(self) -> int:
        """Bytes of all data blocks of all groups the map has ever seen."""
        return sum(self._data_bytes)

    def cut(self) -> None:
        """Let the next block begin a mark, because its age differs from the blocks before."""
        self._grows_to = 0

    def dump(self) -> MapImage:
        return MapImage(self._gone, list(self._marks), sorted(self.dead))

    def load(self, image: MapImage) -> None:
        self._gone = _of_groups(image.gone, self.groups)
        self._kept = [_of_groups(mark, self.groups) for mark in image.marks]
        self._grown_to = 0
        self.dead.clear()
        self.dead.update(image.dead)
        newest = self._marks[-1] if self._marks else self._gone
        self._last = list(newest.last)
        self._last_data = list(newest.last_data)
        self._data_bytes = list(newest.data_bytes)
        self._grows_to = 0

    def drop(self, before_sequence: int) -> None:
        """Forget the marks of recycled segments."""
        keep = bisect_right(self._marks, before_sequence - 1, key=lambda mark: sequence_of(mark.start))
        self._gone = self._before(keep)
        del self._marks[:keep]
        if not self._kept:
            self._grows_to = 0
        self.dead.difference_update([position for position in self.dead if sequence_of(position) < before_sequence])

    def pruned(self, group: int) -> int:
        """The group's last block in the segments that were dropped."""
        return self._gone.last[group]

    def holds_data(self, sequence: int) -> bool:
        """Whether a segment has data blocks, split or not."""
        place = bisect_right(self._marks, sequence, key=lambda mark: sequence_of(mark.start)) - 1
        while place >= 0 and sequence_of(self._marks[place].start) == sequence:
            if self._marks[place].data_ms >= 0:
                return True
            place -= 1
        return False

    def at_end_of(self, sequence: int) -> Mark | None:
        """The last mark of a segment; None when no block lies in it."""
        place = bisect_right(self._marks, sequence, key=lambda mark: sequence_of(mark.start)) - 1
        return self._marks[place] if place >= 0 and sequence_of(self._marks[place].start) == sequence else None

    def segments(self) -> Iterator[tuple[int, Mark, Mark]]:
        """Every segment that has a mark, oldest first: (sequence, the mark before it, its last mark)."""
        marks = self._marks
        first = 0
        for place, mark in enumerate(marks):
            following = marks[place + 1] if place + 1 < len(marks) else None
            if following is None or sequence_of(following.start) != sequence_of(mark.start):
                yield sequence_of(mark.start), self._before(first), mark
                first = place + 1

    def data_after(self, group: int, after: int) -> tuple[int, int]:
        """(bytes, creation time in ms of the oldest) of the group's data blocks behind block `after`, to the
        granularity of a mark; (0, -1) when there are none."""
        if self._last_data[group] <= after:
            return 0, -1
        first = self._first_mark(group, after)
        if first == len(self._marks):
            return 0, -1
        return self._data_bytes[group] - self._before(first).data_bytes[group], self._marks[first].data_ms

    def begins_after(self, group: int, after: int) -> int | None:
        """Journal position of the first mark with data blocks of the group behind block `after`; None: there are
        none."""
        if self._last_data[group] <= after:
            return None
        first = self._first_mark(group, after)
        return self._marks[first].start if first < len(self._marks) else None

    def made_from(self, position: int) -> list[tuple[int, int]]:
        """(start, creation time in ms of its first data block, -1 if it has none) of the marks from the one that a
        journal position lies in, oldest first."""
        first = max(0, bisect_right(self._marks, position, key=lambda mark: mark.start) - 1)
        return [(mark.start, mark.data_ms) for mark in self._marks[first:]]

    def indexes_at(self, position: int, applied: Sequence[int]) -> list[int]:
        """Per group, a block index that certainly lies before a journal position, to the granularity of a
        mark; the group's applied index when everything does."""
        if not self._marks or self._marks[-1].end <= position:
            return list(applied)
        whole = bisect_right(self._marks, position, key=lambda mark: mark.end)
        return list(self._before(whole).last)

    # --- planning -----------------------------------------------------------------------------------------

    def limit(self, after: Mapping[int, int], bound: Sequence[int], bytes_max: int) -> dict[int, int]:
        """Per write group, the block up to which about `bytes_max` bytes of journal behind `after` reach, not beyond
        `bound`. Just `after` when there is no data block in between."""
        upto = {group: after.get(group, 0) for group in range(self.groups)}
        remaining = bytes_max
        for mark in self._marks[self._first(after, bound) :]:
            for group, last in enumerate(mark.last):
                upto[group] = max(upto[group], min(last, bound[group]))
            remaining -= mark.end - mark.start
            if remaining <= 0:
                break
        return upto

    def stretches(self, after: Mapping[int, int], upto: Mapping[int, int], bytes_max: int) -> list[JournalStretch]:
        """The journal between `after` and `upto`, cut into stretches of about `bytes_max` bytes. Their ranges
        are disjoint and follow each other per group; every block of a range lies in the stretch's places. Blocks
        left out before the first one are not data."""
        bound = [upto.get(group, 0) for group in range(self.groups)]
        first = self._first(after, bound)
        before = self._before(first).last
        reached = [max(after.get(group, 0), min(before[group], bound[group])) for group in range(self.groups)]
        stretches: list[JournalStretch] = []
        taken: list[Mark] = []
        size = 0
        for mark in self._marks[first:]:
            taken.append(mark)
            size += mark.end - mark.start
            done = all(last >= limit for last, limit in zip(mark.last, bound, strict=True))
            if size >= bytes_max or done:
                reached = self._close(stretches, taken, size, reached, bound)
                taken, size = [], 0
            if done:
                break
        if taken:
            self._close(stretches, taken, size, reached, bound)
        return stretches

    def _close(
        self, stretches: list[JournalStretch], taken: list[Mark], size: int, reached: list[int], bound: list[int]
    ) -> list[int]:
        ends = [max(start, min(last, limit)) for start, last, limit in zip(reached, taken[-1].last, bound, strict=True)]
        ranges = tuple(
            WriteGroupRange(group, start, end)
            for group, (start, end) in enumerate(zip(reached, ends, strict=True))
            if end > start
        )
        places: list[tuple[int, int]] = []
        for mark in taken:
            if places and places[-1][1] == mark.start:
                places[-1] = (places[-1][0], mark.end)
            else:
                places.append((mark.start, mark.end))
        if ranges:
            stretches.append(JournalStretch(ranges, tuple(places), size))
        return ends

    def _first(self, after: Mapping[int, int], bound: Sequence[int]) -> int:
        """The first mark with a data block behind `after`, of any group whose `bound` lies behind `after`."""
        return min(
            (
                self._first_mark(group, after.get(group, 0))
                for group in range(self.groups)
                if bound[group] > after.get(group, 0)
            ),
            default=len(self._marks),
        )

    def _before(self, place: int) -> Mark:
        """The mark before the one at `place`."""
        return self._marks[place - 1] if place else self._gone

    def _first_mark(self, group: int, after: int) -> int:
        return bisect_right(self._marks, after, key=lambda mark: mark.last_data[group])


def _of_groups(mark: Mark, groups: int) -> Mark:
    """The mark as of so many write groups: of further ones it knew no block, and of fewer ones it has all blocks."""
    if len(mark.last) == groups:
        return mark
    assert not any(mark.last[groups:]), "a write group whose blocks lie here began here"
    more = (0,) * (groups - len(mark.last))
    last, last_data, data_bytes = (column[:groups] + more for column in (mark.last, mark.last_data, mark.data_bytes))
    return mark._replace(last=last, last_data=last_data, data_bytes=data_bytes)
