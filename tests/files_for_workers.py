"""Hands the files of a run to its workers (pytest-xdist, `--dist loadfile`), and goes on when one of them has crashed.

pytest-xdist hands out again what a crashed worker had been given, with the files it was through with. A worker given
two such files has nothing to run and never asks for more, so that the run never ends; and the test that crashed is run
again, which may hang as long again. So only what is left is handed out.

A worker begins a test only once it knows the next, or that there is none. pytest-xdist gives the worker that takes the
place of a crashed one a single file, and looks again when one of its tests is done: where a single test is left of that
file, while other files wait and no other worker runs any more, nobody ever goes on. So there is a second look at once.

Files that share a JVM (the fixture `one_spark`) go to one worker, as if they were one file: a JVM takes most of a
minute of processor time until it knows its way, and each worker with such a file would have its own.
"""

from __future__ import annotations

import os
from contextlib import suppress

import pytest
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]
from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

SHARE_A_JVM = frozenset(
    {
        "tests/end_to_end/clusters/test_cluster_split.py",
        "tests/end_to_end/splits/test_compaction.py",
        "tests/end_to_end/splits/test_compaction_moves.py",
        "tests/end_to_end/splits/test_exactly_once.py",
        "tests/end_to_end/splits/test_merge.py",
        "tests/end_to_end/tiers/test_shared_store_spark.py",
        "tests/pipeline/test_spark_split.py",
    }
)


class FilesForWorkers(LoadFileScheduling):  # type: ignore[misc]
    def schedule(self) -> None:
        super().schedule()
        if self.collection is not None:
            super().schedule()

    def _assign_work_unit(self, node: WorkerController) -> None:
        with suppress(OSError):  # it has just crashed: when that is heard of, the file is handed to another
            super()._assign_work_unit(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """Forget a worker. Returns the test that it was running; None where it had run all its tests."""
        left = {file: tests for file, tests in self.assigned_work.pop(node).items() if not all(tests.values())}
        if not left:
            return None
        tests = next(iter(left.values()))
        crashed: str = next(test for test, done in tests.items() if not done)
        tests[crashed] = True
        self.workqueue.update({file: tests for file, tests in left.items() if not all(tests.values())})
        for other in self.nodes:
            self._reschedule(other)
        return crashed

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "files that share a JVM" if file in SHARE_A_JVM else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FilesForWorkers | None:
    return FilesForWorkers(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_internalerror(excrepr: object) -> None:
    """A worker in which pytest itself fails ends as one that has crashed: pytest-xdist would not run what it had left,
    and end the run with words about workers. One kind is known: Python's compiler refuses to be called while it is at
    work, which a report does where garbage is found meanwhile."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        told = str(excrepr).strip()
        os.write(2, f"\nINTERNALERROR of a worker: {told.splitlines()[-1]}\n{told}\n".encode(errors="replace"))
        os._exit(1)
