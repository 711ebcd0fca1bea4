"""Results keep every value; medians and ratios come from them, and a file gives back what was put in."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.metrics import figures_of, pooled_ms
from bench.results import Results, Row, Spread, load_results
from tests.bench.load_result import load_result

ROW = Row("1", "a row", "on disk", queues=16)


def filled() -> Results:
    results = Results({"when": "now"})
    for value in (30.0, 10.0, 20.0):
        results.add(ROW, "mainstem", {"mb_per_s": value})
    results.add(ROW, "kafka", {"mb_per_s": 8.0})
    return results


def test_spread_is_of_all_repetitions() -> None:
    assert filled().spread(ROW, "mainstem", "mb_per_s") == Spread(20.0, 10.0, 30.0, 3)


def test_ratio_is_of_medians() -> None:
    assert filled().ratio(ROW, "mb_per_s", "mainstem", "kafka") == 2.5


@pytest.mark.parametrize(("row", "metric"), [(None, "mb_per_s"), (Row("9", "b"), "mb_per_s"), (ROW, "p99_ms")])
def test_what_was_not_measured_is_none(row: Row | None, metric: str) -> None:
    results = filled()
    assert results.median(row, "mainstem", metric) is None
    assert results.ratio(row, metric, "mainstem", "kafka") is None


def test_rows_differ_by_durability() -> None:
    results = filled()
    other = Row("1", "a row", "page cache", queues=16)
    results.add(other, "mainstem", {"mb_per_s": 1.0})
    assert results.find("1", "a row", "page cache") == other
    assert results.find("1", "a row") == ROW
    assert results.find("2", "a row") is None


def test_a_file_gives_back_what_was_put_in(tmp_path: Path) -> None:
    results = filled()
    results.notes.append("a note")
    results.save(tmp_path / "one.json")
    loaded = load_results(tmp_path / "one.json")
    assert (loaded.facts, loaded.notes, loaded.rows) == ({"when": "now"}, ["a note"], [ROW])
    assert loaded.spread(ROW, "mainstem", "mb_per_s") == results.spread(ROW, "mainstem", "mb_per_s")
    assert [path.name for path in tmp_path.iterdir()] == ["one.json"]


def test_latencies_of_several_windows_are_one_distribution() -> None:
    """Not the median of their quantiles, which a single slow window would not change."""
    quick, slow = load_result(seconds=1.0, size=0), load_result(seconds=1.0, size=0)
    quick["latency_buckets"] = [(1_000_000, 90), (2_000_000, 9), (3_000_000, 1)]
    slow["latency_buckets"] = [(1_000_000, 50), (50_000_000, 50)]
    assert [pooled_ms([quick], fraction) for fraction in (0.5, 0.9, 0.99, 0.999)] == [1.0, 1.0, 2.0, 3.0]
    assert [pooled_ms([quick, slow, quick], fraction) for fraction in (0.5, 0.8, 0.99)] == [1.0, 2.0, 50.0]
    assert pooled_ms([], 0.5) == 0.0


def test_figures_of_several_passes_are_of_all_their_bytes_and_time() -> None:
    passes = [load_result(seconds=1.0, size=100_000_000), load_result(seconds=3.0, size=100_000_000)]
    figures = figures_of(passes, cpu_seconds=2.0)
    assert figures["mb_per_s"] == pytest.approx(50.0)
    assert figures["cpu_ms_per_mb"] == pytest.approx(10.0)
    assert figures["node_cores"] == pytest.approx(0.5)


def test_no_batch_no_cost_of_one() -> None:
    assert "cpu_us_per_batch" not in figures_of([load_result(seconds=1.0, size=0)], cpu_seconds=1.0)
