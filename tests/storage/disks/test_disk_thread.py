"""The commit thread: jobs in order, none abandoned, each heard of by who waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from functools import partial
from typing import Any

import pytest
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.storage.disks.disk_thread import DiskThread


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, PATIENCE_SECONDS))


def test_jobs_are_done_in_order_by_one_thread_that_is_not_the_loop() -> None:
    async def scenario() -> None:
        commits = DiskThread("commits")
        done: list[int] = []
        threads: set[int] = set()

        def work(number: int) -> None:
            done.append(number)
            threads.add(threading.get_ident())

        await asyncio.gather(*(commits.run(partial(work, number)) for number in range(20)))
        assert done == list(range(20))
        assert len(threads) == 1
        assert threading.get_ident() not in threads
        await commits.close()

    run(scenario())


def test_a_failure_reaches_who_waits_and_the_next_job_is_done() -> None:
    async def scenario() -> None:
        commits = DiskThread("commits")

        def fail() -> None:
            raise OSError(5, "the disk is gone")

        with pytest.raises(OSError, match="the disk is gone"):
            await commits.run(fail)
        done: list[int] = []
        await commits.run(partial(done.append, 1))
        assert done == [1]
        await commits.close()

    run(scenario())


def test_a_job_whose_caller_was_cancelled_is_done_all_the_same() -> None:
    async def scenario() -> None:
        commits = DiskThread("commits")
        may_go_on = threading.Event()
        done: list[int] = []
        first = asyncio.ensure_future(commits.run(may_go_on.wait))
        second = asyncio.ensure_future(commits.run(partial(done.append, 2)))
        await asyncio.sleep(0)
        first.cancel()
        second.cancel()
        await asyncio.wait([first, second])
        idle = asyncio.ensure_future(commits.idle())
        await asyncio.sleep(0)
        assert not idle.done()
        may_go_on.set()
        await idle
        assert done == [2]
        await commits.close()

    run(scenario())


def test_close_waits_for_what_was_given() -> None:
    async def scenario() -> None:
        commits = DiskThread("commits")
        may_go_on = threading.Event()
        done: list[int] = []
        jobs = [asyncio.ensure_future(commits.run(work)) for work in (may_go_on.wait, partial(done.append, 1))]
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(commits.close())
        await asyncio.sleep(0)
        assert not closing.done()
        may_go_on.set()
        await closing
        assert done == [1]
        await asyncio.gather(*jobs)

    run(scenario())


def test_a_thread_without_a_job_never_begins() -> None:
    async def scenario() -> None:
        before = threading.active_count()
        commits = DiskThread("commits")
        await commits.idle()
        assert threading.active_count() == before
        await commits.close()

    run(scenario())
