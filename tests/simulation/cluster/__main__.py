"""`python -m tests.simulation.cluster [SEEDS] [--whole] [--plant NAME]`: play runs, print seeds, stop at a failure.

SEEDS is `first..last` or a count, which is counted from a random seed on.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import traceback
from contextlib import nullcontext
from pathlib import Path

from tests.simulation.cluster.planted import BREAKS, PLANTS, planted
from tests.simulation.cluster.run import play as play_storage_roles
from tests.simulation.oracle import Violation
from tests.simulation.whole.planted import WHOLE_BREAKS, WHOLE_PLANTS
from tests.simulation.whole.run import play as play_whole_nodes

MEMORY = Path("/dev/shm")
"""Manifests are real files; nothing is gained by having them on a disk."""


def seeds_of(text: str) -> range:
    first, dots, last = text.partition("..")
    if dots:
        return range(int(first), int(last) + 1)
    start = random.SystemRandom().randrange(1 << 31)
    return range(start, start + int(text))


def main() -> int:
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("seeds", nargs="?", default="100")
    parser.add_argument("--keep-going", action="store_true", help="play all seeds, list those that fail")
    parser.add_argument("--faults", default="", help="only these kinds, separated by commas")
    parser.add_argument("--seconds", type=float, help="of load and faults")
    parser.add_argument("--quiet", action="store_true", help="print failures only")
    parser.add_argument("--whole", action="store_true", help="whole nodes, and clients that speak Kafka's protocol")
    plants, breaks = PLANTS | WHOLE_PLANTS, BREAKS | WHOLE_BREAKS
    parser.add_argument("--plant", choices=sorted(plants), help="have this bug; a check must find it")
    options = parser.parse_args()
    seeds = seeds_of(options.seeds)
    play = play_whole_nodes if options.whole or options.plant in WHOLE_PLANTS else play_storage_roles
    began, failed, found = time.monotonic(), [], []
    for seed in seeds:
        with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as directory:
            started = time.monotonic()
            try:
                with planted(options.plant, plants) if options.plant else nullcontext():
                    kinds = options.faults.split(",")
                    outcomes = play(seed, Path(directory), seconds=options.seconds, faults=kinds)
            except Violation as error:
                failed.append(seed)
                if options.plant and error.breaks and error.breaks in breaks[options.plant]:
                    found.append(seed)
                print(f"seed {seed} fails: {error}", flush=True)
                if not options.keep_going and (found or not options.plant):
                    traceback.print_exc()
                    break
            else:
                if not options.quiet:
                    print(f"seed {seed}: trace {outcomes.trace}, {outcomes.blocks} blocks, {outcomes.acknowledged} "
                          f"batches acknowledged, {outcomes.elections} terms, {outcomes.snapshots} snapshots, "
                          f"{time.monotonic() - started:.2f} s",
                          flush=True)
    seconds = time.monotonic() - began
    played = seeds.index(seed) + 1
    print(f"{played} seeds, {len(failed)} failed {failed or ''} in {seconds:.1f} s, "
          f"{played / seconds * 3600:,.0f} an hour")
    if options.plant:
        letters = " or ".join(breaks[options.plant])
        print(f"{options.plant}: a check of {letters} found it with {len(found)} of these seeds {found or ''}")
        return not found
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
