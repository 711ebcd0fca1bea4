"""`python -m bench.stalls`: the largest turn of the event loop per case, on a node that has much of everything."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import tempfile
from pathlib import Path

from bench.stalls.cases import CASES
from bench.stalls.crowded_node import Crowd, crowded_node
from bench.stalls.turns import MeasuredLoop

TARGET_MS = 20.0
"""Of the loop's own processor time: what is waited for by everybody else on the node."""


async def measure(loop: MeasuredLoop, crowd: Crowd, repeats: int, only: list[str]) -> dict[str, dict[str, object]]:
    """Per case the largest turn (ms) of each repetition, the smallest of them counting: it has the least noise."""
    results: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory() as directory:
        async with crowded_node(Path(directory), crowd) as node:
            gc.collect()
            gc.freeze()  # as a node does after its start
            for name, case in CASES.items():
                if only and not any(part in name for part in only):
                    continue
                try:
                    measured = [await loop.measured(case(node)) for _ in range(repeats)]
                except Exception as error:  # a version that cannot do it at all says so in its row
                    results[name] = {"error": repr(error)[:200]}
                    continue
                largest, turns = min(measured)
                results[name] = {"largest_ms": round(1000 * largest, 2), "turns": turns}
    return results


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.stalls", description=__doc__)
    for field, number in Crowd._field_defaults.items():
        parser.add_argument(f"--{field}", type=int, default=number)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--only", action="append", default=[], help="only cases with this in their name")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    crowd = Crowd(*(getattr(options, field) for field in Crowd._fields))
    loop = MeasuredLoop()
    asyncio.set_event_loop(loop)
    try:
        results = loop.run_until_complete(measure(loop, crowd, options.repeats, options.only))
    finally:
        loop.close()
    if options.json:
        print(json.dumps({"crowd": crowd._asdict(), "cases": results}, indent=2))
        return
    print(f"{crowd.queues:,} queues, {crowd.producers:,} producers, {crowd.runs:,} runs, {crowd.segments:,} segments")
    for name, result in results.items():
        found = result.get("error") or f"{result['largest_ms']:>9} ms in {result['turns']:>6} turns"
        print(f"{name:34} {found}")


if __name__ == "__main__":
    main()
