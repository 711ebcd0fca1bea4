"""A worker that crashes costs the tests it was running, and no other, however late in a run it crashes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.files_for_workers import SHARE_A_JVM
from tests.harness.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]

CONFTEST = "from tests.files_for_workers import pytest_internalerror, pytest_xdist_make_scheduler\n"

PASSES = """
from pathlib import Path

def test_it():
    Path("{name}").touch()
"""

CRASHES = """
import os, time
from pathlib import Path

def test_it():
    while not Path("third").exists():  # the other worker is at its end
        time.sleep(0.01)
    Path("crashed").write_text("again" if Path("crashed").exists() else "once")
    os._exit(1)
"""


def run_of(directory: Path, workers: int, files: dict[str, str], conftest: str = CONFTEST) -> str:
    """Run these files, by name, in their order. Returns what pytest prints."""
    (directory / "conftest.py").write_text(conftest)
    for name, text in files.items():
        (directory / name).write_text(text)
    options = ["-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder", "-p", "no:cacheprovider"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files],
        cwd=directory,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    return run.stdout + run.stderr


def test_files_that_a_crashed_worker_had_still_to_run_are_run(tmp_path: Path) -> None:
    """Each worker is given two files. One runs its two; the other crashes in its first, in the last test of it."""
    files = {
        "test_1.py": PASSES.format(name="first"),
        "test_2.py": CRASHES,
        "test_3.py": PASSES.format(name="third"),
        "test_4.py": PASSES.format(name="fourth"),
    }
    told = run_of(tmp_path, 2, files)
    assert "1 failed, 3 passed" in told, told
    assert (tmp_path / "fourth").exists()
    assert (tmp_path / "crashed").read_text() == "once", "what crashed, and may hang for long, is not run again"


def test_a_worker_may_crash_that_was_through_with_files(tmp_path: Path) -> None:
    """The only worker has run three files; of the fourth and the fifth, its heir runs what is left."""
    files = {f"test_{number}.py": PASSES.format(name=name) for number, name in enumerate(("first", "second", "third"))}
    files |= {"test_4.py": CRASHES + "\n\ndef test_more(): pass\n", "test_5.py": PASSES.format(name="fifth")}
    told = run_of(tmp_path, 1, files)
    assert "1 failed, 5 passed" in told, told
    assert (tmp_path / "fifth").exists()


def test_what_a_worker_had_left_is_run_when_pytest_itself_fails_in_it(tmp_path: Path) -> None:
    fails = """
def pytest_runtest_logreport(report):
    import os
    if "PYTEST_XDIST_WORKER" in os.environ and "test_bad" in report.nodeid:
        raise SystemError("a report that cannot be made")
"""
    files = {
        "test_1.py": "def test_bad(): pass\n\ndef test_more(): pass\n",
        "test_2.py": PASSES.format(name="second"),
        "test_3.py": PASSES.format(name="third"),
    }
    told = run_of(tmp_path, 1, files, CONFTEST + fails)
    assert "1 failed, 3 passed" in told, told
    assert "a report that cannot be made" in told


def test_all_files_that_share_a_jvm_go_to_one_worker() -> None:
    asking = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        if path != Path(__file__) and "one_spark: OneSpark" in path.read_text(encoding="utf-8")
    }
    assert asking == SHARE_A_JVM
