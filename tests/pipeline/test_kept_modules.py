"""A Python worker of Spark keeps its modules out of garbage collection."""

from __future__ import annotations

import subprocess
import sys

from tests.harness.patience import PATIENCE_SECONDS

TASK = """
import gc, pickle
import numpy
from mainstem.pipeline.spark.kept_modules import keeping_modules
task = pickle.loads(pickle.dumps(keeping_modules(len)))  # as Spark brings it there
before = gc.get_freeze_count()
found = [task("ab"), gc.get_freeze_count() - before > 10_000]
kept = gc.get_freeze_count()
made = [[] for _ in range(1000)]
print(found + [task("abc"), gc.get_freeze_count() == kept])
"""


def test_modules_are_kept_from_the_first_task_on_and_nothing_of_later_tasks() -> None:
    done = subprocess.run([sys.executable, "-c", TASK], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[2, True, 3, True]"
