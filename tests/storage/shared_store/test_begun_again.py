"""Work that the store failed is begun again: so often, so long, and only where that may help."""

from __future__ import annotations

import random

import pytest
from tests.fakes.clock import FakeClock

from mainstem.storage.object_stores.errors import (
    ObjectStoreDown,
    ObjectStoreError,
    ObjectStoreRefused,
    ObjectStoreTimedOut,
    ObjectStoreUnavailable,
)
from mainstem.storage.shared_store.begun_again import ATTEMPTS_MAX, WAIT_SECONDS, begun_again
from mainstem.storage.shared_store.object_target import UploadBroken

BUDGET_SECONDS = 60.0
ALL = [ObjectStoreDown("down"), UploadBroken("broken"), ObjectStoreTimedOut("late"), ObjectStoreUnavailable("out")]


class Task:
    """Work that takes a while, and fails with one of these errors after the other."""

    def __init__(self, *failures: ObjectStoreError, seconds: float = 0.0) -> None:
        self.clock = FakeClock()
        self.waits: list[float] = []
        self.attempts = 0
        self._failures = [*failures]
        self._seconds = seconds

    def __call__(self) -> str:
        self.attempts += 1
        self.clock.advance(self._seconds)
        if self._failures:
            raise self._failures.pop(0)
        return "written"

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.clock.advance(seconds)

    def run(self, budget_seconds: float = BUDGET_SECONDS, seed: int = 1) -> str:
        return begun_again(
            self, budget_seconds, jitter=random.Random(seed), monotonic=self.clock.monotonic, sleep=self.sleep
        )


@pytest.mark.parametrize("count", range(ATTEMPTS_MAX))
def test_what_passes_is_waited_for(count: int) -> None:
    task = Task(*ALL[:count])
    assert task.run() == "written"
    assert task.attempts == count + 1
    assert len(task.waits) == count
    assert all(wait <= WAIT_SECONDS * 2**number for number, wait in enumerate(task.waits))


def test_tasks_that_failed_together_do_not_come_back_together() -> None:
    waits = set()
    for seed in range(20):
        task = Task(ALL[0])
        task.run(seed=seed)
        waits |= {*task.waits}
    assert len(waits) == 20


def test_the_last_failure_is_raised_after_so_many_attempts() -> None:
    task = Task(*ALL)
    with pytest.raises(type(ALL[ATTEMPTS_MAX - 1]), match=str(ALL[ATTEMPTS_MAX - 1])):
        task.run()
    assert task.attempts == ATTEMPTS_MAX


def test_no_attempt_begins_when_the_time_is_over() -> None:
    task = Task(*ALL, seconds=40.0)
    with pytest.raises(UploadBroken):
        task.run(budget_seconds=39.0)
    assert task.attempts == 2, "time counts from the first failure on, however long the work took until then"
    instant = Task(*ALL)
    with pytest.raises(ObjectStoreDown):
        instant.run(budget_seconds=0.0)
    assert (instant.attempts, instant.waits) == (1, [])


@pytest.mark.parametrize("error", [ObjectStoreRefused("no rights"), ValueError("a fault of the work's own")])
def test_what_does_not_pass_is_raised_at_once(error: Exception) -> None:
    attempts: list[int] = []

    def work() -> None:
        attempts.append(1)
        raise error

    waits: list[float] = []
    with pytest.raises(type(error), match=str(error)):
        begun_again(work, BUDGET_SECONDS, sleep=waits.append)
    assert (len(attempts), waits) == (1, [])
