"""The targets of the project, each as a bound on figures of one result file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from bench.results import Results, Row
from bench.scale import rows
from bench.systems.system import Durability
from bench.workloads import (
    catching_up,
    consuming,
    everything,
    footprint,
    isolation,
    kernel_alone,
    large_requests,
    long_term_store,
    many_queues,
    small_requests,
    splitting,
    three_nodes,
    tiering,
    transactions,
)

MAINSTEM, RECYCLED, KAFKA = "mainstem", "mainstem recycled", "kafka"
CPU = "cpu_us_per_batch"
SYNC, ASYNC = Durability.SYNC.value, Durability.ASYNC.value

Figure = Callable[[Results], float | None]
"""None where a run did not measure it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """`unit` is "×" for a ratio."""

    workload: str
    name: str
    bound: float
    at_least: bool
    unit: str
    figure: Figure
    by_cpu: Figure | None = None
    """Of a throughput: the same comparison in batches per second of the node's CPU time, which other work on the
    machine disturbs far less."""

    def reached(self, figure: float) -> bool:
        return figure >= self.bound if self.at_least else figure <= self.bound


def to_kafka(workload: str, title: str, durability: str, metric: str, system: str = MAINSTEM) -> Figure:
    """Ratio of medians to Kafka's in the same row."""
    return lambda results: results.ratio(results.find(workload, title, durability), metric, system, KAFKA)


def between(workload: str, title: str, base: str, metric: str, system: str = MAINSTEM) -> Figure:
    """Ratio of Mainstem's medians in two rows."""

    def figure(results: Results) -> float | None:
        over, under = (results.median(results.find(workload, one), system, metric) for one in (title, base))
        return None if over is None or not under else over / under

    return figure


def own(workload: str, title: str, metric: str, less: str | None = None, durability: str = "") -> Figure:
    """Mainstem's median, less that of the row `less`; empty `durability`: of the first row of this title."""

    def figure(results: Results) -> float | None:
        value = _own(results, results.find(workload, title, durability), metric)
        if less is None or value is None:
            return value
        base = _own(results, results.find(workload, less), metric)
        return None if base is None else value - base

    return figure


def inverse(figure: Figure) -> Figure:
    """Of a cost: how many times more is had for the same."""

    def inverted(results: Results) -> float | None:
        value = figure(results)
        return 1 / value if value else None

    return inverted


def keeps_up(results: Results) -> float | None:
    """Split over ingested while 100 MB/s were offered; None where the node did not take what was offered."""
    row = results.find("7", splitting.SUSTAINED)
    taken, split = _own(results, row, "mb_per_s"), _own(results, row, "split_mb_per_s")
    if taken is None or split is None or taken < 0.95 * splitting.SUSTAINED_BYTES_PER_SECOND / 1e6:
        return None
    return split / taken


def _own(results: Results, row: Row | None, metric: str) -> float | None:
    return results.median(row, MAINSTEM, metric)


def all_targets() -> list[Target]:
    """In the order of the workloads."""
    return [
        *_produce(), *_requests(), *_consume(), *_isolation(), *_footprint(), *_split(), *_catch_up(), *_kernel(),
        *_long_term(), *_everything(), *_transactions(), *_three_nodes(), *_moves(), *_brokers(), *_objects(),
    ]  # fmt: skip


def _times_kafka(
    workload: str,
    bound: float,
    title: str,
    durability: str,
    metric: str = "mb_per_s",
    system: str = MAINSTEM,
    name: str = "",
) -> Target:
    """At least `bound` times Kafka's rate."""
    rate = to_kafka(workload, title, durability, metric, system)
    cpu = inverse(to_kafka(workload, title, durability, CPU, system))
    return Target(workload, name or f"{title}, {durability}", bound, True, "×", rate, cpu)


def _keeps(workload: str, bound: float, title: str, base: str, system: str = MAINSTEM) -> Target:
    """At least `bound` times Mainstem's own throughput in the row `base`."""
    rate = between(workload, title, base, "mb_per_s", system)
    cpu = inverse(between(workload, title, base, CPU, system))
    way = ", recycled" if system == RECYCLED else ""
    return Target(workload, f"own throughput{way}, {base} → {title}", bound, True, "×", rate, cpu)


def _produce() -> list[Target]:
    found = [
        _times_kafka("1", 1.5, large_requests.TITLE, durability, system=system, name=f"throughput, {durability}, {way}")
        for durability in (ASYNC, SYNC)
        for way, system in (("first pass", MAINSTEM), ("recycled", RECYCLED))
    ]
    for per_request in many_queues.PER_REQUEST:
        few, most, million = (many_queues.title(count, per_request) for count in (16, 16_384, 1_000_000))
        found += [
            _times_kafka("2", 5, most, ASYNC, name=f"throughput, {most}"),
            _keeps("2", 0.9, most, few),
            _keeps("2", 0.9, most, few, RECYCLED),
            _keeps("2", 0.7, million, many_queues.of_million(per_request)),
        ]
    return found


def _requests() -> list[Target]:
    titles = [small_requests.saturated(connections) for connections in small_requests.CONNECTIONS]
    found = [
        _times_kafka("3", 1, title, durability, "requests_per_s", name=f"rate, {durability}, {title}")
        for durability in (ASYNC, SYNC)
        for title in titles
    ]
    half = to_kafka("3", small_requests.HALF_LOAD, SYNC, "p99_ms")
    return [*found, Target("3", "p99 at half load, on disk, to Kafka's", 1, False, "×", half)]


def _consume() -> list[Target]:
    found = [
        _times_kafka("4", bound, title(count), ASYNC, name=f"throughput, {title(count)}")
        for title, bound in ((consuming.tail, 1.2), (consuming.past, 1))
        for count in consuming.COUNTS
    ]
    cpu = [(consuming.tail(count), to_kafka("4", consuming.tail(count), ASYNC, CPU)) for count in consuming.COUNTS]
    return [*found, *(Target("4", f"CPU per byte, {title}, to Kafka's", 1, False, "×", one) for title, one in cpu)]


def _isolation() -> list[Target]:
    pairs = ((isolation.BESIDE_READER, isolation.ALONE), (isolation.BESIDE_SPLIT, isolation.ALONE_TWO_CORES))
    return [Target("5", f"p99 {beside}, to alone", 1.2, False, "×", between("5", beside, alone, "p99_ms"))
            for beside, alone in pairs]  # fmt: skip


def _everything() -> list[Target]:
    """All of it together, and its shares; then what moves to an object store, and a store that is out."""
    alone, out_alone = tiering.BETWEEN, tiering.OUT_BETWEEN
    return [
        *(_beside("10", title, everything.BETWEEN, "whole_p99_ms")
          for title in (everything.EVERYTHING, everything.READING, everything.SPLITTING)),
        *(_beside("11", part + title, part + base, "whole_p99_ms")
          for title, base in ((tiering.UPLOADING, alone), (tiering.OUT, out_alone))
          for part in ("", tiering.TAIL)),
    ]  # fmt: skip


def _beside(workload: str, title: str, alone: str, metric: str) -> Target:
    """At most 1.2 times the latency alone."""
    return Target(workload, f"p99 {title}, to alone", 1.2, False, "×", between(workload, title, alone, metric))


def _footprint() -> list[Target]:
    return [
        Target("6", "idle memory, to Kafka's", 1 / 3, False, "×", to_kafka("6", footprint.IDLE, ASYNC, "resident_mb")),
        Target("6", "memory of 1,000,000 queues, over idle", 300, False, "MB",
               own("6", footprint.MILLION, "resident_mb", footprint.IDLE)),
        Target("6", "start", 1, False, "s", own("6", footprint.IDLE, "start_s")),
        Target("6", "restart after SIGKILL with 1 GiB unsplit", 3, False, "s",
               own("6", footprint.RESTARTED, "restart_s")),
    ]  # fmt: skip


def _split() -> list[Target]:
    p99 = between("7", splitting.SUSTAINED, splitting.WITHOUT, "p99_ms")
    return [
        Target("7", "split, of what 100 MB/s bring in", 0.98, True, "×", keeps_up),
        Target("7", "p99 meanwhile, to 100 MB/s without the splitter", 1.2, False, "×", p99),
    ]


def _catch_up() -> list[Target]:
    found = []
    for count in catching_up.COUNTS:
        title = catching_up.cold(count)
        cpu = to_kafka("8", title, ASYNC, "cpu_ms_per_mb")
        found += [
            _times_kafka("8", 1.5, title, ASYNC, name=f"throughput, {title}"),
            Target("8", f"CPU per byte, {title}, to Kafka's", 1, False, "×", cpu),
        ]
    small = own("8", catching_up.ONE_BY_ONE, "cpu_ms_per_request")
    return [*found, Target("8", f"CPU of {catching_up.ONE_BY_ONE}", 5, False, "ms", small)]


def _kernel() -> list[Target]:
    titles = [kernel_alone.title(queues, size) for queues in (16, 1_000_000) for size in (170, 1024)]
    return [Target("kernel", title, 1.3, False, "× plain C", own("kernel", title, "to_plain_c")) for title in titles]


def _long_term() -> list[Target]:
    large, small = long_term_store.LARGE.title, long_term_store.SMALL.title
    passes = ((long_term_store.MERGE_LARGE, 200), (long_term_store.MERGE_SMALL, 200), (long_term_store.COMPACT, 100))
    files, written = "files_per_tib", "written_per_byte"
    return [
        Target("9", f"merged files per TiB, {large}", 1_100, False, "", own("9", large, files)),
        Target("9", f"merged files per TiB, {small}", 9_000, False, "", own("9", small, files)),
        Target("9", f"written to disk 2 per byte, {large}", 2.05, False, "", own("9", large, written)),
        Target("9", f"written to disk 2 per byte, {small}", 3, False, "", own("9", small, written)),
        *(Target("9", f"per core, {title}", bound, True, "MB/s", own("9", title, "mb_per_cpu_s"))
          for title, bound in passes),
        Target("9", f"CPU of {long_term_store.READ_STORE}", 5, False, "ms",
               own("9", long_term_store.READ_STORE, "cpu_ms_per_queue")),
    ]  # fmt: skip


def _transactions() -> list[Target]:
    told = [
        (transactions.transaction(producers), kept) for kept in (ASYNC, SYNC) for producers in transactions.PRODUCERS
    ]
    found = []
    for title, kept in told:
        rate = to_kafka("13", title, kept, "transactions_per_s")
        cpu = inverse(to_kafka("13", title, kept, "cpu_ms_per_transaction"))
        median = to_kafka("13", title, kept, "p50_ms")
        found += [
            Target("13", f"rate, {title}, {kept}", 1, True, "×", rate, cpu),
            Target("13", f"p50, {title}, {kept}, to Kafka's", 1, False, "×", median),
        ]
    for tier in (transactions.JOURNAL, transactions.RUNS, transactions.MERGED):
        everything_read, committed = (transactions.read(tier, committed=wanted) for wanted in (False, True))
        cost = between("13", committed, everything_read, "cpu_ms_per_mb")
        found.append(Target("13", f"CPU per byte, {committed}, to everything", 1.1, False, "×", cost))
    return found


def _three_nodes() -> list[Target]:
    """The CPU of three nodes for the work that costs one node 1."""
    fewest, *_, most = three_nodes.CONNECTIONS
    small, large = three_nodes.small_title, three_nodes.LARGE_TITLE
    bounds = [(8.0, small(fewest), ASYNC)]
    bounds += [(bound, title, kept) for bound, title in ((3.5, small(most)), (4.0, large)) for kept in (ASYNC, SYNC)]
    number = three_nodes.WORKLOAD.number
    return [
        Target(number, f"CPU of three nodes, {title}, {kept}, to one node's", bound, False, "×",
               own(number, f"{title}, {three_nodes.NODES[3]}", "to_one_node", durability=kept))
        for bound, title, kept in bounds
    ]  # fmt: skip


def _moves() -> list[Target]:
    """The latency of publishers while replicas move (`python -m bench.scale.moves`), and queues (`queue_moves`)."""
    bounds = ((rows.DRAIN, 2.0), (rows.REPAIR, 1.2), (rows.QUEUE_MOVE, 1.2))
    fence = Target(rows.MOVES, f"pause of its own publishers while {rows.QUEUE_MOVE}", 0.2, False, "s",
                   own(rows.MOVES, rows.QUEUE_MOVE, rows.FENCE))  # fmt: skip
    return [fence] + [
        target
        for title, bound in bounds
        for target in (
            Target(rows.MOVES, f"publish p99 while {title}, to alone", bound, False, "×",
                   own(rows.MOVES, title, rows.P99_TO_ALONE)),
            Target(rows.MOVES, f"records that failed while {title}", 0, False, "",
                   own(rows.MOVES, title, rows.FAILED)),
        )
    ]  # fmt: skip


def _brokers() -> list[Target]:
    """The cost of readers for the nodes that store (`python -m bench.scale.reader_costs`)."""
    return [Target(rows.BROKERS, f"storage nodes' CPU, {rows.CROWD}, to one", 1.1, False, "×",
                   own(rows.BROKERS, rows.CROWD, rows.TO_ONE_READER))]  # fmt: skip


def _objects() -> list[Target]:
    """The speed of cold reads from an object store (`python -m bench.store.reads.remote_reads`)."""
    titles = [rows.object_readers(readers, apart=apart) for readers in rows.OBJECT_READERS for apart in (False, True)]
    return [
        Target(rows.OBJECTS, f"{title}, to obstore alone", 0.8, True, "×", own(rows.OBJECTS, title, rows.TO_OBSTORE))
        for title in titles
    ]
