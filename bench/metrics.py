"""The figures that are measured: their units, and which way is better."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from bench.load import Result

MEGABYTE = 1e6


@dataclasses.dataclass(frozen=True, slots=True)
class Metric:
    title: str
    unit: str
    higher_is_better: bool
    digits: int
    """After the decimal point, in tables."""


METRICS = {
    "mb_per_s": Metric("throughput", "MB/s", True, 0),
    "cpu_ms_per_mb": Metric("node's CPU", "ms/MB", False, 2),
    "cpu_us_per_batch": Metric("node's CPU", "µs/batch", False, 2),
    "cpu_ms_per_request": Metric("node's CPU", "ms/request", False, 2),
    "cpu_ms_per_queue": Metric("node's CPU", "ms/queue", False, 2),
    "requests_per_s": Metric("requests", "1/s", True, 0),
    "batches_per_s": Metric("batches", "1/s", True, 0),
    "transactions_per_s": Metric("transactions", "1/s", True, 1),
    "cpu_ms_per_transaction": Metric("node's CPU", "ms/transaction", False, 2),
    "records_per_s": Metric("records", "1/s", True, 0),
    "node_cores": Metric("cores the node used", "", False, 2),
    "rate_per_s": Metric("offered", "requests/s", True, 0),
    "p50_ms": Metric("latency p50", "ms", False, 2),
    "p99_ms": Metric("latency p99", "ms", False, 2),
    "p999_ms": Metric("latency p99.9", "ms", False, 2),
    "window_p99_ms": Metric("latency p99, median of the windows", "ms", False, 2),
    "windows": Metric("windows", "", True, 0),
    "stalled_windows": Metric("windows with a stall", "%", False, 0),
    "whole_windows": Metric("windows from which the host took nothing", "", True, 0),
    "whole_p99_ms": Metric("latency p99, these windows", "ms", False, 2),
    "to_one_node": Metric("CPU, one node = 1", "", False, 2),
    "memory_mb": Metric("memory (PSS)", "MB", False, 0),
    "resident_mb": Metric("memory (RSS)", "MB", False, 0),
    "cached_mb": Metric("page cache of its files", "MB", False, 0),
    "create_s": Metric("creating the topics", "s", False, 2),
    "start_s": Metric("start to first answer", "s", False, 2),
    "restart_s": Metric("restart after SIGKILL", "s", False, 2),
    "others_cores": Metric("cores taken by other work, the kernel's included", "", False, 2),
    "reader_mb_per_s": Metric("the reader beside it", "MB/s", True, 0),
    "split_mb_per_s": Metric("split", "MB/s", True, 0),
    "split_mb": Metric("split meanwhile", "MB", True, 0),
    "merged_mb": Metric("merged meanwhile", "MB", True, 0),
    "removed_mb": Metric("removed by compactions meanwhile", "MB", True, 0),
    "merging_windows": Metric("windows with a merge", "", True, 0),
    "merge_ends": Metric("windows in which a merge ended", "", True, 0),
    "compacting_windows": Metric("windows with a compaction", "", True, 0),
    "compaction_ends": Metric("compactions that ended in windows", "", True, 0),
    "uploaded_mb": Metric("uploaded meanwhile", "MB", True, 0),
    "lag_mb": Metric("unsplit at the end", "MB", False, 0),
    "driver_cpu_ms_per_mb": Metric("CPU of the driver", "ms/MB", False, 2),
    "jvm_cpu_ms_per_mb": Metric("CPU of the JVM", "ms/MB", False, 2),
    "worker_cpu_ms_per_mb": Metric("CPU of the workers", "ms/MB", False, 2),
    "files_per_queue": Metric("files that a queue lies in", "", False, 0),
    "files_per_tib": Metric("merged files per TiB", "", False, 0),
    "runs_waiting": Metric("runs that wait to be merged", "", False, 0),
    "runs_written": Metric("runs written", "", True, 0),
    "written_per_byte": Metric("written to disk 2 per byte taken in", "", False, 3),
    "mb_per_cpu_s": Metric("throughput per core", "MB/s", True, 0),
    "spark_start_cpu_s": Metric("CPU of Spark's start", "s", False, 1),
    "ns_per_batch": Metric("time", "ns/batch", False, 0),
    "to_plain_c": Metric("time, plain C = 1", "", False, 2),
}
"""By the name under which results keep them. The order is that of the tables."""


Figures = dict[str, float]
"""By the names of `METRICS`."""


def pooled_ms(
    results: Sequence[Result],
    fraction: float,
    buckets: Literal["latency_buckets", "served_buckets"] = "latency_buckets",
) -> float:
    """The latency that `fraction` of all requests of all results do not exceed; 0 without a request."""
    counts: Counter[int] = Counter()
    for result in results:
        for nanoseconds, count in result[buckets]:
            counts[nanoseconds] += count
    rank = math.ceil(fraction * counts.total())
    seen = 0
    for nanoseconds in sorted(counts):
        seen += counts[nanoseconds]
        if seen >= rank:
            return nanoseconds / 1e6
    return 0.0


def figures_of(results: Sequence[Result], cpu_seconds: float) -> Figures:
    """The figures from the results of a load, run once or several times, and the node's CPU time over them. Latencies
    are those of the last."""
    seconds = sum(result["seconds"] for result in results)
    megabytes = sum(result["bytes"] for result in results) / MEGABYTE
    batches = sum(result["batches"] for result in results)
    latency = results[-1]["latency_us"]
    figures = {
        "mb_per_s": megabytes / seconds,
        "batches_per_s": batches / seconds,
        "requests_per_s": sum(result["requests"] for result in results) / seconds,
        "node_cores": cpu_seconds / seconds,
        "p50_ms": latency["p50"] / 1000,
        "p99_ms": latency["p99"] / 1000,
        "p999_ms": latency["p99_9"] / 1000,
    }
    if batches:
        figures["cpu_ms_per_mb"] = cpu_seconds * 1000 / megabytes
        figures["cpu_us_per_batch"] = cpu_seconds * 1e6 / batches
    return figures
