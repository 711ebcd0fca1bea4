"""Tables, targets and plots say what the results say: medians, spreads, ratios, and what was not measured."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from bench.report import svg
from bench.report.document import targets_table, write_report
from bench.report.tables import workload_table
from bench.results import Results, Row, Spread
from bench.scale import rows
from bench.session import Form, Session, Workload
from bench.targets import ASYNC, SYNC, all_targets
from bench.workloads import footprint, isolation, large_requests, many_queues, splitting, three_nodes

ROW = Row("1", large_requests.TITLE, ASYNC, queues=10)
FACTS = {
    "when": "now", "commit": "abc", "heap": "1g", "versions": {"mainstem": "Mainstem 1", "kafka": "Kafka 4"},
    "form": {"name": "short", "repetitions": 3, "seconds": 2.0}, "cores": {"broker": [0], "load": [1]},
    "machine": {
        "cpu": "a CPU", "cores": 2, "memory_bytes": 8 << 30, "kernel": "6", "python": "3.11", "java": "17",
        "disk": "sda",
        "dirty_background_bytes": 1 << 30, "dirty_bytes": 2 << 30, "open_files_max": 20_000, "maps_max": 65_530,
        "read_ahead_kb": 128, "load_average": 0.5,
    },
}  # fmt: skip


def cells(table: str, *starts: str) -> list[str]:
    """Of the one line that begins with these cells."""
    lines = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines()]
    for above, line in itertools.pairwise(lines):
        if not any(line[:2]):  # the row of the line above goes on
            line[:2] = above[:2]
    (found,) = [line for line in lines if tuple(line[: len(starts)]) == starts]
    return found


def produced(mainstem: tuple[float, ...], kafka: tuple[float, ...]) -> Results:
    results = Results(FACTS)
    for value in mainstem:
        results.add(ROW, "mainstem", {"mb_per_s": value, "cpu_ms_per_mb": 1000 / value})
    for value in kafka:
        results.add(ROW, "kafka", {"mb_per_s": value, "cpu_ms_per_mb": 4000 / value})
    return results


def verdict(results: Results, name: str) -> tuple[float | None, bool | None]:
    (target,) = [target for target in all_targets() if target.name == name]
    figure = target.figure(results)
    return figure, None if figure is None else target.reached(figure)


def test_a_line_has_medians_spreads_and_the_ratio_of_medians() -> None:
    table = workload_table(produced((300, 100, 200), (100, 100, 90)), "1", ("mb_per_s",))
    assert cells(table, ROW.title)[2:] == ["throughput MB/s", "200 (100–300)", "100 (90–100)", "**2.00**"]


def test_better_is_bold_whichever_way_better_is() -> None:
    table = workload_table(produced((100,), (200,)), "1", ("mb_per_s", "cpu_ms_per_mb"))
    ratios = [cells(table, ROW.title, ASYNC, figure)[-1] for figure in ("throughput MB/s", "node's CPU ms/MB")]
    assert ratios == ["0.50", "**0.50**"]


def test_other_work_is_shown_only_where_it_matters() -> None:
    results = produced((100,), (100,))
    results.add(ROW, "mainstem", {"others_cores": 0.05})
    assert "other work" not in workload_table(results, "1", ("mb_per_s",))
    results.add(ROW, "kafka", {"others_cores": 0.5})
    assert "other work" in workload_table(results, "1", ("mb_per_s",))


def test_a_workload_that_was_not_run_has_no_table() -> None:
    assert workload_table(produced((1,), (1,)), "2", ("mb_per_s",)) == ""


def test_targets_are_reached_at_their_bound_and_not_below() -> None:
    name = "throughput, page cache, first pass"
    assert verdict(produced((150,), (100,)), name) == (1.5, True)
    assert verdict(produced((149,), (100,)), name) == (1.49, False)
    assert verdict(Results(), name) == (None, None)


def test_a_verdict_under_other_work_says_so() -> None:
    name = "throughput, page cache, first pass"
    results = produced((300,), (100,))
    assert cells(targets_table(results), "1", name)[4] == "reached"
    results.add(ROW, "kafka", {"others_cores": 0.9})
    assert cells(targets_table(results), "1", name)[4] == "reached, disturbed"


def test_without_the_peer_nothing_is_compared() -> None:
    table = workload_table(produced((100,), ()), "1", ("mb_per_s",))
    assert cells(table, "row")[2:] == ["figure", "mainstem"]


def test_own_throughput_over_more_queues() -> None:
    results = Results()
    for queues, rate in ((16, 200.0), (16_384, 170.0)):
        row = Row("2", many_queues.title(queues, 1), ASYNC)
        results.add(row, "mainstem", {"mb_per_s": rate, "cpu_us_per_batch": 1000 / rate})
    name = f"own throughput, {many_queues.title(16, 1)} → {many_queues.title(16_384, 1)}"
    assert verdict(results, name) == (0.85, False)
    assert cells(targets_table(results), "2", name)[2:] == ["≥ 0.9 ×", "0.85 ×", "**short**", "0.85 ×"]


def test_own_throughput_over_a_million_queues_is_compared_on_one_node() -> None:
    results = Results()
    for title, rate in (
        (many_queues.title(16, 16), 400.0),
        (many_queues.of_million(16), 200.0),
        (many_queues.title(1_000_000, 16), 180.0),
    ):
        results.add(Row("2", title, ASYNC), "mainstem", {"mb_per_s": rate})
    name = f"own throughput, {many_queues.of_million(16)} → {many_queues.title(1_000_000, 16)}"
    assert verdict(results, name) == (0.9, True)


def test_own_throughput_on_recycled_files_is_compared_with_itself() -> None:
    results = Results()
    for queues, rates in ((16, (100.0, 300.0)), (16_384, (10.0, 285.0))):
        for system, rate in zip(("mainstem", "mainstem recycled"), rates, strict=True):
            results.add(Row("2", many_queues.title(queues, 16), ASYNC), system, {"mb_per_s": rate})
    name = f"{many_queues.title(16, 16)} → {many_queues.title(16_384, 16)}"
    assert verdict(results, f"own throughput, {name}") == (0.1, False)
    assert verdict(results, f"own throughput, recycled, {name}") == (0.95, True)


def test_latency_beside_others_is_compared_within_mainstem() -> None:
    results = Results()
    for title, values in ((isolation.ALONE, (1.0, 1.0, 9.0)), (isolation.BESIDE_READER, (1.1, 1.2, 1.3))):
        for value in values:
            results.add(Row("5", title, SYNC), "mainstem", {"p99_ms": value})
        results.add(Row("5", title, SYNC), "kafka", {"p99_ms": 100.0})
    assert verdict(results, "p99 beside a catch-up reader, to alone") == (1.2, True)


def test_memory_of_queues_is_what_they_add() -> None:
    results = Results()
    for title, size in ((footprint.IDLE, 60.0), (footprint.MILLION, 400.0)):
        results.add(Row("6", title, ASYNC), "mainstem", {"resident_mb": size})
    assert verdict(results, "memory of 1,000,000 queues, over idle") == (340.0, False)


def test_a_split_of_less_than_was_offered_shows_nothing() -> None:
    row = Row("7", splitting.SUSTAINED, SYNC)
    results = Results()
    results.add(row, "mainstem", {"mb_per_s": 100.0, "split_mb_per_s": 99.0})
    assert verdict(results, "split, of what 100 MB/s bring in") == (0.99, True)
    slow = Results()
    slow.add(row, "mainstem", {"mb_per_s": 50.0, "split_mb_per_s": 50.0})
    assert verdict(slow, "split, of what 100 MB/s bring in") == (None, None)


def test_the_report_has_a_line_for_every_target_and_its_plots_beside_it(tmp_path: Path) -> None:
    results = produced((150,), (100,))
    results.notes.append("something was left out")

    def none(form: Form) -> list[Session]:
        return []

    written = write_report(results, (Workload("1", "Produce", none, ("mb_per_s",)),), tmp_path / "day.json")
    text = (tmp_path / "day.md").read_text()
    assert all(f" {target.name} " in text for target in all_targets())
    assert "something was left out" in text
    plots = [path for path in written if path.suffix == ".svg"]
    assert plots == [tmp_path / "day" / "cpu-of-large-requests.svg"]
    assert "](day/cpu-of-large-requests.svg)" in text


def test_lines_stand_where_their_values_are() -> None:
    def exactly(value: float) -> Spread:
        return Spread(value, value, value, 1)

    series = {"mainstem": [(16, exactly(100.0)), (256, exactly(50.0)), (4_096, exactly(0.0))]}
    drawn = ElementTree.fromstring(svg.lines("Title & more", "MB/s", "queues", series))
    marks = [(float(mark.get("cx", "")), float(mark.get("cy", ""))) for mark in drawn if mark.tag.endswith("circle")]
    across, down = zip(*marks, strict=True)
    assert across[1] - across[0] == across[2] - across[1] > 0  # equal factors are equal distances
    assert down[1] - down[0] == down[2] - down[1] > 0  # and values are linear from zero


def test_bars_are_as_long_as_their_values() -> None:
    groups = [("a row", {"mainstem": Spread(10.0, 8.0, 12.0, 3), "kafka": Spread(40.0, 40.0, 40.0, 3)})]
    drawn = ElementTree.fromstring(svg.bars("Title", "ms", 1, groups))
    lengths = [
        float(bar.get("width", "")) for bar in drawn if bar.tag.endswith("rect") and bar.get("x") == str(svg.LABELS)
    ]
    assert lengths[1] / lengths[0] == 4.0


def test_targets_of_three_nodes_are_those_of_their_durability() -> None:
    results = Results(FACTS)
    title = f"{three_nodes.small_title(63)}, {three_nodes.NODES[3]}"
    for kept, ratio in ((ASYNC, 3.9), (SYNC, 2.6)):
        results.add(Row(three_nodes.WORKLOAD.number, title, kept), "mainstem", {"to_one_node": ratio})
    name = "CPU of three nodes, 100-byte requests, 63 connections, {}, to one node's"
    assert verdict(results, name.format(ASYNC)) == (3.9, False)
    assert verdict(results, name.format(SYNC)) == (2.6, True)


def test_a_drain_may_fail_no_record() -> None:
    results = Results(FACTS)
    moved = {rows.P99_TO_ALONE: 1.9, rows.FAILED: 1.0}
    results.add(Row(rows.MOVES, rows.DRAIN), "mainstem", moved)
    assert verdict(results, f"publish p99 while {rows.DRAIN}, to alone") == (1.9, True)
    assert verdict(results, f"records that failed while {rows.DRAIN}") == (1.0, False)
    assert verdict(results, f"publish p99 while {rows.REPAIR}, to alone") == (None, None)


def test_readers_of_an_object_store_are_judged_with_the_store_beside_and_apart() -> None:
    results = Results(FACTS)
    for apart, ratio in ((False, 0.83), (True, 0.79)):
        results.add(Row(rows.OBJECTS, rows.object_readers(100, apart=apart)), "mainstem", {rows.TO_OBSTORE: ratio})
    name = "100 readers of different queues from S3 with 20 ms{}, to obstore alone"
    assert verdict(results, name.format("")) == (0.83, True)
    assert verdict(results, name.format(", the store apart")) == (0.79, False)
    assert verdict(results, "one reader from S3 with 20 ms, to obstore alone") == (None, None)
