"""Windows from which the host took a processor are told apart by what the kernel counts, not by their latencies."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.process_tree import TICKS
from bench.short_windows import STOLEN_SECONDS_MOST, ShortWindow, figures_of_windows
from bench.stolen_time import StolenTime
from tests.bench.load_result import load_result


def write_stat(path: Path, *stolen: int) -> None:
    lines = [f"cpu{core} 10 20 30 40 50 60 70 {ticks} 90 0" for core, ticks in enumerate(stolen)]
    path.write_text("\n".join([f"cpu  0 0 0 0 0 0 0 {sum(stolen)} 0 0", *lines, "intr 5", ""]))


def test_stolen_is_what_the_processor_lost_that_lost_most(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    write_stat(stat, 100, 200, 300)
    stolen = StolenTime((0, 1), stat)
    assert stolen.most_seconds() == 0.0
    write_stat(stat, 103, 201, 399)  # the third is not the bench's
    assert stolen.most_seconds() == pytest.approx(3 / TICKS)


def test_a_system_that_does_not_count_tells_of_nothing(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu 1 2 3 4\ncpu0 1 2 3 4\n")
    assert StolenTime((0,), stat).most_seconds() == 0.0
    assert StolenTime((0,)).most_seconds() >= 0.0, "this machine"


def window(*latencies_ms: int, stolen_seconds: float = 0.0) -> ShortWindow:
    result = load_result(seconds=1.0, size=0)
    result["latency_buckets"] = [(one * 1_000_000, 1) for one in sorted(latencies_ms)]
    result["latency_us"]["p99"] = result["latency_us"]["max"] = max(latencies_ms) * 1000
    return ShortWindow(result, stolen_seconds)


def test_windows_that_lost_a_processor_are_left_out_of_one_figure() -> None:
    windows = [window(1, 2), window(1, 110, stolen_seconds=0.1), window(1, 30), window(1, 3, stolen_seconds=0.01)]
    figures = figures_of_windows(windows)
    assert (figures["p99_ms"], figures["whole_p99_ms"]) == (110.0, 30.0), "a stall of ours counts"
    assert (figures["windows"], figures["whole_windows"], figures["stalled_windows"]) == (4, 3, 50.0)
    assert figures["window_p99_ms"] == 16.5


def test_without_a_whole_window_there_is_no_figure_of_whole_ones() -> None:
    figures = figures_of_windows([window(1, stolen_seconds=2 * STOLEN_SECONDS_MOST)])
    assert "whole_p99_ms" not in figures
    assert figures["whole_windows"] == 0
