"""Mainstem's Spark commands over what a node has, to their end."""

from __future__ import annotations

import subprocess
import sys

from bench.errors import BenchError

SPARK_SECONDS_MAX = 240.0


def run_spark(http: str, *command: str) -> None:
    """Raises BenchError when it fails, or is not over in time."""
    line = [sys.executable, "-m", "mainstem.cli.main", *command, "--once", "--http", http]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=SPARK_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        raise BenchError(f"{' '.join(command)} was not over after {SPARK_SECONDS_MAX:.0f} s") from None
    if done.returncode != 0:
        raise BenchError(f"{' '.join(command)} failed: {(done.stderr or done.stdout).strip()[-800:]}")
