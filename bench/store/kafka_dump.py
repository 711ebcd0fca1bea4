"""Kafka's own `kafka-dump-log` over segments that Mainstem wrote; its jars come by Maven."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.errors import BenchError
from bench.systems import kafka_jars

CACHE = Path.home() / ".cache" / "mainstem-bench"
SUSPICIOUS = ("ismatch", "not found", "rror", "out of order", "isvalid: false")


def check(logs: Sequence[Path], batches: int) -> str:
    """Has Kafka read these `.log` files, with so many batches in them, and the `.index` and `.timeindex` beside each.
    Raises BenchError with what it says is wrong."""
    jars = kafka_jars.fetch(CACHE)
    checked = [log.with_suffix(suffix) for log in logs for suffix in (".log", ".index", ".timeindex")]
    for sanity in ([], ["--index-sanity-check"]):
        of_this = [path for path in checked if path.suffix != ".log" or not sanity]
        command = ["java", "-Xmx512m", "-cp", f"{jars}/*", "org.apache.kafka.tools.DumpLogSegments"]
        done = subprocess.run(
            [*command, *sanity, "--files", ",".join(map(str, of_this))], capture_output=True, text=True
        )
        said = done.stdout + done.stderr
        bad = [line for line in said.splitlines() if any(word in line for word in SUSPICIOUS)]
        if done.returncode or bad or (sanity and said.count("passed sanity check") != len(of_this)):
            raise BenchError(f"kafka-dump-log: {bad or said[-2000:]}")
        found = said.count("baseOffset:")
        if not sanity and found != batches:
            raise BenchError(f"kafka-dump-log sees {found} batches: {said[:2000]}")
    return f"Kafka {kafka_jars.VERSION} reads {len(checked)} files: every batch valid, every index entry true"
