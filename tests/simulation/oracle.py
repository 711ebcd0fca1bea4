"""The expected state of a queue: the list of everything that was ever appended to it, and what was promised of it.

The oracle predicts every answer of `append` before it is given (C, D), knows the bytes each offset stands for, so
that whatever is read on whatever path is compared with them (B), and after a crash cuts itself to what is
left, which must reach as far as what was promised (A). A `Violation` is a bug of the system.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from mainstem.kernel.pure.producer_states import place_of
from mainstem.model import AppendResult, BatchAppend, Outcome, QueueRead, QueueSlice, TopicSettings
from mainstem.protocol.records import restamp, stamp_log_append_time

REMEMBERED = 5
"""Batches of a producer that a queue knows again."""


PATIENCE, UNKNOWN_PATIENCE = 100, 10
"""How often a producer is told that it skipped sequence numbers, before it is refused, or begins there if the queue
does not know it."""


Played = TypeVar("Played", covariant=True)


class Violation(AssertionError):
    """An invariant does not hold, or something ended that should have gone on."""

    def __init__(self, what: str, breaks: str = "") -> None:
        """`breaks`: the letter of the invariant; none where an error, not a check, ended the run."""
        super().__init__(f"({breaks}) {what}" if breaks else what)
        self.breaks = breaks


def require(holds: bool, what: str, breaks: str = "") -> None:
    """Raise `Violation` unless it holds; `breaks` is the letter of the invariant."""
    if not holds:
        raise Violation(what, breaks)


def seed_failed(seed: int, error: Exception) -> Violation:
    """The end of a run of this seed; a check that failed keeps its letter, an error has none."""
    failed = Violation(f"seed {seed}: {type(error).__name__}: {error}")
    failed.breaks = error.breaks if isinstance(error, Violation) else ""
    return failed


class PlayedRun(Protocol[Played]):
    """A simulated run of one seed."""

    def play(self) -> Played: ...


def play_seed(run_of: Callable[..., PlayedRun[Played]], seed: int, directory: Path, seconds: float | None) -> Played:
    """Play one run; a failure names its seed."""
    directory.mkdir(parents=True, exist_ok=True)
    run = run_of(seed, directory, seconds=seconds)
    try:
        return run.play()
    except Exception as error:
        raise seed_failed(seed, error) from error


Producer = tuple[int, int]
"""(queue id, producer id)"""


class Kept(NamedTuple):
    """One appended batch, as it must be read back."""

    base_offset: int
    end: int
    max_timestamp: int
    leader_epoch: int
    producer: tuple[int, int, int] | None
    """Producer id, epoch, base sequence."""
    data: bytes
    appended_ms: int
    """When it came, by the node's clock."""


class Refusals:
    """How often the producers of a write group were told that they skipped sequence numbers. Those whose place is the
    same share a count, known and unknown ones apart; in order, only who was told last begins anew."""

    def __init__(self) -> None:
        self._counts: dict[tuple[bool, int], tuple[int, Producer]] = {}

    def forget(self) -> None:
        """The write group has begun to serve anew."""
        self._counts.clear()

    def in_order(self, producer: Producer, known: bool) -> None:
        place = known, place_of(*producer)[0]
        if place in self._counts and self._counts[place][1] == producer:
            del self._counts[place]

    def skipped(self, producer: Producer, known: bool) -> bool:
        """Is it told so once more? Else patience has run out, and begins anew."""
        place = known, place_of(*producer)[0]
        count = self._counts.pop(place, (0, producer))[0]
        if count >= (PATIENCE if known else UNKNOWN_PATIENCE):
            return False
        self._counts[place] = (count + 1, producer)
        return True


@dataclass
class QueueOracle:
    """One queue."""

    queue_id: int
    settings: TopicSettings
    batches: list[Kept] = field(default_factory=list)
    promised_end: int = 0
    """A crash leaves at least this much."""
    log_start: int = 0
    """Never goes back behind this."""
    truncated_to: int = 0
    """The highest log start that anybody asked for."""
    refusals: Refusals = field(default_factory=Refusals)
    """Of the write group that the queue is in."""

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else 0

    # --- append -------------------------------------------------------------------------------------------

    def append(self, batch: BatchAppend, leader_epoch: int, now_ms: int) -> AppendResult:
        """Take a batch; the answer it must get (`log_start_offset` is left open)."""
        producer = None
        if batch.producer_id >= 0:
            producer = (batch.producer_id, batch.producer_epoch, batch.base_sequence)
            refused = self._check(producer, batch.record_count)
            if refused is not None:
                return refused
        data = bytearray(batch.data)
        timestamp, append_time = batch.max_timestamp, -1
        if batch.log_append_time:
            stamp_log_append_time(data, now_ms)
            timestamp = append_time = now_ms
        base_offset = self.end
        restamp(data, base_offset, leader_epoch)
        end = base_offset + batch.last_offset_delta + 1
        self.batches.append(Kept(base_offset, end, timestamp, leader_epoch, producer, bytes(data), now_ms))
        return AppendResult(Outcome.OK, base_offset, append_time)

    def _check(self, producer: tuple[int, int, int], count: int) -> AppendResult | None:
        producer_id, epoch, sequence = producer
        seen = [kept for kept in self.batches if kept.producer is not None and kept.producer[0] == producer_id]
        if not seen:
            return self._skipped(producer_id, known=False) if sequence else self._in_order(producer_id, known=False)
        newest = seen[-1].producer
        assert newest is not None
        if epoch < newest[1]:
            return AppendResult(Outcome.STALE_PRODUCER_EPOCH)
        if epoch > newest[1]:
            return self._skipped(producer_id) if sequence else self._in_order(producer_id)
        same_epoch = [kept for kept in seen if kept.producer is not None and kept.producer[1] == epoch]
        for kept in same_epoch[-REMEMBERED:]:
            if kept.producer == producer and kept.end - kept.base_offset == count:
                return AppendResult(Outcome.OK, kept.base_offset)
        following = newest[2] + seen[-1].end - seen[-1].base_offset
        if sequence == following:
            return self._in_order(producer_id)
        if sequence < following:
            return AppendResult(Outcome.OUT_OF_ORDER_SEQUENCE)
        return self._skipped(producer_id)

    def _in_order(self, producer_id: int, *, known: bool = True) -> AppendResult | None:
        self.refusals.in_order((self.queue_id, producer_id), known)
        return None

    def _skipped(self, producer_id: int, *, known: bool = True) -> AppendResult | None:
        if self.refusals.skipped((self.queue_id, producer_id), known):
            return AppendResult(Outcome.SKIPPED_SEQUENCE)
        return AppendResult(Outcome.OUT_OF_ORDER_SEQUENCE) if known else None

    # --- read ---------------------------------------------------------------------------------------------

    def check_read(self, read: QueueRead, found: QueueSlice, *, log_start: int, end: int) -> None:
        """Is this a right answer? `log_start` and `end` are the queue's before the read."""
        what = f"queue {self.queue_id:#x}: read at {read.offset}"
        offsets = found.offsets
        require(found.outcome in (Outcome.OK, Outcome.OFFSET_OUT_OF_RANGE), f"{what}: {found.outcome}")
        require(offsets.log_start >= log_start, f"{what}: log start went back to {offsets.log_start}", "B")
        require(log_start <= offsets.log_start <= offsets.high_watermark <= offsets.end, f"{what}: {offsets}", "B")
        require(offsets.end <= self.end, f"{what}: ends at {offsets.end}, only {self.end} was appended", "B")
        if found.outcome is Outcome.OFFSET_OUT_OF_RANGE:
            require(read.offset < offsets.log_start or read.offset > end, f"{what}: is in range {offsets}", "B")
            require(not found.batches, f"{what}: batches out of range", "B")
            return
        require(read.offset <= offsets.end and read.offset >= log_start, f"{what}: out of range {offsets}", "B")
        if not found.batches:
            require(found.tier is None and found.next_offset == read.offset, f"{what}: {found}", "B")
            return
        position = self.place(read.offset)
        for data in found.batches:
            require(position < len(self.batches), f"{what}: a batch that nobody appended", "B")
            require(bytes(data) == self.batches[position].data, f"{what}: other bytes at batch {position}", "B")
            position += 1
        end_of_read = self.batches[position - 1].end
        require(end_of_read <= offsets.high_watermark, f"{what}: uncommitted records", "B")
        require(found.next_offset == end_of_read, f"{what}: goes on at {found.next_offset}", "B")
        require(found.tier is not None, f"{what}: served by nobody", "B")

    def place(self, offset: int) -> int:
        """Which batch holds an offset."""
        return bisect_right(self.batches, offset, key=lambda kept: kept.end)

    # --- log start ----------------------------------------------------------------------------------------

    def check_log_start(self, log_start: int, high_watermark: int, now_ms: int, *, final: bool) -> None:
        """May the log start be here? `final`: it will not go back, not by a crash either."""
        what = f"queue {self.queue_id:#x}: log start {log_start}"
        require(log_start >= self.log_start, f"{what}: was {self.log_start} before", "B")
        require(log_start <= high_watermark, f"{what}: beyond the high watermark {high_watermark}", "B")
        if log_start > max(self.truncated_to, self.log_start):
            self._check_retention(log_start, high_watermark, now_ms, what)
        if final:
            self.log_start = log_start

    def _check_retention(self, log_start: int, high_watermark: int, now_ms: int, what: str) -> None:
        settings = self.settings
        first = self.place(max(self.truncated_to, self.log_start))
        last = self.place(log_start - 1)
        require(self.batches[last].end == log_start, f"{what}: inside a batch, moved by nobody", "M")
        require("delete" in settings.cleanup_policy, f"{what}: topic is not to be deleted from", "M")
        left_bytes = sum(len(kept.data) for kept in self.batches[last + 1 :])
        outnumbered = 0 <= settings.retention_records <= high_watermark - log_start
        for kept in reversed(self.batches[first : last + 1]):
            aged_from = min(kept.max_timestamp, kept.appended_ms)  # a record of tomorrow is as old as its place here
            expired = settings.retention_ms >= 0 and aged_from < now_ms - settings.retention_ms
            surplus = settings.retention_bytes >= 0 and left_bytes >= settings.retention_bytes
            require(expired or surplus or outnumbered, f"{what}: retention had no reason to remove {kept[:3]}", "M")
            left_bytes += len(kept.data)

    # --- look-ups -----------------------------------------------------------------------------------------

    def epoch_end(self, epoch: int, log_start: int, high_watermark: int) -> tuple[int, int]:
        """The answer about an epoch older than the current one."""
        answer = (epoch, log_start)
        for kept in self.batches:
            if kept.end > log_start and kept.end <= high_watermark and kept.leader_epoch <= epoch:
                answer = (kept.leader_epoch, kept.end)
        return answer

    # --- crash --------------------------------------------------------------------------------------------

    def survived(self, end: int) -> None:
        """The queue came back with this end."""
        what = f"queue {self.queue_id:#x}"
        require(end >= self.promised_end, f"{what}: lost records from {end} on, {self.promised_end} were promised", "A")
        require(end <= self.end, f"{what}: came back with {end} records, {self.end} were appended", "C")
        while self.batches and self.batches[-1].base_offset >= end:
            self.batches.pop()
        require(self.end == end, f"{what}: came back ending inside a batch, at {end}", "C")
        self.promised_end = end
