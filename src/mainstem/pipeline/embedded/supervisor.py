"""Runs the embedded splitter beside a node: starts it when there is something worth splitting or merging, restarts it
when it dies, ends it when idle. No Spark in here: the splitter is a process of its own.

    waiting ──worth a start, lease free──▶ running ──idle for long──▶ waiting
       ▲                                        │
       └──── backoff (died) or lease free (yielded) ◀──┘

The process leads a session of its own, to which its JVM and Python workers belong, and which gets the rest of the
processor that others leave (`processes.py`). The supervisor asks an idle one to stop by SIGTERM, then kills its
session; a node that stops kills it at once: the lease that it would give back ends with the node, and its unrecorded
work is dropped. Its standard input is a pipe from this process: when the node is killed outright, the pipe closes,
and the splitter kills its session itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

from mainstem.errors import MainstemError
from mainstem.pipeline.embedded.config import PipelineConfig
from mainstem.pipeline.embedded.control_group import find_group
from mainstem.pipeline.embedded.processes import end_session, members, take_leftovers
from mainstem.pipeline.errors import EXIT_DONE, EXIT_LEASE_HELD, EXIT_YIELDED
from mainstem.pipeline.spark.java import find_java, spark_missing
from mainstem.ports import Clock
from mainstem.rpc.messages.split import MergeWaits, SplitLag
from mainstem.rpc.wire.tls import NO_TLS, RpcTlsConfig
from mainstem.supervised import Supervision

log = logging.getLogger("mainstem.split")

POLL_SECONDS = 0.5
"""Seconds between two checks of lag and process; the lag is a few dictionary look-ups."""

BACKOFF_SECONDS = (1.0, 2.0, 5.0, 15.0, 60.0)
"""Seconds before each restart after a failure; the last one repeats."""

HEALTHY_SECONDS = 120.0
"""A splitter that ran this long starts the backoff anew when it dies."""

STOP_SECONDS_MAX = 8.0
"""Seconds from SIGTERM to SIGKILL. SIGKILL loses nothing; SIGTERM gives the lease back."""

KILLED_SECONDS_MAX = 5.0
"""Seconds for killed processes to end: each has to get a processor once more, and gives some GB of memory back."""

KILLED_LOOK_SECONDS = 0.02
"""Between two looks whether they have."""

MERGE_LOOK_SECONDS = 600.0
"""Seconds between two looks at what waits to be merged, while no splitter runs. A look may read indexes of files for
some seconds, and enough for a merge comes together in tens of minutes. Merges that fail start Spark no more often."""

MERGE_LOOK_ON_SECONDS = 60.0
"""Seconds until a look that was not finished goes on."""

PIPES_SECONDS_MAX = 1.0
"""Seconds for the pipes of a process that has ended."""

LINE_BYTES_MAX = 16 * 1024
"""Longer log lines of the splitter are cut."""


def missing_for_spark() -> str:
    """The packages to install before Spark can run here; empty when nothing is missing. Blocks for a `java
    -version`."""
    return " ".join(filter(None, (find_java().missing, spark_missing())))


def splitter_command(
    config: PipelineConfig, node_http: str, checkpoint_dir: str, tls: RpcTlsConfig = NO_TLS
) -> list[str]:
    """The command line that starts the embedded splitter."""
    return [
        sys.executable,
        "-m",
        "mainstem.pipeline.main",
        "--embedded",
        "--watch-stdin",
        "--node",
        node_http,
        "--master",
        config.master,
        "--checkpoint",
        config.checkpoint_dir or checkpoint_dir,
        "--bytes-per-trigger",
        str(config.bytes_per_trigger),
        "--bytes-per-second",
        str(config.bytes_per_second),
        "--trigger-seconds",
        str(config.trigger_seconds),
        "--start-bytes",
        str(config.start_bytes),
        "--start-age-seconds",
        str(config.start_age_seconds),
        "--driver-memory",
        config.driver_memory,
        "--tasks",
        str(parallel_tasks(config.master)),
        *([] if config.merge else ["--no-merge"]),
        "--rpc-tls-certificate",
        tls.certificate,
        "--rpc-tls-key",
        tls.key,
        "--rpc-tls-ca",
        tls.ca,
    ]


def parallel_tasks(master: str) -> int:
    """How many tasks a local master runs at a time; 2 for others, whose size is not known here."""
    inside = master.removeprefix("local[").split(",")[0].rstrip("]") if master.startswith("local[") else ""
    return (os.cpu_count() or 1) if inside == "*" else int(inside) if inside.isdigit() else 2


class SplitWork(Protocol):
    """The port to the work that waits; the node's split service implements it."""

    def lag(self) -> SplitLag: ...

    def record_error(self, error: str) -> None: ...


class SplitSupervisor:
    """`start` once the node's HTTP address answers, `close` before it stops to. Owns the task that
    supervises."""

    def __init__(
        self,
        config: PipelineConfig,
        work: SplitWork,
        *,
        store_dir: str,
        clock: Clock,
        tls: RpcTlsConfig = NO_TLS,
        command: Callable[[str], Sequence[str]] | None = None,
        missing: Callable[[], str] = missing_for_spark,
        poll_seconds: float = POLL_SECONDS,
        backoff_seconds: Sequence[float] = BACKOFF_SECONDS,
        supervision: Supervision | None = None,
        merge_waits: Callable[[], Awaitable[MergeWaits]] | None = None,
    ) -> None:
        """`command`: makes the splitter's command line from the node's HTTP address. `merge_waits`: looks at what is
        worth merging, uploading or compacting; None: no splitter is started for that alone."""
        self.state = "off" if config.mode == "off" else "waiting"
        """For people: off, waiting, starting, running, restarting (why), or unavailable (what to install)."""
        self.process_id: int | None = None
        self._supervision = supervision or Supervision(clock.monotonic)
        self._config = config
        self._work = work
        self._clock = clock
        checkpoint_dir = f"{store_dir}/pipeline/checkpoint"
        self._command = command or (lambda node: splitter_command(config, node, checkpoint_dir, tls))
        self._missing = missing
        self._merge_waits = merge_waits if config.merge else None
        self._look_at = clock.monotonic() + MERGE_LOOK_SECONDS
        """When to look again at what waits to be merged."""
        self._poll_seconds = poll_seconds
        self._backoff_seconds = backoff_seconds
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    async def start(self, node: str) -> None:
        """Begin to supervise; `node` is its HTTP address. Returns at once: Spark starts when there is
        work."""
        assert self._task is None
        self._task = self._supervision.start(partial(self._supervise, self._command(node)), "split supervisor")
        self._task.add_done_callback(self._ended)

    async def close(self) -> None:
        """End the splitter, its JVM included, and stop supervising."""
        self._closing = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.state = f"failed: {error}"
            log.error("the supervisor of the splitter failed", exc_info=error)

    async def _supervise(self, command: Sequence[str]) -> None:
        if self._config.mode == "off":
            return
        if missing := await asyncio.to_thread(self._missing):
            self.state = f"unavailable: {missing}"
            log.warning("messages stay in the journal, because Spark cannot split them: %s", missing)
            self._work.record_error(f"the embedded splitter cannot run: {missing}")
            return
        failures = 0
        while True:
            await self._wait_for_work()
            started = self._clock.monotonic()
            code = await self._run_splitter(command)
            if self._clock.monotonic() - started >= HEALTHY_SECONDS:
                failures = 0
            if code in (EXIT_DONE, EXIT_YIELDED, EXIT_LEASE_HELD):
                continue
            seconds = self._backoff_seconds[min(failures, len(self._backoff_seconds) - 1)]
            failures += 1
            self.state = f"restarting after exit code {code}"
            log.error("the splitter ended with exit code %d; starting it again in %.0f s", code, seconds)
            await asyncio.sleep(seconds)

    async def _wait_for_work(self) -> None:
        """Wait until there is something worth splitting or merging, and no other splitter does it."""
        self.state = "waiting"
        while True:
            lag = self._work.lag()
            if not lag.holder and self._worth(lag):
                return
            if not lag.holder and await self._worth_merging() and not self._work.lag().holder:
                return
            await asyncio.sleep(self._poll_seconds)

    def _worth(self, lag: SplitLag) -> bool:
        if not lag.unsplit_bytes:
            return False
        config = self._config
        return lag.unsplit_bytes >= config.start_bytes or lag.oldest_seconds >= config.start_age_seconds

    async def _worth_merging(self) -> bool:
        """Whether a merge is worth a start, once in `MERGE_LOOK_SECONDS`."""
        if self._merge_waits is None or self._clock.monotonic() < self._look_at:
            return False
        try:
            found = await self._merge_waits()
        except (MainstemError, OSError) as error:
            log.warning("what waits to be merged cannot be told: %s", error)
            found = MergeWaits(0)
        unfinished = found.more and not found.bytes
        self._look_at = self._clock.monotonic() + (MERGE_LOOK_ON_SECONDS if unfinished else MERGE_LOOK_SECONDS)
        if found.bytes:
            log.info(
                "%d bytes of the queue store are worth a merge, an upload or a compaction: the splitter is started",
                found.bytes,
            )
        return found.bytes > 0

    async def _run_splitter(self, command: Sequence[str]) -> int:
        """Run the process to its end, or end it when idle or cancelled. Returns its exit code; 0 when it was
        ended on purpose."""
        self.state = "starting"
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            take_leftovers(process.pid, self._config.nice)
            self.state, self.process_id = "running", process.pid
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_pass_lines(process.stdout))
                idle = await self._watch(process)
                await _end(process)
        finally:
            await _end(process, at_once=self._closing)
            await _let_go(process)
            self.process_id = None
        assert process.returncode is not None
        return EXIT_DONE if idle else process.returncode

    async def _watch(self, process: asyncio.subprocess.Process) -> bool:
        """Watch until the process ends by itself (False) or has been idle for too long (True)."""
        busy = self._clock.monotonic()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll_seconds):
                    await process.wait()
                    return False
            lag = self._work.lag()
            if lag.merging or self._worth(lag):
                busy = self._clock.monotonic()
            elif self._clock.monotonic() - busy >= self._config.idle_stop_seconds:
                log.info("the splitter is idle and is ended; it starts again when there is something to split")
                return True


async def _pass_lines(stream: asyncio.StreamReader) -> None:
    """The splitter's output, line by line, into this node's log."""
    rest = b""
    while chunk := await stream.read(LINE_BYTES_MAX):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if text := line.decode(errors="replace").strip():
                log.info("splitter: %s", text)
        rest = rest[-LINE_BYTES_MAX:]


async def _end(process: asyncio.subprocess.Process, *, at_once: bool = False) -> None:
    """End the process and the rest of its session, in order if that does not take long. Repeatable."""
    if process.returncode is None and not at_once:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await process.wait()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    end_session(process.pid)
    await process.wait()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(KILLED_SECONDS_MAX):
            while members(process.pid):  # noqa: ASYNC110 - what is waited for happens in other processes
                await asyncio.sleep(KILLED_LOOK_SECONDS)
    if (group := find_group()) is not None:
        group.remove()


async def _let_go(process: asyncio.subprocess.Process) -> None:
    """Close the pipes of a process that has ended, so that nothing of it is left in the event loop. A process
    that has left its group and still holds the output is not waited for long."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(PIPES_SECONDS_MAX):
            while await process.stdout.read(LINE_BYTES_MAX):
                pass
            await process.stdin.wait_closed()
