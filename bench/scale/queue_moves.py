"""For how long does a queue take no batches while it moves to another write group, and what do publishers see
elsewhere?

    python -m bench.scale.queue_moves [--moves 20] [--window-seconds 2]

Three nodes on this machine with default settings. Publishers send at a steady rate (`paced_load.py`) to the queues of
one topic, and a client without patience appends to a queue of another one, at each node in turn. Windows take turns: in
every second one that queue is sent to the next write group. The longest pause between two acknowledgements in a window
is what its publishers see of a move; those in windows without a move say how much of that is the machine's. The
latencies of the steady publishers in the two kinds of windows are compared as well. Queues that move are new each time,
with some records.

Prints a table and the targets, and with `--json FILE` writes every figure as a result file.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import shutil
import signal
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.failover.knocker import Knocks
from bench.failover.topic import PARTITIONS, TOPIC
from bench.nodes.members import Member, start_members, wait_until
from bench.report.document import targets_table
from bench.results import Results, Row
from bench.scale import rows
from bench.scale.paced_load import FAILED, PacedLoad, Sent, percentile
from bench.store.reads.remote_requests import mainstem
from bench.systems.mainstem import Mainstem

PUBLISHED, PUBLISHED_PARTITIONS = "published", 64
WARM_SECONDS = 4.0
MOVE_AFTER = 0.25
"""A move begins when so much of its window is over."""
KNOCK_SECONDS = 0.004
"""Between two appends to the queue that moves. Each is asked of all nodes: the leader may be a new one."""
MOVED_SECONDS_MAX = 30.0


class Window(NamedTuple):
    begun: float
    ended: float
    moved: bool
    pause: float
    """The longest time between two acknowledgements of the queue."""


class Told(NamedTuple):
    """Seconds, but for the counts."""

    moves: int
    pause_median: float
    pause_most: float
    still_median: float
    """The longest pause in a window without a move."""
    failed: int
    alone_p50: float
    alone_p99: float
    meanwhile_p50: float
    meanwhile_p99: float

    @property
    def ratio(self) -> float:
        return self.meanwhile_p99 / self.alone_p99


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moves", type=int, default=20)
    parser.add_argument("--window-seconds", type=float, default=2.0)
    parser.add_argument("--rate", type=float, default=200.0, help="records of 1 KB a second")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if not 1 <= options.moves <= PARTITIONS:
        parser.error(f"--moves: 1 to {PARTITIONS}, as each takes a queue of its own")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no node is left behind
    directory = Path(tempfile.mkdtemp(prefix="mainstem-queue-moves-"))
    try:
        told = measured(directory, options.moves, options.window_seconds, options.rate)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    tell(told)
    results = Results()
    figures = {rows.FENCE: told.pause_median, rows.P99_TO_ALONE: told.ratio, rows.FAILED: float(told.failed)}
    results.add(Row(rows.MOVES, rows.QUEUE_MOVE), Mainstem.name, {**told._asdict(), **figures})
    if options.json is not None:
        results.save(options.json)
    print(targets_table(results, measured_only=True))


def tell(told: Told) -> None:
    print(f"{told.moves} queues moved; {told.failed} records of others failed")
    print(f"longest pause of a queue, ms: median {1e3 * told.pause_median:.1f}, most {1e3 * told.pause_most:.1f}; "
          f"without a move: median {1e3 * told.still_median:.1f}")  # fmt: skip
    print(f"{'others':<12}{'p50 ms':>9}{'p99 ms':>9}")
    print(f"{'no move':<12}{1e3 * told.alone_p50:>9.2f}{1e3 * told.alone_p99:>9.2f}")
    print(
        f"{'a move':<12}{1e3 * told.meanwhile_p50:>9.2f}{1e3 * told.meanwhile_p99:>9.2f}{told.ratio:>9.2f}x", flush=True
    )


def measured(directory: Path, moves: int, window_seconds: float, rate: float) -> Told:
    """Raises BenchError."""
    members = start_members(directory, 3, {"pipeline.mode": "off"})
    load: PacedLoad | None = None
    try:
        bootstrap = ",".join(member.kafka for member in members)
        for topic, partitions in ((TOPIC, PARTITIONS), (PUBLISHED, PUBLISHED_PARTITIONS)):
            mainstem("topic", "create", topic, "--partitions", str(partitions), "--bootstrap", members[0].kafka)
        load = PacedLoad(bootstrap, PUBLISHED, PUBLISHED_PARTITIONS, rate, directory / "notes")
        time.sleep(WARM_SECONDS)
        windows: list[Window] = []
        for partition in range(moves):
            for moved in (False, True) if partition % 2 else (True, False):
                windows.append(asyncio.run(window(members, partition, window_seconds, moved=moved)))
        return figures(windows, load.end())
    finally:
        if load is not None:
            load.kill()
        for member in members:
            member.kill()


async def window(members: Sequence[Member], partition: int, seconds: float, *, moved: bool) -> Window:
    """Raises BenchError."""
    knocks = Knocks({member.node_id: member.kafka for member in members}, partition, KNOCK_SECONDS)
    asked = members[0]
    to = next_group(asked, partition)
    begun = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        knocking = tasks.create_task(knocks.run(begun + seconds))
        await asyncio.sleep(MOVE_AFTER * seconds)
        if moved:
            await asyncio.to_thread(move, asked, partition, to)
        await knocking
    ended = time.monotonic()
    if moved:  # not asked meanwhile: for the answer a node asks the others, which a node that moves a queue does not
        wait_until(lambda: group_of(asked, partition) == to, f"queue {partition} has not moved", MOVED_SECONDS_MAX)
    return Window(begun, ended, moved, longest_pause(knocks.acknowledged))


def longest_pause(acknowledged: Sequence[float]) -> float:
    ordered = sorted(acknowledged)
    return max((later - sooner for sooner, later in itertools.pairwise(ordered)), default=float("inf"))


def group_of(asked: Member, partition: int) -> int:
    group: int = asked.get(f"/v1/cluster/explain/partition/{TOPIC}/{partition}")["group"]
    return group


def next_group(asked: Member, partition: int) -> int:
    return (group_of(asked, partition) + 1) % len(asked.get("/v1/cluster")["write_groups"])


def move(asked: Member, partition: int, to: int) -> None:
    """Wish for a queue to move to a write group."""
    request = urllib.request.Request(
        f"http://{asked.http}/v1/cluster/move-queue",
        json.dumps({"topic": TOPIC, "partition": partition, "to": to}).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {asked.token}"},
        method="POST",
    )
    urllib.request.urlopen(request, timeout=MOVED_SECONDS_MAX).close()


def figures(windows: Sequence[Window], sent: Sequence[Sent]) -> Told:
    def latencies(*, moved: bool) -> list[Sent]:
        return [one for one in sent if any(it.begun <= one.due < it.ended for it in windows if it.moved is moved)]

    def pauses(*, moved: bool) -> list[float]:
        return [it.pause for it in windows if it.moved is moved]

    alone, meanwhile = latencies(moved=False), latencies(moved=True)
    return Told(
        moves=sum(it.moved for it in windows),
        pause_median=statistics.median(pauses(moved=True)),
        pause_most=max(pauses(moved=True)),
        still_median=statistics.median(pauses(moved=False)),
        failed=sum(one.seconds == FAILED for one in sent),
        alone_p50=percentile(alone, 0.5),
        alone_p99=percentile(alone, 0.99),
        meanwhile_p50=percentile(meanwhile, 0.5),
        meanwhile_p99=percentile(meanwhile, 0.99),
    )


if __name__ == "__main__":
    main()
