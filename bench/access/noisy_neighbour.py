"""The effect on a tenant that publishes little of another one that floods the node.

    python -m bench.access.noisy_neighbour --rounds 3 --windows 4

The quiet one sends 200 records of 1 KB a second, on schedule, from eight connections; the flood is librdkafka, two
processes of a user of its own over SASL_SSL, that produce as fast as they can, and in some windows also read what they
wrote from the beginning. Windows of a second, some in a row, alone and beside the flood take turns, and so do windows
beside as many processes that burn the flood's core and send nothing. The node has all cores but one, on which all
clients are; the flood's run there only when nobody else wants to (`SCHED_IDLE`).

Two latencies are told of each kind of window, the p99 of all of its windows together and the ratio to that alone, of
windows in which neither the host of the machine (`stolen_time`) nor other programs (`others_time`) took more than a
little of the node's processor time, where there are any:

* the client's: from when a record was due until the client had read the answer. The client's own waits for its core, on
  which the flood's clients are, count;
* the node's: from when the kernel was given the request until it had the answer for the client, by the kernel's own
  notes. Nothing that a client does is in it.

Mainstem is measured twice: with the flood's user in a tenant, and without any tenant. `--before TREE` measures another
work tree's Mainstem beside this one, window by window, in place of all that, with a tenant or (`--no-tenant`) without.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from bench import load as loads
from bench import topics
from bench.access.flooding import ALONE, FLOOD, WORKS, Flow, flood
from bench.load import Produce, Result
from bench.machine import CpuSets, share_cores
from bench.metrics import pooled_ms
from bench.others_time import OthersTime
from bench.short_windows import ShortWindow
from bench.stolen_time import StolenTime
from bench.systems import all_systems
from bench.systems.guard import Guard
from bench.systems.other_tree import OtherTree
from bench.systems.system import Durability, Node, Setup, System
from bench.topics import Queues
from mainstem.cli.dev.secured import USER
from mainstem.console.token_file import read_token

HOME = Path(__file__).parents[2] / ".bench"
CACHE = Path.home() / ".cache" / "mainstem-bench"
QUIET = Queues("quiet", 1, 8)
QUIET_PER_SECOND = 200.0
QUIET_RECORD_BYTES = 1024
WINDOW_SECONDS = 1.0
"""Short, as the host may take a processor away at any time: then there are others."""
KINDS = dict(zip(("alone", "burning", "producing", "reading"), WORKS, strict=True))
"""By what they are called on the command line."""
NO_TENANT, KAFKA = "mainstem, no tenant", "kafka"


def make_tenant(node: Node) -> None:
    """The flood's user and topics are a tenant's."""
    token = read_token(node.setup.directory / "write")
    body = {"name": "flood", "prefix": "flood", "users": [USER]}
    request = urllib.request.Request(
        f"http://{node.http}/v1/tenants/set", json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {token}"}, method="POST",
    )  # fmt: skip
    urllib.request.urlopen(request, timeout=30).close()


class Windows:
    """One node, and what was found beside it in windows of each kind."""

    def __init__(self, label: str, node: Node, program: Path) -> None:
        self.label, self.node = label, node
        self._cpus = share_cores()
        for queues in (QUIET, FLOOD):
            topics.create(node.address, queues)
        node.tree.pin(self._cpus.broker)
        load = Produce(address=node.address, topics=f"{QUIET.prefix}:1", partitions=QUIET.partitions, connections=8,
                       record_bytes=QUIET_RECORD_BYTES, batch_records=1, rate=QUIET_PER_SECOND, poisson=True,
                       seconds=WINDOW_SECONDS, kernel_times=True)  # fmt: skip
        self._run = partial(loads.run, program, load, cpus=",".join(map(str, self._cpus.load)))
        self._run()  # the first records of a node are not counted
        self.found: dict[str, list[ShortWindow]] = {kind: [] for kind in WORKS}
        self._flows: dict[str, list[Flow]] = {kind: [] for kind in WORKS}
        """MB/s, by kind of windows, one for all in a row."""

    def measure(self, kind: str, windows: int) -> None:
        """So many windows in a row."""
        with flood(self.node, kind, self._cpus.load) as flow:
            before, began = flow(), time.monotonic()
            for _ in range(windows):
                stolen, others = StolenTime(self._cpus.both), OthersTime(self._cpus.broker, self.node.tree)
                result = self._run()
                self.found[kind].append(ShortWindow(result, stolen.most_seconds(), others.seconds()))
            seconds = time.monotonic() - began
            rates = ((now - then) / seconds / 1e6 for now, then in zip(flow(), before, strict=True))
            self._flows[kind].append(Flow(*rates))

    def results(self, kind: str) -> list[Result]:
        """Of the windows from which the host took nothing; of all where there are none."""
        windows = self.found[kind]
        return [one.result for one in windows if one.whole] or [one.result for one in windows]

    def tell(self) -> None:
        for kind, windows in self.found.items():
            if not windows:
                continue
            sent, read = (statistics.median(rates) for rates in zip(*self._flows[kind], strict=True))
            figures = [
                f"{sent:4.0f} MB/s sent, {read:4.0f} read, {sum(one.whole for one in windows)}/{len(windows)} whole"
            ]
            results = self.results(kind)
            for name, ways in (("client", _of_client), ("node", _of_node)):
                alone, p50, p99 = ways(self.results(ALONE), 0.99), ways(results, 0.5), ways(results, 0.99)
                figures.append(f"{name}: p50 {p50:6.2f} p99 {p99:8.2f} ms {p99 / alone:6.2f} x")
            print(f"{self.label:20} {kind:33} {'  '.join(figures)}", flush=True)


def _of_client(results: Sequence[Result], fraction: float) -> float:
    return pooled_ms(results, fraction)


def _of_node(results: Sequence[Result], fraction: float) -> float:
    return pooled_ms(results, fraction, "served_buckets")


@contextmanager
def started(system: System, cpus: CpuSets, *, tenant: bool) -> Iterator[Node]:
    system.prepare()
    with tempfile.TemporaryDirectory(prefix="noisy-", dir=HOME) as directory:
        home = Path(directory)
        node = system.start(Setup(
            directory=home / "node", cpus=cpus.both, cores_count=len(cpus.broker), durability=Durability.ASYNC,
            guard=Guard(home / "guard", users=True),
        ))  # fmt: skip
        try:
            if tenant:
                make_tenant(node)
            yield node
        finally:
            node.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description="What a flood of one tenant does to another.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--windows", type=int, default=4, help="of a second, in a row")
    parser.add_argument("--before", type=Path, metavar="TREE", help="a work tree to measure beside this one")
    parser.add_argument("--no-tenant", action="store_true", help="with --before: measure both without a tenant")
    parser.add_argument("--kinds", default=",".join(KINDS), help="of windows (default: %(default)s)")
    given = parser.parse_args()
    kinds = [KINDS[name] for name in given.kinds.split(",")]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no node is left behind
    program = loads.build(HOME)
    systems = all_systems(CACHE)
    ours, kafka = systems["mainstem"], systems["kafka"]
    if given.before is not None:
        both = [("before", OtherTree(given.before)), ("after", ours)]
        compare(both, program, given.rounds, given.windows, kinds, tenant=not given.no_tenant)
        return
    for label, system in ((NO_TENANT, ours), ("mainstem, a tenant", ours), (KAFKA, kafka)):
        tenant = label not in (NO_TENANT, KAFKA)
        compare([(label, system)], program, given.rounds, given.windows, kinds, tenant=tenant)


def compare(
    systems: Sequence[tuple[str, System]], program: Path, rounds: int, count: int, kinds: Sequence[str], *, tenant: bool
) -> None:
    """In each round so many windows of each kind beside each node, every second round in the opposite order."""
    with ExitStack() as nodes:
        cpus = share_cores()
        windows = [
            Windows(label, nodes.enter_context(started(system, cpus, tenant=tenant)), program)
            for label, system in systems
        ]
        turns = [(kind, one) for kind in kinds for one in windows]
        for number in range(rounds):
            for kind, one in turns if number % 2 == 0 else reversed(turns):
                one.measure(kind, count)
        for one in windows:
            one.tell()


if __name__ == "__main__":
    main()
