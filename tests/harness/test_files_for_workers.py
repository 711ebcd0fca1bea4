"""A worker that crashes costs the tests it was running, and no other, however late in a run it crashes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.files_for_workers import SHARE_A_JVM
from tests.harness.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]

CONFTEST = "from tests.files_for_workers import pytest_xdist_make_scheduler\n"

PASSES = """
from pathlib import Path

def test_it():
    Path("{name}").touch()
"""

CRASHES_ONCE = """
import os, time
from pathlib import Path

def test_it():
    while not Path("third").exists():  # the other worker is at its end
        time.sleep(0.01)
    if not Path("crashed").exists():
        Path("crashed").touch()
        os._exit(1)
"""


def test_files_that_a_crashed_worker_had_still_to_run_are_run(tmp_path: Path) -> None:
    """Each worker is given two files. One runs its two; the other crashes in its first, in the last test of it."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_1.py").write_text(PASSES.format(name="first"))
    (tmp_path / "test_2.py").write_text(CRASHES_ONCE)
    (tmp_path / "test_3.py").write_text(PASSES.format(name="third"))
    (tmp_path / "test_4.py").write_text(PASSES.format(name="fourth"))
    options = ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "-p", "no:cacheprovider"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_1.py", "test_2.py", "test_3.py", "test_4.py"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert "1 failed, 4 passed" in run.stdout, run.stdout + run.stderr
    assert (tmp_path / "fourth").exists()


def test_all_files_that_share_a_jvm_go_to_one_worker() -> None:
    asking = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        if path != Path(__file__) and "one_spark: OneSpark" in path.read_text(encoding="utf-8")
    }
    assert asking == SHARE_A_JVM
