"""What do publishers see while a node is emptied, and while the replicas of a lost node are rebuilt?

    python -m bench.scale.moves drain [--mebibytes 1024]       one of three nodes gives all it has to a fourth
    python -m bench.scale.moves repair [--mebibytes 2048]      one of three nodes dies for good, a fourth replaces it
    python -m bench.scale.moves repair --thin --mebibytes 10240
    python -m bench.scale.moves repair --apart /other/disk          the fourth node has a disk of its own

All nodes run on this machine, with default settings, the throttle (`storage.snapshot_bytes_per_second`) included.
Before a drain the topic's records lie in the journals, and nobody splits them; before a repair every node has split its
copy into runs, and its journal has nothing of that any more: for this alone the nodes have small segments, and start
again without. Publishers send at a steady rate (`paced_load.py`) before, meanwhile and afterwards: before and
afterwards are `alone`. A drain lasts from the command until the node is empty; a repair from the first replica that a
new node is given until every write group is whole again, and it begins by itself after
`nameserver.rebuild_after_seconds`, here less than half a minute: the time before, with a dead node and nothing copied,
is told apart, but for its first seconds, in which others are elected. Commits need both nodes that are left then, where
they need the faster of two otherwise.

Prints a table and the targets, which the median of `--rounds` decides, and with `--json FILE` writes every figure as a
result file. The disk takes four times the bytes; with `--thin` the records that are split are zeros, and all but the
fourth node give back the disk that these take (`bench/store/thin_store.py`).
"""

from __future__ import annotations

import argparse
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.nodes.members import Member, leaders, start_members, wait_until
from bench.report.document import targets_table
from bench.results import Results, Row
from bench.scale import rows
from bench.scale.paced_load import FAILED, PacedLoad, Sent, percentile
from bench.store.plain_splitter import PlainSplitter
from bench.store.reads.remote_requests import mainstem
from bench.store.rebuilt_replica import LOST, MIB, NEW, PARTITIONS, RECORD_BYTES, RUN_BYTES, SETTINGS, is_rebuilt
from bench.store.thin_store import fill_thin, is_pruned
from bench.systems.mainstem import Mainstem
from bench.systems.system import free_ports

TITLES = {"drain": rows.DRAIN, "repair": rows.REPAIR}
STORED, PUBLISHED = "stored", "published"
WARM_SECONDS = 4.0
ALONE_SECONDS = 15.0
SETTLE_SECONDS = 3.0
"""Between what is measured and the quiet time after it."""
REBUILD_AFTER_SECONDS = 25
ELECTED_SECONDS = 5.0
"""From the end of a node until publishers see nothing of that any more."""
MOVED_SECONDS_MAX = 900.0
PRUNED_SECONDS_MAX = 180.0
LOOKS_SECONDS = 0.5
"""Between two looks at how far it is: each has a node ask all others, on the same two cores."""


class Moved(NamedTuple):
    """Seconds, but for the bytes and the counts."""

    story: str
    mebibytes: int
    seconds: float
    sent: int
    failed: int
    alone_p50: float
    alone_p99: float
    meanwhile_p50: float
    meanwhile_p99: float
    meanwhile_most: float
    degraded_p99: float | None
    """While a node was dead, others led, and nothing was copied yet; None: none was."""

    @property
    def ratio(self) -> float:
        return self.meanwhile_p99 / self.alone_p99

    def as_figures(self) -> dict[str, float]:
        """As result files keep them."""
        named = {name: value for name, value in self._asdict().items() if isinstance(value, (int, float))}
        return named | {rows.P99_TO_ALONE: self.ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("story", choices=tuple(TITLES))
    parser.add_argument("--mebibytes", type=int, help="that each node has (drain: 1024, repair: 2048)")
    parser.add_argument("--thin", action="store_true", help="before a repair: records of zeros, which take no disk")
    parser.add_argument("--apart", type=Path, metavar="DIR", help="a repair: where the fourth node keeps its files")
    parser.add_argument("--rate", type=float, default=200.0, help="records of 1 KB a second")
    parser.add_argument("--rounds", type=int, default=1, help="each with nodes of its own")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.thin and options.story != "repair":
        parser.error("--thin is of a repair: before a drain nothing is split, so nothing can be thinned")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no node is left behind
    results = Results()
    for _ in range(options.rounds):
        directory = Path(tempfile.mkdtemp(prefix="mainstem-moves-"))
        try:
            if options.story == "drain":
                moved = drained(directory, options.mebibytes or 1024, options.rate)
            else:
                with tempfile.TemporaryDirectory(prefix="mainstem-apart-", dir=options.apart or directory) as apart:
                    mebibytes = options.mebibytes or 2048
                    moved = repaired(directory, Path(apart), mebibytes, options.rate, thin=options.thin)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        tell(moved)
        results.add(Row(rows.MOVES, TITLES[moved.story]), Mainstem.name, moved.as_figures())
        if options.json is not None:
            results.save(options.json)
    print(targets_table(results, measured_only=True))


def tell(moved: Moved) -> None:
    speed = moved.mebibytes / moved.seconds
    print(f"{moved.story} of {moved.mebibytes:,} MiB in {moved.seconds:.1f} s ({speed:.0f} MiB/s)")
    print(f"{moved.failed} of {moved.sent:,} records failed")
    print(f"{'':<12}{'p50 ms':>9}{'p99 ms':>9}{'to alone':>10}")
    print(f"{'alone':<12}{1e3 * moved.alone_p50:>9.1f}{1e3 * moved.alone_p99:>9.1f}")
    if moved.degraded_p99 is not None:
        ratio = moved.degraded_p99 / moved.alone_p99
        print(f"{'one is dead':<12}{'':>9}{1e3 * moved.degraded_p99:>9.1f}{ratio:>9.2f}x")
    print(f"{'meanwhile':<12}{1e3 * moved.meanwhile_p50:>9.1f}{1e3 * moved.meanwhile_p99:>9.1f}{moved.ratio:>9.2f}x")
    print(f"{'most':<12}{'':>9}{1e3 * moved.meanwhile_most:>9.1f}", flush=True)


def drained(directory: Path, mebibytes: int, rate: float) -> Moved:
    """Raises BenchError."""
    members = start_members(directory, 3, {"pipeline.mode": "off"})
    load: PacedLoad | None = None
    try:
        fill(members, mebibytes)
        members.append(join(members, directory, {"pipeline.mode": "off"}))
        load = begin_load(members, directory, rate)
        asked, begun_load = members[0], time.monotonic()
        time.sleep(WARM_SECONDS + ALONE_SECONDS)
        begun = time.monotonic()
        mainstem("cluster", "drain", str(LOST), "--http", asked.http, "--token", asked.token)
        await_slowly(lambda: any(one["node"] == LOST and one["empty"] for one in asked.get("/v1/cluster")["drains"]),
                     f"node {LOST} is not empty")  # fmt: skip
        ended = time.monotonic()
        time.sleep(SETTLE_SECONDS + ALONE_SECONDS)
        sent = load.end()
        return figures("drain", mebibytes, sent, begun_load, begun, begun, ended)
    finally:
        end_all(members, load)


def repaired(directory: Path, apart: Path, mebibytes: int, rate: float, *, thin: bool) -> Moved:
    """`apart`: where the fourth node keeps its files. Raises BenchError."""
    settings = {"pipeline.mode": "off", "nameserver.rebuild_after_seconds": str(REBUILD_AFTER_SECONDS)}
    members = start_members(directory, 3, SETTINGS)
    load: PacedLoad | None = None
    try:
        if thin:
            make_topics(members[0].kafka)
            fill_thin(members, STORED, PARTITIONS, mebibytes, RUN_BYTES)
        else:
            fill(members, mebibytes)
            for member in members:
                with PlainSplitter(member.http, RUN_BYTES) as splitter:
                    splitter.split(merging=False)
        groups = [group for member in members for group in member.get("/v1/split")["groups"].values()]
        assert groups, "every node splits its copy"
        wait_until(lambda: is_pruned(members), "journals still have what is split", PRUNED_SECONDS_MAX)
        start_again(members, settings)
        members.append(join(members, apart, settings))
        load = begin_load(members, directory, rate)
        asked, begun_load = members[0], time.monotonic()
        time.sleep(WARM_SECONDS + ALONE_SECONDS)
        lost_at = time.monotonic()
        members.pop(LOST - 1).kill()
        await_slowly(lambda: has_begun(asked), f"nothing is rebuilt on node {NEW}")
        begun = time.monotonic()
        await_slowly(lambda: is_rebuilt(asked), f"node {NEW} has not taken the place of node {LOST}")
        ended = time.monotonic()
        time.sleep(SETTLE_SECONDS + ALONE_SECONDS)
        sent = load.end()
        return figures("repair", mebibytes, sent, begun_load, lost_at, begun, ended)
    finally:
        end_all(members, load)


def fill(members: Sequence[Member], mebibytes: int) -> None:
    bootstrap = members[0].kafka
    make_topics(bootstrap)
    mainstem("bench", "produce", "--topic", STORED, "--records", str(mebibytes * MIB // RECORD_BYTES), "--record-bytes",
             str(RECORD_BYTES), "--keep", "--bootstrap", bootstrap)  # fmt: skip


def make_topics(bootstrap: str) -> None:
    for topic in (STORED, PUBLISHED):
        mainstem("topic", "create", topic, "--partitions", str(PARTITIONS), "--bootstrap", bootstrap)


def start_again(members: list[Member], settings: dict[str, str]) -> None:
    """End all members, and start the same nodes with other settings. Raises BenchError."""
    peers = {member.node_id: member.rpc for member in members}
    for at, member in enumerate(members):
        member.kill()
        addresses = (member.kafka, member.http, member.rpc)
        members[at] = Member(member.node_id, member.directory, addresses, peers, settings)
    for member in members:
        member.await_started(len(members))
    wait_until(lambda: all(leaders(members[0])), "a write group has no leader")


def join(members: Sequence[Member], directory: Path, settings: dict[str, str]) -> Member:
    """One more node, which holds nothing yet."""
    peers = {member.node_id: member.rpc for member in members}
    addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
    new = Member(NEW, directory / f"node-{NEW}", addresses, peers, settings)
    try:
        new.await_started(len(members) + 1)
    except BaseException:
        new.kill()
        raise
    return new


def begin_load(members: Sequence[Member], directory: Path, rate: float) -> PacedLoad:
    bootstrap = ",".join(member.kafka for member in members)
    return PacedLoad(bootstrap, PUBLISHED, PARTITIONS, rate, directory / "notes")


def has_begun(asked: Member) -> bool:
    return any(one["node"] == NEW for group in asked.get("/v1/cluster")["write_groups"] for one in group["replicas"])


def await_slowly(done: Callable[[], bool], otherwise: str) -> None:
    def looked() -> bool:
        time.sleep(LOOKS_SECONDS)
        return done()

    wait_until(looked, otherwise, MOVED_SECONDS_MAX)


def end_all(members: Sequence[Member], load: PacedLoad | None) -> None:
    if load is not None:
        load.kill()
    for member in members:
        member.kill()


def figures(
    story: str, mebibytes: int, sent: Sequence[Sent], load_at: float, lost_at: float, begun: float, ended: float
) -> Moved:
    """`lost_at`: when a node died, or `begun`. All moments are of the monotonic clock."""

    def due(first: float, last: float) -> list[Sent]:
        return [one for one in sent if first <= one.due < last]

    alone = due(load_at + WARM_SECONDS, lost_at) + due(ended + SETTLE_SECONDS, sent[-1].due)
    meanwhile = due(begun, ended)
    most: Any = max((one.seconds for one in meanwhile), default=0.0)
    return Moved(
        story=story,
        mebibytes=mebibytes,
        seconds=ended - begun,
        sent=len(sent),
        failed=sum(one.seconds == FAILED for one in sent),
        alone_p50=percentile(alone, 0.5),
        alone_p99=percentile(alone, 0.99),
        meanwhile_p50=percentile(meanwhile, 0.5),
        meanwhile_p99=percentile(meanwhile, 0.99),
        meanwhile_most=most,
        degraded_p99=percentile(due(lost_at + ELECTED_SECONDS, begun), 0.99) if lost_at < begun else None,
    )


if __name__ == "__main__":
    main()
