"""`python -m tests.simulation.cluster [SEEDS] [--whole|--elastic|--moving|--brokers] [--jobs N] [--plant NAME]`: play
runs, print seeds, stop at a failure, say how many were played in an hour.

SEEDS is `first..last` or a count, which is counted from a random seed on.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from tests.harness.files_in_memory import memory
from tests.simulation.apart.planted import BROKER_BREAKS, BROKER_PLANTS
from tests.simulation.apart.run import play as play_brokers_apart
from tests.simulation.cluster.planted import BREAKS, PLANTS, Plant, planted
from tests.simulation.cluster.run import Outcomes
from tests.simulation.cluster.run import play as play_storage_roles
from tests.simulation.elastic.planted import ELASTIC_BREAKS, ELASTIC_PLANTS
from tests.simulation.elastic.run import play as play_elastic_clusters
from tests.simulation.light import GARBAGE_THRESHOLDS
from tests.simulation.migrating_groups.load import MIGRATING_GROUPS
from tests.simulation.migrating_groups.planted import MIGRATION_BREAKS, MIGRATION_PLANTS
from tests.simulation.moving.over_one_store import ONE_STORE, play_moving_queues
from tests.simulation.moving.planted import APART_BREAKS, APART_PLANTS, STORE_BREAKS, STORE_PLANTS
from tests.simulation.oracle import Violation
from tests.simulation.share_groups.load import SHARE_GROUPS
from tests.simulation.share_groups.planted import SHARE_BREAKS, SHARE_PLANTS
from tests.simulation.transactions.load import TRANSACTIONS
from tests.simulation.transactions.planted import TRANSACTION_BREAKS, TRANSACTION_PLANTS
from tests.simulation.whole.planted import WHOLE_BREAKS, WHOLE_PLANTS
from tests.simulation.whole.run import play as play_whole_nodes

PROGRESS_SECONDS = 60.0
"""How often a long, quiet run says how far it is."""


KINDS = {
    "storage": play_storage_roles,
    "whole": play_whole_nodes,
    "elastic": play_elastic_clusters,
    "moving": play_moving_queues,
    "brokers": play_brokers_apart,
}


ALL_PLANTS: Mapping[str, Plant] = {
    **PLANTS, **WHOLE_PLANTS, **TRANSACTION_PLANTS, **SHARE_PLANTS, **MIGRATION_PLANTS, **ELASTIC_PLANTS,
    **APART_PLANTS, **STORE_PLANTS, **BROKER_PLANTS
}  # fmt: skip
ALL_BREAKS: Mapping[str, str] = {
    **BREAKS, **WHOLE_BREAKS, **TRANSACTION_BREAKS, **SHARE_BREAKS, **MIGRATION_BREAKS, **ELASTIC_BREAKS,
    **APART_BREAKS, **STORE_BREAKS, **BROKER_BREAKS
}  # fmt: skip


class Wanted(NamedTuple):
    """How seeds are to be played."""

    nodes: str
    """Which kind: one of `KINDS`."""
    plant: str | None
    faults: list[str]
    seconds: float | None


class Played(NamedTuple):
    """The result of a seed."""

    seed: int
    seconds: float
    outcomes: Outcomes | None
    violation: str = ""
    breaks: str = ""
    where: str = ""
    """The traceback."""


def seeds_of(text: str) -> range:
    first, dots, last = text.partition("..")
    if dots:
        return range(int(first), int(last) + 1)
    start = random.SystemRandom().randrange(1 << 31)
    return range(start, start + int(text))


def play_one(wanted: Wanted, seed: int) -> Played:
    play = KINDS[wanted.nodes]
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=memory()) as directory:
        try:
            with planted(wanted.plant, ALL_PLANTS) if wanted.plant else nullcontext():
                outcomes = play(seed, Path(directory), seconds=wanted.seconds, faults=wanted.faults)
        except Violation as error:
            seconds = time.monotonic() - started
            return Played(seed, seconds, None, str(error), error.breaks, traceback.format_exc())
    return Played(seed, time.monotonic() - started, outcomes)


class Player:
    """`play_one` for a process of its own."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted

    def __call__(self, seed: int) -> Played:
        return play_one(self._wanted, seed)


def prepare_process() -> None:
    gc.set_threshold(*GARBAGE_THRESHOLDS)


@contextmanager
def played_by(jobs: int, wanted: Wanted, seeds: Iterable[int]) -> Iterator[Iterator[Played]]:
    """The seeds as they are played, by so many processes."""
    prepare_process()
    if jobs == 1:
        yield map(Player(wanted), seeds)
        return
    with multiprocessing.get_context("fork").Pool(jobs, prepare_process) as pool:
        yield pool.imap_unordered(Player(wanted), seeds)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("seeds", nargs="?", default="100")
    parser.add_argument("--jobs", type=int, default=1, help="processes that play at the same time")
    parser.add_argument("--keep-going", action="store_true", help="play all seeds, list those that fail")
    parser.add_argument("--faults", default="", help="only these kinds, separated by commas")
    parser.add_argument("--seconds", type=float, help="of load and faults")
    parser.add_argument("--quiet", action="store_true", help="print failures only, and how far it is now and then")
    parser.add_argument("--whole", action="store_true", help="whole nodes, and clients that speak Kafka's protocol")
    parser.add_argument("--elastic", action="store_true", help="as --whole, and replicas move from node to node")
    parser.add_argument("--moving", action="store_true", help="as --whole, and queues move between write groups")
    parser.add_argument("--brokers", action="store_true", help="as --whole, and brokers have no storage")
    parser.add_argument("--plant", choices=sorted(ALL_BREAKS), help="have this bug; a check must find it")
    options = parser.parse_args()
    seeds = seeds_of(options.seeds)
    nodes = "storage"
    if options.elastic or options.plant in ELASTIC_PLANTS:
        nodes = "elastic"
    elif options.moving or options.plant in (*APART_PLANTS, *STORE_PLANTS):
        nodes = "moving"
    elif options.brokers or options.plant in BROKER_PLANTS:
        nodes = "brokers"
    elif options.whole or options.plant in WHOLE_PLANTS | TRANSACTION_PLANTS | SHARE_PLANTS | MIGRATION_PLANTS:
        nodes = "whole"
    faults = options.faults.split(",")
    if options.plant in TRANSACTION_PLANTS:
        faults.append(TRANSACTIONS)
    if options.plant in SHARE_PLANTS:
        faults.append(SHARE_GROUPS)
    if options.plant in MIGRATION_PLANTS:
        faults.append(MIGRATING_GROUPS)
    if options.plant in STORE_PLANTS:
        faults.append(ONE_STORE)
    wanted = Wanted(nodes, options.plant, faults, options.seconds)
    letters = ALL_BREAKS[options.plant] if options.plant else ""
    count, failed, found = 0, [], []
    began = told = time.monotonic()
    with played_by(options.jobs, wanted, seeds) as all_played:
        for played in all_played:
            count += 1
            if played.outcomes is None:
                failed.append(played.seed)
                if played.breaks and played.breaks in letters:
                    found.append(played.seed)
                print(f"seed {played.seed} fails: {played.violation}", flush=True)
                if not options.keep_going and (found or not options.plant):
                    print(played.where, file=sys.stderr)
                    break
            elif not options.quiet:
                print(_line(played, played.outcomes), flush=True)
            elif time.monotonic() - told > PROGRESS_SECONDS:
                told = time.monotonic()
                print(f"… {count} of {len(seeds)} seeds, {_per_hour(count, began)}", flush=True)
    print(
        f"{count} seeds, {len(failed)} failed {failed or ''} in {time.monotonic() - began:.1f} s, "
        f"{_per_hour(count, began)}"
    )
    if options.plant:
        print(
            f"{options.plant}: a check of {' or '.join(letters)} found it with {len(found)} of these seeds "
            f"{found or ''}"
        )
        return not found
    return bool(failed)


def _per_hour(count: int, began: float) -> str:
    return f"{count / (time.monotonic() - began) * 3600:,.0f} an hour"


def _line(played: Played, outcomes: Outcomes) -> str:
    return (
        f"seed {played.seed}: trace {outcomes.trace}, {outcomes.blocks} blocks, {outcomes.acknowledged} batches "
        f"acknowledged, {outcomes.elections} terms, {outcomes.snapshots} snapshots, "
        f"{outcomes.merges.get('merged', 0)} merges, {played.seconds:.2f} s"
        + "".join(f", {what}: {count}" for what, count in outcomes.moves.items())
    )


if __name__ == "__main__":
    sys.exit(main())
