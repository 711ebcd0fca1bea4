"""Which queues of a write group are worth compacting, and which of its files that takes. No disk, no clock: numbers in,
a plan out.

The known facts of a file are its *parts*: of each queue in it, bytes, offsets and times, added up from the index. A
part is compacted as a whole or not at all, so the clean end of a queue is where the first part begins that is too
young. A part is dirty unless a compaction has had it: as the file says, which is then true of all its queues, or as
this node remembers, where it had some of them only.

All parts of a queue below its clean end are taken together. So a record goes only when the later one that it goes for
is there in the same step, and a tombstone may go when nothing older of its key is left anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.storage.extents.extent_index import ExtentIndex, QueueIds
from mainstem.storage.store_files.store_file import NEVER_COMPACTED, NO_HORIZON

Integers = numpy.typing.NDArray[numpy.int64]
Flags = numpy.typing.NDArray[numpy.bool_]
Places = numpy.typing.NDArray[numpy.intp]
Reals = numpy.typing.NDArray[numpy.float64]

INPUT_BYTES_MAX = 4 << 30
"""Of one pass, unless one queue has more. Inputs and outputs lie beside each other until it is recorded, and Spark
shuffles 32 bytes for each record."""

GAIN_MIN = 1 / 8
"""Of the bytes that are written again at least this share is dirty, unless a time is over. Small queues share files
with others: alone, none of them would be worth a file."""

COME_MIN = 1 / 4
"""If dirty records have waited for long (`Rules.wait_ms`), this share of the bytes that are written again is of files
that are dirty, however little in these. So for each byte that has come since no more than four are written."""

QUEUES_MAX = 1 << 18
"""Of one pass: 8.5 MiB of `QUEUE_ROW` in one answer of the node."""

INPUTS_MAX = 1 << 14
"""Of one pass: executors tell inputs apart by 14 bits."""

OFFSETS_MAX = 1 << 47
"""Executors have as many bits for an offset. A queue that takes a million messages a second gets there in four years,
and is compacted no more."""

NO_END = int(numpy.iinfo(numpy.int64).max)

QUEUE_ROW = numpy.dtype(
    [
        ("queue_id", "<u8"),
        ("end", "<i8"),  # the clean end: offsets from here on stay as they are; `NO_END`: all are compacted
        ("last", "<i8"),  # the last offset below it, which stays
        ("horizon_ms", "<i8"),  # what tombstones get that have no horizon yet
        ("drops", "u1"),  # 1: tombstones may go, as the queue has been in this write group only
    ]
)
"""A queue of a pass. Ascending by id."""

QueueRows = numpy.typing.NDArray[numpy.void]


class Rules(NamedTuple):
    """The settings of the topics of some queues, per queue. Times in ms."""

    compacted: Flags
    dirty_ratio: Reals
    lag_ms_min: Integers
    lag_ms_max: Integers
    delete_retention_ms: Integers
    wait_ms: Integers
    """How old dirty records are when their queue need not make up `GAIN_MIN` any more."""

    def of(self, chosen: Flags) -> Rules:
        return Rules(
            self.compacted[chosen],
            self.dirty_ratio[chosen],
            self.lag_ms_min[chosen],
            self.lag_ms_max[chosen],
            self.delete_retention_ms[chosen],
            self.wait_ms[chosen],
        )


RulesOf = Callable[[QueueIds], Rules]


class Parts(NamedTuple):
    """The sums that a file has of each of its queues, ascending by id."""

    queue_ids: QueueIds
    bytes: Integers
    firsts: Integers
    """The first offset…"""
    lasts: Integers
    """…and the last."""
    oldest_ms: Integers
    """The smallest `max_timestamp` of its extents…"""
    newest_ms: Integers
    """…and the largest."""

    def of(self, chosen: Flags | Places) -> Parts:
        return Parts(
            self.queue_ids[chosen],
            self.bytes[chosen],
            self.firsts[chosen],
            self.lasts[chosen],
            self.oldest_ms[chosen],
            self.newest_ms[chosen],
        )


class PassedQueues(NamedTuple):
    """Queues of a file whose parts were compacted, though its `clean_ms` does not say so."""

    queue_ids: QueueIds
    """Ascending; one at least."""
    horizons_ms: Integers
    """Per queue, when the first of its tombstones may go; `NO_HORIZON`: there is none."""

    @classmethod
    def of_pass(cls, queue_ids: QueueIds, horizon_ms: int) -> PassedQueues:
        return cls(queue_ids, numpy.full(len(queue_ids), horizon_ms, numpy.int64))

    def with_pass(self, queue_ids: QueueIds, horizon_ms: int) -> PassedQueues:
        """The same after another pass over these queues (ascending). Of its own ones it says nothing that is over."""
        kept = ~numpy.isin(self.queue_ids, queue_ids)
        all_ids = numpy.concatenate((self.queue_ids[kept], queue_ids))
        horizons_ms = numpy.concatenate((self.horizons_ms[kept], numpy.full(len(queue_ids), horizon_ms, numpy.int64)))
        order = all_ids.argsort()
        return PassedQueues(all_ids[order], horizons_ms[order])


class CompactFile(NamedTuple):
    """A merged file, in the order of its write group's spans and of the keys in each."""

    parts: Parts
    batch_bytes: int
    clean_ms: int = NEVER_COMPACTED
    horizon_ms: int = NO_HORIZON
    passed: PassedQueues | None = None
    reaches_beyond: bool = False
    """Whether it has compacted queues that are not among the parts."""


class PassInput(NamedTuple):
    number: int
    """Of the file among those that were given."""
    is_whole: bool
    """Whether all of its queues that can be compacted now are in the pass."""


class PassPlan(NamedTuple):
    queues: QueueRows
    inputs: tuple[PassInput, ...]
    dirty_bytes: int
    """Of these queues."""


def parts_of(index: ExtentIndex) -> Parts:
    """The parts of a file."""
    rows = index.rows
    queue_ids, firsts = index.queues()
    if not len(rows):
        none = numpy.empty(0, numpy.int64)
        return Parts(queue_ids, none, none, none, none, none)
    ends = numpy.append(firsts[1:], len(rows))
    times = rows["max_timestamp"]
    return Parts(
        queue_ids,
        numpy.add.reduceat(rows["length"].astype(numpy.int64), firsts),
        rows["base_offset"][firsts].astype(numpy.int64),
        rows["last_offset"][ends - 1].astype(numpy.int64),
        numpy.minimum.reduceat(times, firsts),
        numpy.maximum.reduceat(times, firsts),
    )


class CompactionStanding(NamedTuple):
    """How far the queues of some files are compacted: columns per part, sorted by queue and file; and per queue."""

    files: Integers
    parts: Parts
    rules: Rules
    """Per part."""
    below: Flags
    """Below the clean end."""
    dirty: Flags
    due: Flags
    """Has, or may have, tombstones whose horizon has passed."""
    firsts: numpy.typing.NDArray[numpy.intp]
    """Per queue, its first part."""

    def per_queue(self, values: Integers) -> Integers:
        """The sum of a column, per queue."""
        if not len(self.firsts):
            return numpy.empty(0, numpy.int64)
        sums: Integers = numpy.add.reduceat(values, self.firsts)
        return sums


def standing(files: Sequence[CompactFile], rules_of: RulesOf, now_ms: int) -> CompactionStanding:
    """How far the queues of these files are compacted that ask for it."""
    numbers = numpy.repeat(numpy.arange(len(files)), [len(file.parts.queue_ids) for file in files])
    parts = _joined([file.parts for file in files])
    order = parts.queue_ids.argsort(kind="stable")
    numbers, parts = numbers[order], parts.of(order)
    rules = rules_of(parts.queue_ids)
    numbers, parts = numbers[rules.compacted], parts.of(rules.compacted)
    rules = rules.of(rules.compacted)
    queue_ids = parts.queue_ids
    new_queue = numpy.ones(len(queue_ids), numpy.bool_)
    new_queue[1:] = queue_ids[1:] != queue_ids[:-1]
    firsts = numpy.flatnonzero(new_queue)
    young = (rules.lag_ms_min > 0) & (parts.newest_ms > now_ms - rules.lag_ms_min)
    young_so_far = numpy.cumsum(young)
    before = (
        numpy.repeat(young_so_far[firsts] - young[firsts], numpy.diff(firsts, append=len(queue_ids)).astype(numpy.intp))
        if len(firsts)
        else young_so_far
    )
    below = young_so_far == before
    clean_ms = numpy.array([file.clean_ms for file in files], numpy.int64)[numbers]
    horizon_ms = numpy.array([file.horizon_ms for file in files], numpy.int64)[numbers]
    passed = numpy.zeros(len(queue_ids), numpy.bool_)
    for number, file in enumerate(files):
        if file.passed is not None:
            mine = numpy.flatnonzero(numbers == number)
            places = numpy.minimum(file.passed.queue_ids.searchsorted(queue_ids[mine]), len(file.passed.queue_ids) - 1)
            known = file.passed.queue_ids[places] == queue_ids[mine]
            passed[mine[known]], horizon_ms[mine[known]] = True, file.passed.horizons_ms[places[known]]
    had = (clean_ms != NEVER_COMPACTED) & ((rules.lag_ms_min == 0) | (parts.newest_ms <= clean_ms - rules.lag_ms_min))
    due = below & (horizon_ms != NO_HORIZON) & (horizon_ms <= now_ms)
    return CompactionStanding(numbers, parts, rules, below, below & ~had & ~passed, due, firsts)


def plan(
    files: Sequence[CompactFile],
    rules_of: RulesOf,
    now_ms: int,
    *,
    drain: bool = False,
    input_bytes_max: int = INPUT_BYTES_MAX,
) -> PassPlan | None:
    """The work to compact next of these files, None when nothing is worth it. Of each queue in them they have all that
    comes before the first runs of a write group. `drain`: whatever is dirty, however little. Tombstones of all queues
    may go; the caller knows of queues that were in another write group before."""
    found = standing(files, rules_of, now_ms)
    if not len(found.firsts):
        return None
    rules, parts = found.rules, found.parts
    dirty = found.per_queue(numpy.where(found.dirty, parts.bytes, 0))
    there = found.per_queue(numpy.where(found.below, parts.bytes, 0))
    late = found.dirty & _are_older(parts, rules.lag_ms_max, now_ms)
    forced = found.per_queue((late | found.due).astype(numpy.int64)) > 0
    line = 0.0 if drain else rules.dirty_ratio[found.firsts]
    worth = forced | ((dirty > 0) & (dirty > line * there))
    counts = numpy.diff(found.firsts, append=len(parts.queue_ids))
    sizes = numpy.array([file.batch_bytes for file in files], numpy.int64)
    if not drain and not forced.any():
        worth = _paid_for(found, worth, dirty, counts, sizes, now_ms)
    worth &= numpy.maximum.reduceat(parts.lasts, found.firsts) < OFFSETS_MAX
    if not worth.any():
        return None
    chosen = _bounded(found, worth, counts, sizes, input_bytes_max)
    if not chosen.any():
        return None
    mine = found.below & numpy.repeat(chosen, counts)
    left_out = ~mine & (found.below | (parts.newest_ms <= now_ms - rules.lag_ms_min))
    inputs = numpy.unique(found.files[mine])
    partial = numpy.isin(inputs, found.files[left_out]) | [files[number].reaches_beyond for number in inputs.tolist()]
    return PassPlan(
        _queue_rows(found, chosen, now_ms),
        tuple(PassInput(int(number), not part) for number, part in zip(inputs, partial.tolist(), strict=True)),
        int(dirty[chosen].sum()),
    )


def _joined(parts: Sequence[Parts]) -> Parts:
    """Those of all files, one file after the other."""
    none = numpy.empty(0, numpy.int64)
    all_parts = [Parts(numpy.empty(0, numpy.uint64), none, none, none, none, none), *parts]
    return Parts(
        numpy.concatenate([one.queue_ids for one in all_parts]),
        numpy.concatenate([one.bytes for one in all_parts]),
        numpy.concatenate([one.firsts for one in all_parts]),
        numpy.concatenate([one.lasts for one in all_parts]),
        numpy.concatenate([one.oldest_ms for one in all_parts]),
        numpy.concatenate([one.newest_ms for one in all_parts]),
    )


def _are_older(parts: Parts, ages_ms: Integers, now_ms: int) -> Flags:
    """Whether each part has records older than that. One without a time is older than any age but those that reach
    back beyond the first time there is, as the age of a topic without a limit does."""
    return numpy.asarray((ages_ms < now_ms) & (parts.oldest_ms < now_ms - numpy.minimum(ages_ms, now_ms)))


def _paid_for(
    found: CompactionStanding,
    worth: Flags,
    dirty: Integers,
    counts: numpy.typing.NDArray[numpy.intp],
    sizes: Integers,
    now_ms: int,
) -> Flags:
    """The queues among those worth it whose pass gains enough for what it writes: all of them, those that have waited
    for long, or none."""

    def bytes_of_files(chosen: Flags) -> int:
        return int(sizes[numpy.unique(found.files[chosen])].sum())

    if int(dirty[worth].sum()) >= GAIN_MIN * bytes_of_files(found.below & numpy.repeat(worth, counts)):
        return worth
    waited = found.dirty & _are_older(found.parts, found.rules.wait_ms, now_ms)
    worth = worth & (found.per_queue(waited.astype(numpy.int64)) > 0)
    mine = numpy.repeat(worth, counts)
    if bytes_of_files(found.dirty & mine) >= COME_MIN * bytes_of_files(found.below & mine):
        return worth
    return numpy.zeros_like(worth)


def _bounded(
    found: CompactionStanding, worth: Flags, counts: numpy.typing.NDArray[numpy.intp], sizes: Integers, bytes_max: int
) -> Flags:
    """The first of the queues that are worth it, as many as have so many bytes of files among them; at least one."""
    places = numpy.flatnonzero(found.below & numpy.repeat(worth, counts))
    queues = numpy.repeat(numpy.arange(len(worth)), counts)[places]
    files, first_uses = numpy.unique(found.files[places], return_index=True)
    if len(files) > INPUTS_MAX:
        bytes_max = min(bytes_max, int(sizes[files].mean()) * INPUTS_MAX // 2)
    costs = numpy.zeros(len(places), numpy.int64)
    costs[first_uses] = sizes[files]
    fits = numpy.cumsum(costs) <= bytes_max
    chosen = worth & (numpy.cumsum(worth) <= QUEUES_MAX)
    if not fits.all():
        too_far = int(queues[int(fits.argmin())])
        first = int(queues[0])
        chosen[max(too_far, first + 1) :] = False
    return chosen


def _queue_rows(found: CompactionStanding, chosen: Flags, now_ms: int) -> QueueRows:
    parts, firsts = found.parts, found.firsts
    ends = numpy.minimum.reduceat(numpy.where(found.below, NO_END, parts.firsts), firsts)
    lasts = numpy.maximum.reduceat(numpy.where(found.below, parts.lasts, -1), firsts)
    rows = numpy.zeros(int(chosen.sum()), QUEUE_ROW)
    queue_ids = parts.queue_ids[firsts][chosen]
    rows["queue_id"], rows["end"], rows["last"] = queue_ids, ends[chosen], lasts[chosen]
    kept_ms = numpy.minimum(found.rules.delete_retention_ms[firsts][chosen], NO_END - now_ms)
    rows["horizon_ms"] = now_ms + kept_ms
    rows["drops"] = 1
    return rows
