"""The load generator: a C program that drives any Kafka broker over plain sockets, built and run from here.

A benchmark's client must not be what is measured, so the requests are built before the run and one core saturates a
broker; the strategy stands at the head of each source. `build` compiles it, `run` executes it and returns what it
measured, `start` and `Running.result` do so for several at a time. Before a run counts anything, it asks the broker
about all queues and builds its requests; `Running.await_counting` tells when that is over.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict, cast

SOURCES = Path(__file__).parent

COMPILER_FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror")

OVERTIME_SECONDS_MAX = 300.0
"""Beyond a run's own seconds: building up to 512 MiB of requests, metadata of a million queues, what is still due."""


class LoadError(Exception):
    """The load generator could not be built, or could not do its work. The message says why."""


class Latency(TypedDict):
    """Microseconds. From when a request was sent (or due to be) until its answer was read."""

    p50: float
    p90: float
    p99: float
    p99_9: float
    max: float
    mean: float
    count: int


class Interval(TypedDict):
    seconds: float
    mb_per_s: float
    requests_per_s: float
    p99_us: float


class Result(TypedDict):
    """The measurements of a run, without its warm-up. Bytes are those of record batches, headers included."""

    command: str
    seconds: float
    requests: int
    batches: int
    records: int
    bytes: int
    mb_per_s: float
    batches_per_s: float
    requests_per_s: float
    latency_us: Latency
    latency_buckets: list[tuple[int, int]]  # ns and how many requests took about so long, ascending
    served_us: Latency  # with `kernel_times`: from when the kernel was given a request until it had the answer
    served_buckets: list[tuple[int, int]]
    send_delay_us: Latency  # open loop: from when a request was due until a connection took it
    errors: dict[str, int]  # Kafka error code → partitions answered with it
    gaps: int  # batches that did not begin where the queue's last one ended; warm-up included
    checksum_errors: int  # warm-up included
    empty: int  # fetch responses without a batch
    abandoned: int  # queues whose offset was out of range
    unsent: int  # open loop: requests that were due and had not been sent 30 s after the end
    load_cpu_seconds: float
    intervals: list[Interval]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    address: str
    """HOST:PORT of one broker; the leader of all queues, except where `leaders` are looked for."""
    topics: str
    """PREFIX:COUNT: the topics PREFIX-0 … PREFIX-(COUNT-1), which exist."""
    partitions: int
    """Of each topic."""
    tls_address: str | None = None
    """HOST:PORT where the same broker speaks TLS, and where the load goes then."""
    connections: int = 1
    in_flight: int = 5
    """Requests each connection has unanswered at most."""
    queues_per_request: int = 1
    seconds: float | None = None
    bytes: int | None = None
    """Of record batches. The run ends with the seconds or the bytes, whichever comes first."""
    warmup_seconds: float | None = None
    interval_seconds: float | None = None
    """Asks for `Result.intervals`."""
    seed: int | None = None
    no_check: bool = False
    """Leave out the metadata request that sees to it that the topics exist and have leaders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Produce(_Load):
    """Each request carries one batch for each of `queues_per_request` queues; requests walk all queues in turn."""

    leaders: bool = False
    """Send each queue's requests to its leader. Connections are dealt out to the nodes in turn."""
    record_bytes: int = 100
    """Of a record's value."""
    batch_records: int = 10
    acks: Literal[-1, 0, 1] = -1
    rate: float | None = None
    """Requests a second, on a schedule fixed in advance; None: the next as soon as one is answered."""
    poisson: bool = False
    """With `rate`: random arrivals instead of a grid."""
    kernel_times: bool = False
    """Also measure by the times that the kernel notes, in which the load's own waits for a processor are not."""
    shuffle: bool = False
    """Walk the queues in a random order instead of ascending."""
    pool_bytes: int | None = None
    """Of requests with batches of their own; a larger set shares batches between its requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch(_Load):
    """Each request asks for `queues_per_request` neighbouring queues, from where the answer before it ended."""

    from_: Literal["earliest", "latest"] | int = "earliest"
    until_end: bool = False
    """End when every queue is read to where it ended at the start."""
    max_bytes: int | None = None
    partition_max_bytes: int | None = None
    min_bytes: int | None = None
    max_wait_ms: int | None = None
    rate_bytes: float | None = None
    """Bytes a second to read at; None: as fast as they come."""
    check_crc: bool = False
    """Check the checksum of every batch. Otherwise payload is not looked at, and mostly dropped in the kernel."""
    committed: bool = False
    """Read what transactions have committed, and ask which of them were aborted. Batches of aborted ones come, too."""


def build(directory: Path) -> Path:
    """Compiles the program into `directory` unless what is there is newer than its sources; its path.

    Raises LoadError where there is no compiler or it refuses.
    """
    binary = directory / "load"
    sources = sorted(SOURCES.glob("*.c"))
    newest = max(path.stat().st_mtime for path in [*sources, *SOURCES.glob("*.h")])
    if binary.exists() and binary.stat().st_mtime > newest:
        return binary
    compiler = shutil.which("cc")
    if compiler is None:
        raise LoadError(
            "the load generator is a C program and there is no C compiler (cc) on the PATH. "
            "On Debian or Ubuntu: apt-get install gcc libc6-dev; on Fedora: dnf install gcc"
        )
    directory.mkdir(parents=True, exist_ok=True)
    unfinished = directory / f"load.{os.getpid()}"  # renamed when whole: another process may be building too
    tls = ["-DLOAD_WITH_TLS", "-lssl", "-lcrypto"] if has_openssl(compiler) else []
    command = [compiler, *COMPILER_FLAGS, "-o", str(unfinished), *map(str, sources), "-lm", *tls]
    compiled = subprocess.run(command, capture_output=True, text=True)
    if compiled.returncode != 0:
        unfinished.unlink(missing_ok=True)
        raise LoadError(f"{' '.join(command)}\n{compiled.stderr}")
    unfinished.replace(binary)
    return binary


def has_openssl(compiler: str) -> bool:
    """Whether its headers are there, without which the program speaks no TLS."""
    command = [compiler, "-include", "openssl/ssl.h", "-fsyntax-only", "-x", "c", "/dev/null"]
    return subprocess.run(command, capture_output=True).returncode == 0


class Running:
    """A run under way. `result` awaits it, `stop` ends it without one."""

    def __init__(self, process: subprocess.Popen[bytes], seconds_max: float) -> None:
        """`process`: its standard output is a pipe without a buffer here, or what the buffer holds were lost."""
        self.process = process
        self._seconds_max = seconds_max

    def await_counting(self) -> None:
        """Return when the run begins to count. A run that fails before that, or takes too long, returns as well:
        `result` says why. Called once, before `result`."""
        assert self.process.stdout is not None
        ready = select.poll()  # takes any number of a descriptor, which `select.select` does not
        ready.register(self.process.stdout, select.POLLIN)
        if ready.poll(self._seconds_max * 1_000):
            self.process.stdout.readline()  # that it counts

    def result(self) -> Result:
        """Raises LoadError when the program fails or is not over in time (it is killed then)."""
        try:
            output, complaint = self.process.communicate(timeout=self._seconds_max)
        except subprocess.TimeoutExpired:
            self.stop()
            raise LoadError(f"{self._name} was not over after {self._seconds_max:.0f} s") from None
        if self.process.returncode != 0:
            said = complaint.decode(errors="replace").strip()
            raise LoadError(said or f"{self._name} ended with code {self.process.returncode}")
        return cast(Result, json.loads(output.splitlines()[-1]))

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    @property
    def _name(self) -> str:
        return " ".join(map(str, cast(list[str], self.process.args)))


def arguments(load: Produce | Fetch) -> list[str]:
    """The command line of a load, without the program."""
    line = ["produce" if isinstance(load, Produce) else "fetch"]
    for name in load.__dataclass_fields__:
        value = getattr(load, name)
        option = "--" + name.strip("_").replace("_", "-")
        if value is True:
            line.append(option)
        elif value is not None and value is not False:
            line += [option, str(value)]
    return line


def start(binary: Path, load: Produce | Fetch, *, cpus: str | None = None) -> Running:
    """Starts a run. `cpus` is a list as taskset takes it ("1", "2-3"); None leaves the choice to the kernel.

    Raises LoadError when there is no taskset to do that.
    """
    pinned = [] if cpus is None else ["taskset", "-c", cpus]
    if pinned and shutil.which("taskset") is None:
        raise LoadError("pinning to CPUs needs taskset. On Debian or Ubuntu: apt-get install util-linux")
    process = subprocess.Popen(
        [*pinned, str(binary), *arguments(load)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    own_seconds = (load.seconds or 0.0) + (load.warmup_seconds or 0.0)
    unlimited = load.seconds is None
    return Running(process, own_seconds + OVERTIME_SECONDS_MAX * (4 if unlimited else 1))


def run(binary: Path, load: Produce | Fetch, *, cpus: str | None = None) -> Result:
    """Runs a load to its end. Raises LoadError with the program's own words when it fails."""
    return start(binary, load, cpus=cpus).result()
