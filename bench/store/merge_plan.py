"""The result that the planner of merges makes of a long ingest: writes per byte, files, extents.

    python -m bench.store.merge_plan --tebibytes 1
    python -m bench.store.merge_plan --tebibytes 0.25 --aged-after 60 --only queues

One line per kind of load. No byte is written: the spans of one write group are counted, as the planner's choices
replace them; the other groups fare the same. `writes` is bytes written per byte taken in, the run included; `files` and
`extents` are those of merged files per TiB, `runs` the files that wait (of 64 MiB, shared with the other groups);
`drained` is all files per TiB after everything was merged; `outlived` the share of merged bytes in files that have
bytes of a retention class which is kept longer.
"""

from __future__ import annotations

import argparse
import bisect
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy

from mainstem.storage.extents.extent_format import EXTENT_BYTES
from mainstem.storage.extents.extent_index import QueueIds
from mainstem.storage.merging.merge_lines import NEVER, Integers, MergeLines
from mainstem.storage.merging.merge_outputs import Output, cut, lifetime_of
from mainstem.storage.merging.merge_plan import Choice, choose
from mainstem.storage.merging.merge_spans import RUNS, SpanSummary, fullness_of, summarize

TEBIBYTE = 1 << 40
RUN_BYTES = 64 << 20
WRITE_GROUPS = 4
BATCH_BYTES = 1100
LINES = MergeLines()

Classes = Callable[[QueueIds], list[str]]
"""The retention class of each queue."""

Draw = Callable[[numpy.random.Generator, int], numpy.typing.NDArray[numpy.int64]]
"""The queues of so many batches of a write group."""


def one_class(queue_ids: QueueIds) -> list[str]:
    return ["forever"] * len(queue_ids)


def mixed_classes(queues_per_topic: int, classes: int) -> Classes:
    """Topics of so many queues in this write group have one of these retention classes each, in no order."""
    names = [f"ms-{1 << (22 + number)}" for number in range(classes - 1)] + ["forever"]

    def classes_of(queue_ids: QueueIds) -> list[str]:
        topics = queue_ids // numpy.uint64(queues_per_topic)
        return [
            names[number]
            for number in (
                (topics * numpy.uint64(2_654_435_761)) % numpy.uint64(2**32) // numpy.uint64(2**32 // classes + 1)
            ).tolist()
        ]

    return classes_of


class Load(NamedTuple):
    name: str
    draw: Draw
    batch_bytes: int = BATCH_BYTES
    classes: Classes = one_class


class Outcome(NamedTuple):
    writes: float
    """Bytes written per byte taken in."""
    files: int
    """Merged files, of this write group."""
    runs: float
    """Files of runs, this write group's share."""
    extents: int
    """Of merged files."""
    merged_bytes: int
    taken_bytes: int
    widest: int
    """Spans of the largest merge."""
    below_line: int
    """Files below their line that lie in spans of more bytes than it."""
    outlived_bytes: int
    """Of merged files, bytes beside those of a retention class that is kept longer."""


class _Span(NamedTuple):
    summary: SpanSummary
    queue_ids: QueueIds
    sizes: Integers
    files: int
    outlived_bytes: int = 0


class Store:
    """The spans of one write group."""

    def __init__(
        self,
        lines: MergeLines,
        segment_bytes: int,
        span_bytes: int,
        classes: Classes = one_class,
        aged_after: int | None = None,
    ) -> None:
        """`aged_after`: a run is aged when so many came after it; None: none is."""
        self._lines = lines
        self._aged_after = aged_after
        self._classes = classes
        self._segment_line = lines.segment_line(segment_bytes)
        self._span_bytes = span_bytes
        self._spans: list[_Span] = []
        self._block = 0
        self._taken = self._written = self._widest = self._below_line = 0

    def take(self, queues: Integers, batch_bytes: int) -> None:
        """A run arrives; then everything is merged that is worth it."""
        queue_ids, batches = numpy.unique(queues, return_counts=True)
        sizes = batches * batch_bytes
        summary = summarize(self._block, self._block + 1, RUNS, queue_ids.astype(numpy.uint64), sizes)
        self._block += 1
        self._spans.append(_Span(summary, queue_ids.astype(numpy.uint64), sizes, 1))
        self._taken += summary.bytes
        self._written += summary.bytes
        self.merge()

    def merge(self, *, drain: bool = False) -> None:
        while choice := choose(
            [span.summary for span in self._spans], self._lines, self._line_of, drain=drain, aged=self._aged()
        ):
            self._replace(choice)

    def _aged(self) -> int:
        if self._aged_after is None:
            return 0
        return bisect.bisect_right(self._spans, self._block - 1 - self._aged_after, key=lambda span: span.summary.upto)

    def outcome(self) -> Outcome:
        merged = [span for span in self._spans if span.summary.level > RUNS]
        return Outcome(
            writes=self._written / self._taken,
            files=sum(span.files for span in merged),
            runs=(len(self._spans) - len(merged)) * self._span_bytes / RUN_BYTES,
            extents=sum(span.summary.row_count for span in merged),
            merged_bytes=sum(span.summary.bytes for span in merged),
            taken_bytes=self._taken,
            widest=self._widest,
            below_line=self._below_line,
            outlived_bytes=sum(span.outlived_bytes for span in merged),
        )

    def _line_of(self, queue_ids: QueueIds) -> Integers:
        return numpy.full(len(queue_ids), self._segment_line if self._segment_line else NEVER, numpy.int64)

    def _replace(self, choice: Choice) -> None:
        inputs = self._spans[choice.first : choice.end]
        queue_ids, place = numpy.unique(numpy.concatenate([span.queue_ids for span in inputs]), return_inverse=True)
        sizes = numpy.bincount(place, numpy.concatenate([span.sizes for span in inputs])).astype(numpy.int64)
        classes = self._classes(queue_ids)
        outputs = cut(queue_ids, sizes, self._line_of(queue_ids), classes, self._lines)
        assert sum(output.bytes for output in outputs if not output.is_segment) <= int(sizes.sum())
        rows = int(numpy.maximum(1, sizes // EXTENT_BYTES).sum())
        summary = summarize(inputs[0].summary.after, inputs[-1].summary.upto, choice.level, queue_ids, sizes, rows=rows)
        line = self._segment_line or NEVER
        fullness = fullness_of(
            numpy.array([output.bytes for output in outputs]),
            numpy.array([line if output.is_segment else NEVER for output in outputs], numpy.int64),
            self._lines,
        )
        summary = summary._replace(file_count=len(outputs), fullness=fullness)
        self._spans[choice.first : choice.end] = [
            _Span(summary, queue_ids, sizes, len(outputs), outlived_bytes(outputs, queue_ids, sizes, classes))
        ]
        self._written += summary.bytes
        self._widest = max(self._widest, len(inputs))
        self._below_line += sum(1 for output in outputs if output.bytes < min(self._lines.packed_bytes, summary.bytes))


def outlived_bytes(outputs: Sequence[Output], queue_ids: QueueIds, sizes: Integers, classes: Sequence[str]) -> int:
    """Bytes of these files beside bytes of a class that is kept longer."""
    lifetimes = numpy.array([lifetime_of(name) for name in classes])
    total = 0
    for output in outputs:
        if not output.is_segment:
            first = int(queue_ids.searchsorted(numpy.uint64(output.first_queue)))
            end = int(queue_ids.searchsorted(numpy.uint64(output.last_queue), side="right"))
            total += int(sizes[first:end][lifetimes[first:end] < lifetimes[first:end].max()].sum())
    return total


def play(
    load: Load,
    taken_bytes: int,
    *,
    lines: MergeLines = LINES,
    segment_bytes: int = 1 << 30,
    span_bytes: int = RUN_BYTES // WRITE_GROUPS,
    aged_after: int | None = None,
    seed: int = 0,
) -> tuple[Outcome, Outcome]:
    """So many bytes of this load through one write group: what there is then, and after everything was merged.
    `span_bytes`: of a run, of this write group."""
    random = numpy.random.default_rng(seed)
    batches = max(1, span_bytes // load.batch_bytes)
    store = Store(lines, segment_bytes, span_bytes, load.classes, aged_after)
    for _ in range(taken_bytes // (batches * load.batch_bytes)):
        store.take(load.draw(random, batches), load.batch_bytes)
    before = store.outcome()
    store.merge(drain=True)
    return before, store.outcome()


def even(queues: int) -> Draw:
    """All queues get the same."""
    return lambda random, batches: random.integers(0, queues, batches)


def skewed(queues: int) -> Draw:
    """Queue n gets one nth of what the first gets."""
    weights = 1.0 / numpy.arange(1, queues + 1)
    ends = numpy.cumsum(weights / weights.sum())
    return lambda random, batches: numpy.minimum(ends.searchsorted(random.random(batches)), queues - 1)


def mixed(few: int, many: int, share: float) -> Draw:
    """A few queues get this share, many the rest; one of the few has its id amid each part of the many."""
    step = max(1, many // few)

    def draw(random: numpy.random.Generator, batches: int) -> numpy.typing.NDArray[numpy.int64]:
        small = random.integers(0, many, batches) * 2
        large = random.integers(0, few, batches) * step * 2 + 1
        return numpy.where(random.random(batches) < share, large, small)

    return draw


LOADS = (
    Load("4 queues", even(1)),
    Load("40 queues", even(10)),
    Load("100 queues", even(25)),
    Load("400 queues", even(100)),
    Load("10,000 queues", even(2_500)),
    Load("a million queues", even(250_000)),
    Load("ten million queues", even(2_500_000)),
    Load("a million queues, skewed", skewed(250_000)),
    Load("20 large queues (90 %), a million", mixed(5, 250_000, 0.9)),
    Load("20 large queues (50 %), a million", mixed(5, 250_000, 0.5)),
    Load("400 queues, 8 classes", even(100), classes=mixed_classes(1, 8)),
    Load("1,000 topics, 8 classes", even(2_500), classes=mixed_classes(3, 8)),
    Load("100 topics, 8 classes", even(2_500), classes=mixed_classes(25, 8)),
    Load("10,000 topics, 16 classes", even(25_000), classes=mixed_classes(3, 16)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="loads whose name has this in it")
    parser.add_argument(
        "--tebibytes", type=float, default=1.0, help="taken in by the node's four write groups together"
    )
    parser.add_argument(
        "--aged-after", type=int, help="runs: as in the remote tier, one is aged when so many came since"
    )
    options = parser.parse_args()
    titles = f"{'load of the node':36}{'writes':>8}{'files':>8}{'extents':>13}{'runs':>7}{'drained':>9}"
    print(f"{titles}{'outlived':>10}{'seconds':>9}")
    for load in (one for one in LOADS if options.only in one.name):
        begun = time.perf_counter()
        taken = int(options.tebibytes * TEBIBYTE) // WRITE_GROUPS
        before, after = play(load, taken, aged_after=options.aged_after)
        per_tebibyte = TEBIBYTE / max(1, before.merged_bytes)
        print(
            f"{load.name:36}{after.writes:8.2f}{before.files * per_tebibyte:8.0f}{before.extents * per_tebibyte:13,.0f}"
            f"{before.runs * WRITE_GROUPS:7.0f}{after.files * TEBIBYTE / after.taken_bytes:9.0f}"
            f"{after.outlived_bytes / max(1, after.merged_bytes):10.1%}"
            f"{time.perf_counter() - begun:9.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
