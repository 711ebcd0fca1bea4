"""The windows of share groups against a model that knows each offset by itself: whatever members, time and failovers
do, an offset belongs to one member at a time, what was acknowledged is never given out again, what was not is, and
deliveries are counted right."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from uuid import UUID

import pytest

from mainstem.broker.machines.result import Moment, Result, UnknownRecord
from mainstem.broker.share_groups.config import ShareGroupsConfig
from mainstem.broker.share_groups.records import ShareStateCodec, StateLogRecord, WindowKey
from mainstem.broker.share_groups.share_partition import Acquired, BatchSpan
from mainstem.broker.share_groups.share_statistics import ShareCounts
from mainstem.broker.share_groups.state_machine import (
    LogBounds,
    NextRead,
    ReadBatches,
    ShareStateMachine,
    WantedRecords,
    WindowState,
    WrittenState,
)
from mainstem.model import FeatureLevel
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.share_fetch import (
    ACCEPT,
    BATCH_OPTIMIZED,
    GAP,
    RECORD_LIMIT,
    REJECT,
    RELEASE,
    RENEW,
    AcknowledgementBatch,
)
from mainstem.protocol.messages.share_group_state import UNINITIALIZED
from mainstem.protocol.messages.share_state_records import ShareStateBatch
from mainstem.protocol.records import Record

CONFIG = ShareGroupsConfig(
    lock_duration_ms=1_000, delivery_count_limit=3, record_locks_max=40, auto_offset_reset="earliest"
)
KEY = WindowKey("g", UUID(int=7), 3)
MEMBERS = ("ada", "bob", "eve")


def through_the_topic(record: StateLogRecord) -> StateLogRecord:
    written = ShareStateCodec().encode(record, 1, FeatureLevel.newest())
    read = ShareStateCodec().decode(Record(0, written.timestamp, written.key, written.value, ()))
    assert read == record
    return record


class Table:
    """A machine with its log, which may be replayed."""

    def __init__(self, config: ShareGroupsConfig = CONFIG) -> None:
        self.config = config
        self.log: list[StateLogRecord] = []
        self.told: list[WindowKey] = []
        self.now_ms = 1_000
        self.machine = self.made()

    def made(self) -> ShareStateMachine:
        return ShareStateMachine(self.config, ShareCounts(), self.told.append)

    @property
    def now(self) -> Moment:
        return Moment(self.now_ms, self.now_ms)

    def take(self, result: Result) -> object:
        self.log += map(through_the_topic, result.records)
        return result.answers[0].response if result.answers else None

    def failover(self) -> None:
        self.machine = self.made()
        for record in self.log:
            self.machine.replay(record)
        self.take(self.machine.recovered(self.now))

    def cut(self) -> None:
        """The log is a snapshot from now on."""
        self.log = [
            through_the_topic(record) for key in self.machine.sections() for record in self.machine.snapshot(key)
        ]

    def begin(self, end: int, log_start: int = 0) -> int | None:
        answer = self.take(self.machine.begin(1, KEY, LogBounds(log_start, end), self.now))
        assert isinstance(answer, NextRead)
        return answer.offset

    def acquire(
        self, member: str, offset: int, spans: list[BatchSpan], records: int, mode: int = BATCH_OPTIMIZED
    ) -> list[Acquired]:
        read, wanted = ReadBatches(offset, spans, spans[-1].last + 1 if spans else offset), WantedRecords(records, mode)
        answer = self.take(self.machine.acquire(1, KEY, member, read, wanted, self.now))
        assert isinstance(answer, list)
        return answer

    def acknowledge(self, member: str, *batches: tuple[int, int, tuple[int, ...]]) -> ErrorCode:
        said = [
            AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
            for first, last, types in batches
        ]
        answer = self.take(self.machine.acknowledge(1, KEY, member, said, self.now))
        assert isinstance(answer, ErrorCode)
        return answer

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        self.take(self.machine.advance(self.now))


@dataclass
class Offset:
    owner: str | None = None
    lock_ends_ms: int = 0
    deliveries: int = 0
    noted: int = 0
    """Deliveries that the log knows."""
    done: str = ""
    """Its end."""


@dataclass
class Model:
    offsets: dict[int, Offset] = field(default_factory=dict)

    def give_back(self, at: int) -> None:
        it = self.offsets[at]
        it.owner, it.noted = None, it.deliveries
        if it.deliveries >= CONFIG.delivery_count_limit:
            it.done = "archived"

    def held(self, member: str) -> list[int]:
        return sorted(at for at, it in self.offsets.items() if it.owner == member)


def batches_of(random: Random) -> list[BatchSpan]:
    """Batches of some records, with gaps between them."""
    spans, position = [], random.randrange(3)
    for _ in range(random.randint(10, 30)):
        size = random.randint(1, 8)
        spans.append(BatchSpan(position, position + size - 1))
        position += size + (random.randrange(1, 9) if random.random() < 0.2 else 0)
    return spans


def fetch(table: Table, model: Model, spans: list[BatchSpan], random: Random, member: str) -> int:
    """Returns how many offsets the member gets, which are checked."""
    end = spans[-1].last + 1
    offset = table.begin(end)
    if offset is None or offset >= end:
        return 0
    read = [span for span in spans if span.last >= offset][: random.randint(1, 4)]
    mode, records = random.choice((BATCH_OPTIMIZED, RECORD_LIMIT)), random.randint(1, 12)
    got = table.acquire(member, offset, read, records, mode)
    size = 0
    for run in got:
        for at in range(run.first, run.last + 1):
            assert any(span.first <= at <= span.last for span in read), "of what was read"
            it = model.offsets.setdefault(at, Offset())
            assert it.owner is None, f"{at} belongs to {it.owner}"
            assert not it.done, f"{at} is {it.done}"
            it.deliveries += 1
            assert it.deliveries == run.deliveries
            it.owner, it.lock_ends_ms = member, table.now_ms + CONFIG.lock_duration_ms
            size += 1
    if mode == RECORD_LIMIT:
        assert size <= records
    return size


def acknowledge(table: Table, model: Model, random: Random, member: str) -> None:
    held = model.held(member)
    if not held:
        return
    first = random.choice(held)
    last = first
    while last + 1 in held and random.random() < 0.8:
        last += 1
    kinds = tuple(random.choice((ACCEPT, ACCEPT, RELEASE, REJECT, RENEW, GAP)) for _ in range(first, last + 1))
    others = [name for name in MEMBERS if name != member]
    before = len(table.log)
    assert table.acknowledge(random.choice(others), (first, last, kinds)) is ErrorCode.INVALID_RECORD_STATE
    assert len(table.log) == before, "nothing of a refused request is done"
    assert table.acknowledge(member, (first, last, kinds)) is ErrorCode.NONE
    for at, kind in zip(range(first, last + 1), kinds, strict=True):
        it = model.offsets[at]
        if kind == RENEW:
            it.lock_ends_ms = table.now_ms + CONFIG.lock_duration_ms
        elif kind == RELEASE:
            model.give_back(at)
        else:
            it.owner, it.done = None, "accepted" if kind == ACCEPT else "archived"


@pytest.mark.parametrize("seed", range(150))
def test_whatever_happens(seed: int) -> None:
    random = Random(seed)
    table, model, spans = Table(), Model(), batches_of(random)
    for _ in range(120):
        member, dice = random.choice(MEMBERS), random.random()
        if dice < 0.4:
            fetch(table, model, spans, random, member)
        elif dice < 0.8:
            acknowledge(table, model, random, member)
        elif dice < 0.88:
            table.pass_time(random.choice((1, 400, 1_001)))
            for at, it in model.offsets.items():
                if it.owner is not None and it.lock_ends_ms <= table.now_ms:
                    model.give_back(at)
        elif dice < 0.92:
            table.take(table.machine.release(1, [KEY], member, table.now))
            for at in model.held(member):
                model.give_back(at)
        elif dice < 0.96:
            table.failover()
            for it in model.offsets.values():
                it.owner, it.deliveries = None, it.noted
        else:
            table.cut()
            for it in model.offsets.values():
                it.noted = it.deliveries
        for window in table.machine.windows.values():
            assert window.end - window.start <= CONFIG.record_locks_max + 8, "bounded, but for gaps that were read over"
            assert window.start <= min((at for at, it in model.offsets.items() if not it.done), default=window.start)
    for _ in range(1_000):  # one member takes all that is left
        table.pass_time(1_001)
        for at, it in model.offsets.items():
            if it.owner is not None:
                model.give_back(at)
        if table.begin(spans[-1].last + 1) == spans[-1].last + 1:
            break
        fetch(table, model, spans, random, "ada")
        for at in model.held("ada"):
            assert table.acknowledge("ada", (at, at, (ACCEPT,))) is ErrorCode.NONE
            model.offsets[at].owner, model.offsets[at].done = None, "accepted"
    for span in spans:
        for at in range(span.first, span.last + 1):
            assert model.offsets[at].done, f"{at} was never done"
    assert not table.machine.windows[KEY].runs


def test_what_was_acknowledged_is_remembered_without_what_was_acquired() -> None:
    table = Table()
    assert table.begin(10) == 0
    assert table.acquire("ada", 0, [BatchSpan(0, 9)], 1) == [Acquired(0, 9, 1)]
    assert table.acknowledge("ada", (0, 1, (ACCEPT,)), (5, 6, (ACCEPT, RELEASE))) is ErrorCode.NONE
    table.failover()
    assert table.begin(10) == 2
    assert table.acquire("bob", 2, [BatchSpan(0, 9)], 100) == [Acquired(2, 4, 1), Acquired(6, 6, 2), Acquired(7, 9, 1)]


def test_those_who_wait_are_told_when_a_lock_runs_out() -> None:
    table = Table()
    table.begin(1)
    table.acquire("ada", 0, [BatchSpan(0, 0)], 1)
    result = table.machine.advance(table.now)
    assert result.wake_at_ms == table.now_ms + CONFIG.lock_duration_ms
    table.told.clear()
    table.pass_time(CONFIG.lock_duration_ms)
    assert table.told == [KEY]
    assert table.acknowledge("ada", (0, 0, (ACCEPT,))) is ErrorCode.INVALID_RECORD_STATE


def test_a_group_begins_at_the_end_unless_told_otherwise() -> None:
    latest = Table(ShareGroupsConfig())
    assert latest.begin(7) == 7
    latest.failover()
    assert latest.begin(9) == 7, "where it began is remembered"


def test_retention_moves_the_window() -> None:
    table = Table()
    table.begin(10)
    table.acquire("ada", 0, [BatchSpan(0, 9)], 1)
    assert table.begin(20, log_start=6) == 10
    assert table.acknowledge("ada", (4, 5, (ACCEPT,))) is ErrorCode.INVALID_RECORD_STATE
    assert table.acknowledge("ada", (6, 6, (RELEASE,))) is ErrorCode.NONE
    table.failover()
    assert table.begin(20, log_start=6) == 6


@pytest.mark.parametrize("accepted", [(ACCEPT,), (ACCEPT, REJECT, ACCEPT, ACCEPT, ACCEPT, REJECT, ACCEPT, ACCEPT)])
def test_a_batch_whose_first_records_retention_took_is_acknowledged_from_there_on(accepted: tuple[int, ...]) -> None:
    table = Table()
    table.begin(10)
    table.acquire("ada", 0, [BatchSpan(0, 9)], 1)
    assert table.begin(20, log_start=4) == 10
    assert table.acknowledge("bob", (0, 7, accepted)) is ErrorCode.INVALID_RECORD_STATE
    assert table.acknowledge("ada", (0, 7, accepted)) is ErrorCode.NONE
    assert table.acknowledge("ada", (0, 7, accepted)) is ErrorCode.INVALID_RECORD_STATE, "nothing of it is left"
    table.failover()
    assert table.begin(20, log_start=4) == 8, "what was worked on is given out no more"


def test_windows_of_a_group_or_a_topic_are_forgotten() -> None:
    table = Table()
    for of in ("g", KEY.topic_id):
        table.begin(10)
        table.acquire("ada", 0, [BatchSpan(0, 9)], 1)
        table.acknowledge("ada", (0, 9, (ACCEPT,)))
        assert table.begin(10) == 10
        assert table.take(table.machine.forget(1, of, table.now)) == 1
        table.failover()
        assert not table.machine.windows
        assert table.begin(10) == 0


def test_windows_are_bounded() -> None:
    table = Table(ShareGroupsConfig(windows_max=1))
    table.begin(1)
    other = KEY._replace(partition=9)
    assert table.take(table.machine.begin(1, other, LogBounds(0, 1), table.now)) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_records_of_a_later_version_are_handed_on() -> None:
    table = Table()
    later = UnknownRecord(b"\x00\x09k", b"v", 5)
    table.machine.replay(later)
    table.cut()
    assert table.log == [later]


def test_a_group_begins_anew_and_the_log_tells_the_same() -> None:
    """Behind an offset that an administrator has set nothing is done, whatever was; so it is after a failover, and from
    a snapshot."""
    for cut in (False, True):
        table = Table()
        assert table.begin(20) == 0
        table.acquire("ada", 0, [BatchSpan(0, 9)], 10)
        assert table.acknowledge("ada", (0, 9, (ACCEPT,))) is ErrorCode.NONE
        assert table.take(table.machine.initialize(1, KEY, 5, 3, table.now)) is ErrorCode.NONE
        assert table.take(table.machine.initialize(1, KEY, 4, 0, table.now)) is ErrorCode.FENCED_STATE_EPOCH
        if cut:
            table.cut()
        table.failover()
        assert table.take(table.machine.read(1, [KEY], table.now)) == [WindowState(5, 0, 3, (), 0)]
        assert table.begin(20) == 3
        assert table.acquire("bob", 3, [BatchSpan(0, 9)], 10) == [Acquired(3, 9, 1)]


def test_a_group_that_is_initialized_without_an_offset_begins_where_it_is_configured_to() -> None:
    table = Table()
    table.take(table.machine.initialize(1, KEY, 2, UNINITIALIZED, table.now))
    table.failover()
    assert table.begin(20, log_start=6) == 6
    assert table.take(table.machine.read(1, [KEY], table.now)) == [WindowState(2, 0, 6, (), 0)]


def test_records_that_are_hidden_from_a_group_hold_nobody_up() -> None:
    """Batches of aborted transactions stand between, before and behind those that a read brings."""
    table = Table()
    assert table.begin(30) == 0
    read = ReadBatches(0, [BatchSpan(5, 9), BatchSpan(15, 16)], 20)
    answer = table.take(table.machine.acquire(1, KEY, "ada", read, WantedRecords(100, BATCH_OPTIMIZED), table.now))
    assert answer == [Acquired(5, 9, 1), Acquired(15, 16, 1)]
    assert table.acknowledge("ada", (5, 9, (ACCEPT,)), (15, 16, (ACCEPT,))) is ErrorCode.NONE
    assert table.begin(30) == 20
    hidden = ReadBatches(20, [], 30)
    assert table.take(table.machine.acquire(1, KEY, "ada", hidden, WantedRecords(9, BATCH_OPTIMIZED), table.now)) == []
    assert table.begin(30) == 30


def test_what_a_broker_writes_is_sound_or_refused_as_a_whole() -> None:
    table = Table()
    table.take(table.machine.initialize(1, KEY, 0, 10, table.now))

    def written(first: int, last: int, state: int, count: int = 1) -> object:
        good = ShareStateBatch(first_offset=12, last_offset=12, delivery_state=2, delivery_count=1)
        batch = ShareStateBatch(first_offset=first, last_offset=last, delivery_state=state, delivery_count=count)
        return table.take(table.machine.write(1, KEY, WrittenState(0, 0, -1, (good, batch)), table.now))

    for bad in ((14, 13, 2), (-1, 3, 2), (14, 15, 1), (14, 15, 3), (14, 15, 2, -1), (14, 50, 2)):
        assert written(*bad) is ErrorCode.INVALID_REQUEST, bad
    assert table.take(table.machine.read(1, [KEY], table.now)) == [WindowState(0, 0, 10, (), 0)]
    assert written(10, 11, 4) is ErrorCode.NONE
    table.failover()
    assert table.take(table.machine.read(1, [KEY], table.now)) == [WindowState(0, 0, 13, (), 0)]
