"""One life of one node: what a workload does with it, and what it is given to do so.

A workload declares sessions; the runner holds each of them once per system and repetition, on a `Stage` that starts
the node, drives loads at it, keeps the figures, and afterwards leaves neither process nor file.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from bench import load as loads
from bench import topics
from bench.errors import LoadFailed
from bench.load import Fetch, Produce, Result
from bench.machine import CpuSets
from bench.metrics import Figures, figures_of
from bench.process_tree import ProcessTree
from bench.results import Results, Row
from bench.systems.guard import Guard
from bench.systems.system import Durability, Node, Setup, System
from bench.topics import Queues
from bench.window import Window
from mainstem.time_slices import LONG_SECONDS, SHORT_SECONDS, set_slice

CONNECTIONS = 4
"""Of saturating loads. Kafka works on one request of a connection at a time."""
IN_FLIGHT = 5
"""Requests outstanding on each connection: what clients allow by default."""
BATCH_HEADER_BYTES = 61
RECORD_HEADER_BYTES = 8
"""Of a record without key and headers, about."""
MEETINGS = 8
"""Batches that each queue gets before it is measured. Kafka writes the first entries of a queue's two indexes after
some 4 KB; until all queues have theirs it runs at a tenth of its speed, which is a start and not a state."""
MEETING_SECONDS_MAX = 120.0
WARM_SLICE_SECONDS = 2.0
WARM_GAIN_LEAST = 1.05
"""A slice of the warm-up that gains less than this is the last."""
REST_SECONDS_MAX = 5.0
REST_SLICE_SECONDS = 0.2
REST_CORES_MOST = 0.1
"""A node that takes less than this has done what it had put off."""


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """How long to measure. `seconds_max` bounds the whole run: what has not begun by then is left out."""

    name: str
    repetitions: int
    seconds: float
    warm_seconds_max: float
    seconds_max: float
    disk_bytes: int
    """The room that nodes may come to occupy at once."""

    @property
    def full(self) -> bool:
        return self.name == "full"


SHORT = Form("short", 3, 2.0, 8.0, seconds_max=570.0, disk_bytes=8 << 30)
CLUSTER = Form("cluster", 1, 1.2, 12.0, seconds_max=345.0, disk_bytes=12 << 30)
"""Three nodes start and warm slowly: they live once, and each row is measured several times."""
FULL = Form("full", 5, 10.0, 40.0, seconds_max=5 * 3_600.0, disk_bytes=40 << 30)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """`run` does the measuring. `variant` is added to the system's name where Mainstem is measured in two ways."""

    name: str
    run: Callable[[Stage], None]
    durability: Durability
    systems: tuple[str, ...] = ("mainstem", "kafka")
    variant: str = ""
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    nodes: int = 1
    """More than one: a cluster of as many, each topic with a replica on every node."""
    heap: str = ""
    """Of each JVM, in place of the bench's."""
    guarded: bool = False
    """The node has a listener for TLS beside the plain one."""
    all_cores: bool = False
    """The node may use the load's core too while it is measured: for sessions whose helpers need one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Workload:
    """`shown`: the metrics its tables show; results keep all that were measured."""

    number: str
    title: str
    sessions: Callable[[Form], list[Session]]
    shown: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Bench:
    """Shared by all stages."""

    form: Form
    cpus: CpuSets
    results: Results
    directory: Path
    """The directory in which nodes keep their data while they live."""
    load_program: Path
    cache: Path
    """The directory of downloads."""
    systems: Mapping[str, System]
    heap: str
    """Of JVM brokers."""
    dirty_bytes: int
    """Beyond that much unwritten data the kernel makes writers wait; the long form writes more where bytes count."""


class Stage:
    """A context manager. Not started yet: `start` is the session's first act, and again after `kill`."""

    def __init__(self, bench: Bench, workload: str, session: Session, system: System) -> None:
        self.bench = bench
        self.form = bench.form
        self.system = system
        self.session = session
        self.label = f"{system.name} {session.variant}".strip()
        self._workload = workload
        self._node: Node | None = None
        self._running: list[loads.Running] = []
        self._directory = bench.directory / "node"

    def __enter__(self) -> Stage:
        shutil.rmtree(self._directory, ignore_errors=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for running in self._running:
            running.stop()
        if self._node is not None:
            self._node.kill()
        if error is None or not isinstance(error, Exception):
            shutil.rmtree(self._directory, ignore_errors=True)  # of a failure, the node's output is kept

    @property
    def _cores(self) -> tuple[int, ...]:
        return self.bench.cpus.both if self.session.all_cores else self.bench.cpus.broker

    @property
    def node(self) -> Node:
        assert self._node is not None, "the session has not started its node"
        return self._node

    def start(self, *, splitter: bool = False, settings: Mapping[str, str] | None = None) -> Node:
        """A node on the session's directory; what an earlier one, which must have ended, left there is continued.
        `settings` go before the session's."""
        self._node = self.system.start(
            Setup(
                directory=self._directory,
                cpus=self.bench.cpus.both,
                cores_count=len(self._cores),
                durability=self.session.durability,
                settings={**self.session.settings, **(settings or {})},
                heap=self.session.heap or self.bench.heap,
                nodes=self.session.nodes,
                splitter=splitter,
                guard=Guard(self.bench.directory / "guard", users=False) if self.session.guarded else None,
            )
        )
        return self._node

    def create(
        self, prefix: str, partitions: int, *, topics_count: int = 1, configs: dict[str, str] | None = None
    ) -> Queues:
        self._prepare()
        queues = Queues(prefix, topics_count, partitions)
        topics.create(self.node.address, queues, configs, replicas=self.session.nodes)
        return queues

    def produce(self, queues: Queues, **options: Any) -> Produce:
        """A load on `queues`; saturating unless `options`, fields of `Produce`, say otherwise."""
        settings = {
            "connections": CONNECTIONS,
            "in_flight": IN_FLIGHT,
            "seconds": self.form.seconds,
            "leaders": self.session.nodes > 1,
        } | options
        return Produce(address=self.node.address, topics=f"{queues.prefix}:{queues.topics}",
                       partitions=queues.partitions, **settings)  # fmt: skip

    def fetch(self, queues: Queues, **options: Any) -> Fetch:
        return Fetch(address=self.node.address, topics=f"{queues.prefix}:{queues.topics}",
                     partitions=queues.partitions, **options)  # fmt: skip

    def pass_bytes(self, load: Produce) -> int:
        """About what a load writes until it has met every queue once."""
        queues = int(load.topics.rpartition(":")[2]) * load.partitions
        return queues * (BATCH_HEADER_BYTES + load.batch_records * (load.record_bytes + RECORD_HEADER_BYTES))

    def begin(self, load: Produce | Fetch, *, nice: int = 0, timed: bool = True) -> loads.Running:
        """Start a load beside others; it is ended with the stage at the latest. `nice` is above 0 where a load shares
        its core with one whose latency is measured. `timed`: the load's own latencies count, so that it does not wait
        for the ends of others' slices, nor for those of a load that is not."""
        cores = ",".join(map(str, self.bench.cpus.load))
        running = loads.start(self.bench.load_program, load, cpus=cores)
        self._running.append(running)
        if nice:
            os.setpriority(os.PRIO_PROCESS, running.process.pid, nice)
        set_slice(SHORT_SECONDS if timed else LONG_SECONDS, running.process.pid)
        return running

    def finish(self, running: loads.Running) -> Result:
        """Raises LoadFailed unless the answers were right, all of them."""
        try:
            result = running.result()
        except loads.LoadError as error:
            raise LoadFailed(f"{self.label}: {error}") from error
        finally:
            self._running.remove(running)
        wrong = {
            name: result[name]
            for name in ("errors", "gaps", "checksum_errors", "abandoned", "unsent")
            if result.get(name)
        }
        if wrong:
            raise LoadFailed(f"{self.label}: the answers were not right: {wrong}")
        if not self.node.lives:
            raise LoadFailed(f"{self.label}: the node ended under load")
        return result

    def warm(self, load: Produce, *, seconds_least: float = 0.0) -> None:
        """The load in slices until a slice is hardly faster than the best before it: JIT, caches, connections.
        Bounded by the form's warm-up time; not counted. `seconds_least` is for nodes that share their cores with
        others, where a slice says little."""
        piece = dataclasses.replace(load, seconds=WARM_SLICE_SECONDS, rate=None, bytes=None)
        self._prepare()
        begun = time.monotonic()
        best = 0.0
        while (spent := time.monotonic() - begun) < self.form.warm_seconds_max:
            rate = self.finish(self.begin(piece))["requests_per_s"]
            if spent >= seconds_least and rate < best * WARM_GAIN_LEAST:
                return
            best = max(best, rate)

    def meet_every_queue(self, load: Produce, *, times: int = MEETINGS) -> None:
        """Write to each queue, not counted: a queue's first batches cost files, memory, and pages of an index."""
        self._prepare()
        size = self.pass_bytes(load) * times
        self.finish(self.begin(dataclasses.replace(load, seconds=MEETING_SECONDS_MAX, rate=None, bytes=size)))

    def rest(self) -> None:
        """Let the node do what it has put off (indexes of what was written, syncs), with all cores and for so long at
        most: the next measurement is not to pay for what came before it."""
        self._prepare()
        until = time.monotonic() + REST_SECONDS_MAX
        spent = self.node.tree.cpu_seconds()
        while time.monotonic() < until:
            time.sleep(REST_SLICE_SECONDS)
            before, spent = spent, self.node.tree.cpu_seconds()
            if spent - before < REST_CORES_MOST * REST_SLICE_SECONDS:
                return

    def _prepare(self) -> None:
        """All cores for the node, as nothing is measured: compilers and creators of files are done sooner."""
        self.node.tree.pin(self.bench.cpus.both)

    def window(self) -> Window:
        """From here on it is measured: the node has the cores that it is allowed."""
        self.node.tree.pin(self._cores)
        return Window(self.node.tree, self.bench.cpus)

    def rate_of(self, load: Produce) -> float:
        """Requests a second, under the conditions of a measurement but not kept."""
        self.window()
        return self.finish(self.begin(load))["requests_per_s"]

    def measure(
        self, title: str, load: Produce | Fetch, *, passes: int = 1, series: str = "", queues: int = 0
    ) -> Figures:
        """Run the load, `passes` times where one is over too soon; keep its figures and the node's CPU time over it
        as one repetition of row `title`. Counted is what the node spends while the load counts, not what the load's
        questions about all queues cost before: of 1,000,000 queues that is several seconds."""
        self.node.tree.pin(self._cores)
        results, cpu_seconds, others = [], 0.0, 0.0
        for _ in range(passes):
            running = self.begin(load)
            running.await_counting()
            window = Window(self.node.tree, self.bench.cpus, ProcessTree(running.process.pid))
            results.append(self.finish(running))
            cpu_seconds += window.node_cpu_seconds()
            others += window.others_cores()
        figures = figures_of(results, cpu_seconds)
        figures["others_cores"] = others / passes
        if isinstance(load, Produce) and load.rate is not None:
            figures["rate_per_s"] = load.rate
        self.record(title, figures, series=series, queues=queues)
        return figures

    def record(self, title: str, figures: Mapping[str, float], *, series: str = "", queues: int = 0) -> None:
        row = Row(self._workload, title, self.session.durability.value, series, queues)
        self.bench.results.add(row, self.label, figures)
