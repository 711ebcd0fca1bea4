"""Hands the files of a run to its workers (pytest-xdist, `--dist loadfile`), and goes on when one of them has crashed.

A worker begins a test only once it knows the next, or that there is none. pytest-xdist gives the worker that takes the
place of a crashed one a single file, and looks again when one of its tests is done: where a single test is left of that
file, while other files wait and no other worker runs any more, nobody ever goes on. So there is a second look at once.
"""

from __future__ import annotations

import pytest
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]


class FilesForWorkers(LoadFileScheduling):  # type: ignore[misc]
    def schedule(self) -> None:
        super().schedule()
        if self.collection is not None:
            super().schedule()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FilesForWorkers | None:
    return FilesForWorkers(config, log) if config.getvalue("dist") == "loadfile" else None
