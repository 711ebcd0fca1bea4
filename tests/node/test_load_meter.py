"""A node measures its load from counters: rates that follow what lasts, not bursts, and a bounded number of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.fakes.clock import FakeClock

from mainstem.node.load_meter import (
    GROUPS_WITH_QUEUES_MAX,
    SMOOTHED_SECONDS,
    DiskRoom,
    LoadMeter,
    SmoothedRate,
    WriteGroupTotals,
    room_at,
    usable_processors,
)
from mainstem.rpc.messages.loads import WRITE_GROUPS_TOLD_MAX, ToldLoad, ToldQueuePart


class Counted:
    """Counters that a test moves."""

    def __init__(self) -> None:
        self.groups: dict[int, WriteGroupTotals] = {}
        self.bytes_read = self.slices_read = 0
        self.synced = 0.0
        self.looks: list[float] = []
        self.busy: dict[int, Sequence[ToldQueuePart]] = {}

    def served(self) -> Sequence[WriteGroupTotals]:
        return list(self.groups.values())

    def read_bytes(self) -> int:
        return self.bytes_read

    def reads(self) -> int:
        return self.slices_read

    def sync_seconds(self) -> float:
        return self.synced

    def look_at_queues(self, now: float) -> None:
        self.looks.append(now)

    def busiest(self, group: int) -> Sequence[ToldQueuePart]:
        return self.busy.get(group, ())


def test_rates_are_those_of_the_counters_from_the_first_seconds_on() -> None:
    clock, counted, cpu = FakeClock(), Counted(), [0.0]
    meter = LoadMeter(counted, clock.monotonic, lambda: cpu[0], 2, lambda: DiskRoom(30, 100))
    assert meter.measured() == ToldLoad()
    for second in range(1, 11):
        counted.groups = {0: WriteGroupTotals(0, 3000 * second, 30 * second), 1: WriteGroupTotals(1, 1000 * second, 0)}
        counted.bytes_read, counted.slices_read, counted.synced = 8000 * second, 40 * second, 0.25 * second
        cpu[0] = 0.5 * second
        clock.advance(1)
        load = meter.measured()
    first, second_ = load.write_groups
    assert (first.group, second_.group) == (0, 1), "the busiest first"
    assert first.bytes_in == pytest.approx(3000)
    assert first.bytes_out == pytest.approx(6000), "reads are divided as the bytes that come in are"
    assert first.requests == pytest.approx(30 + 30)
    assert first.seconds == 9, "the first look only notes where the counters are"
    assert second_.bytes_in == pytest.approx(1000)
    assert load.cpu_share == pytest.approx(0.25)
    assert load.sync_share == pytest.approx(0.25)
    assert (load.write_free_bytes, load.write_total_bytes, load.store_total_bytes) == (30, 100, 0)


def test_a_burst_fades_and_who_asks_too_often_gets_the_last_measure() -> None:
    clock, counted = FakeClock(), Counted()
    meter = LoadMeter(counted, clock.monotonic, lambda: 0.0)
    counted.groups = {0: WriteGroupTotals(0, 0, 0)}
    clock.advance(100)
    meter.measured()
    counted.groups = {0: WriteGroupTotals(0, 1_000_000, 0)}
    clock.advance(0.5)
    assert meter.measured().write_groups[0].bytes_in == 0
    clock.advance(0.5)
    burst = meter.measured().write_groups[0].bytes_in
    clock.advance(4 * SMOOTHED_SECONDS)
    assert 0 < meter.measured().write_groups[0].bytes_in < burst / 50


def test_a_write_group_that_comes_back_is_measured_anew() -> None:
    clock, counted = FakeClock(), Counted()
    meter = LoadMeter(counted, clock.monotonic, lambda: 0.0)
    for groups in ({0: WriteGroupTotals(0, 0, 0)}, {}, {0: WriteGroupTotals(0, 10**9, 10**6)}):
        counted.groups = groups
        clock.advance(5)
        load = meter.measured()
    assert [(it.bytes_in, it.seconds) for it in load.write_groups] == [(0, 0)]


def test_the_busiest_of_very_many_write_groups_are_told() -> None:
    clock, counted = FakeClock(), Counted()
    meter = LoadMeter(counted, clock.monotonic, lambda: 0.0)
    for turn in (0, 1):
        counted.groups = {it: WriteGroupTotals(it, turn * it, 0) for it in range(WRITE_GROUPS_TOLD_MAX + 500)}
        clock.advance(5)
        load = meter.measured()
    assert len(load.write_groups) == WRITE_GROUPS_TOLD_MAX
    assert min(it.group for it in load.write_groups) == 500


def test_the_busy_queues_of_the_busiest_write_groups_are_told() -> None:
    clock, counted = FakeClock(), Counted()
    meter = LoadMeter(counted, clock.monotonic, lambda: 0.0)
    groups = range(GROUPS_WITH_QUEUES_MAX + 3)
    counted.busy = {group: [ToldQueuePart(100 + group, 0.5)] for group in groups}
    for turn in (0, 1):
        counted.groups = {it: WriteGroupTotals(it, turn * it * 1000, 0) for it in groups}
        clock.advance(5)
        load = meter.measured()
    assert counted.looks == [clock.monotonic() - 5, clock.monotonic()]
    told = {it.group: [queue.queue_id for queue in it.busiest] for it in load.write_groups}
    assert {group for group, queues in told.items() if queues} == set(groups[3:])
    assert all(queues == [100 + group] for group, queues in told.items() if queues)


def test_a_counter_that_goes_back_is_no_load() -> None:
    rate = SmoothedRate(100, 0.0)
    rate.look(50, 1.0)
    assert rate.per_second == 0
    rate.look(150, 2.0)
    assert 0 < rate.per_second <= 100


def test_a_node_without_storage_tells_its_processors_alone() -> None:
    clock = FakeClock()
    meter = LoadMeter(None, clock.monotonic, lambda: clock.monotonic() / 2)
    clock.advance(3)
    load = meter.measured()
    assert load.cpu_share == pytest.approx(0.5)
    assert load == ToldLoad(cpu_share=load.cpu_share)


def test_rooms_are_those_of_the_disk_and_none_of_a_directory_that_is_gone(tmp_path: Path) -> None:
    room = room_at(tmp_path)
    assert 0 < room.free_bytes <= room.total_bytes
    assert room_at(tmp_path / "gone") == DiskRoom(0, 0)
    assert usable_processors() >= 1
