"""`python -m bench.interop.suites NAME`: runs the tests that a client's authors wrote against a broker, as published
with a version of it, on a node of Kafka and then on one of Mainstem, and prints how many passed and which differ.

Ends with 1 when a test passed on Kafka and not on Mainstem. Words after `--` are for the suite's own runner: `-k join`
for pytest, `-run Join` for Go. The output of each run stays in the cache beside the sources. `--keep FILE` adds the
outcomes to those of earlier runs in a file, whose table `python -m bench.interop.suites.kept FILE` prints; with
`--piece 2/4` a suite runs the second quarter of its tests.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from bench.errors import BenchError
from bench.interop import languages
from bench.interop.languages import Words
from bench.interop.suites import go_suites, kept, librdkafka_suite, python_suites
from bench.interop.suites.suite import Outcome, Outcomes, Piece, Suite
from bench.systems import all_systems
from bench.systems.system import Durability, Setup, System

SYSTEMS = ("kafka", "mainstem")
PORT_SECONDS_MAX = 10.0
_POLL_SECONDS = 0.2


def await_free(port: int) -> None:
    """A node that has just ended may hold it for a moment. Raises BenchError."""
    deadline = time.monotonic() + PORT_SECONDS_MAX
    while True:
        try:
            socket.create_server(("127.0.0.1", port)).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise BenchError(f"the suite's tests want port {port} of 127.0.0.1, which is taken: {error}") from error
            time.sleep(_POLL_SECONDS)


def outcomes_on(system: System, suite: Suite, home: Path, words: Words) -> Outcomes:
    system.prepare()
    wanted = suite.wanted
    for port in wanted.ports:
        await_free(port)
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    output = languages.CACHE / "interop" / f"suite-{suite.name}-{suite.version}-{system.name}.out"
    with tempfile.TemporaryDirectory(prefix="suite-") as directory:
        setup = Setup(
            directory=Path(directory), cpus=cpus, cores_count=len(cpus), durability=Durability.ASYNC,
            settings=wanted.settings, heap=wanted.heap, nodes=wanted.nodes, ports=wanted.ports,
            advertised=wanted.advertised,
        )  # fmt: skip
        node = system.start(setup)
        try:
            outcomes = suite.run(home, node, words, output)
        finally:
            node.stop()
    if not outcomes:
        raise BenchError(f"the suite ran no test: {output}")
    print(f"{suite.name} on {system.version()}: its output is in {output}", file=sys.stderr, flush=True)
    return outcomes


def table(suite: Suite, found: Mapping[str, Outcomes]) -> str:
    """Markdown: the numbers, then the tests that do not end alike."""
    lines = [f"| {suite.name} {suite.version} | passed | failed | skipped |", "| --- | --- | --- | --- |"]
    for name, outcomes in found.items():
        counts = Counter(outcomes.values())
        lines.append(f"| {name} | {' | '.join(str(counts[outcome]) for outcome in Outcome)} |")
    systems = list(found)
    lines += ["", f"| test | {' | '.join(systems)} |", f"| --- |{' --- |' * len(systems)}"]
    for test in sorted({test for outcomes in found.values() for test in outcomes}):
        told = [outcomes[test].value if test in outcomes else "did not run" for outcomes in found.values()]
        if len(set(told)) > 1 or Outcome.FAILED.value in told:
            lines.append(f"| {test} | {' | '.join(told)} |")
    return "\n".join(lines)


def regretted(found: Mapping[str, Outcomes]) -> list[str]:
    """Tests that passed on Kafka and not on Mainstem."""
    kafka, mainstem = found["kafka"], found["mainstem"]
    passed = (test for test, outcome in kafka.items() if outcome is Outcome.PASSED)
    return sorted(test for test in passed if mainstem.get(test) is not Outcome.PASSED)


def split_words(arguments: Words) -> tuple[Words, Words]:
    """Those for this command, and those after `--`, which are for the suite's own runner."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


def piece_of(text: str) -> Piece:
    """Of `2/4`. Raises ValueError."""
    number, _, of = text.partition("/")
    piece = Piece(int(number), int(of))
    if not 1 <= piece.number <= piece.of:
        raise ValueError(f"{text} is no piece: the first of four is 1/4, the last 4/4")
    return piece


def main() -> int:
    kinds = (python_suites, go_suites, librdkafka_suite)
    known = {suite.name: suite for kind in kinds for suite in kind.suites()}
    parser = argparse.ArgumentParser(prog="python -m bench.interop.suites", description=__doc__)
    parser.add_argument("suite", choices=sorted(known), help="whose tests to run")
    parser.add_argument("--system", choices=SYSTEMS, action="append", help="only on this one of both")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="add the outcomes to those in this file")
    parser.add_argument("--piece", type=piece_of, metavar="N/M", help="only the Nth of M pieces")
    arguments, words = split_words(sys.argv[1:])
    asked = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no node is left behind
    suite, systems = known[asked.suite], all_systems(languages.CACHE)
    home = suite.fetched()
    if asked.piece is not None:
        if suite.piece is None:
            parser.error(f"{suite.name} does not run in pieces: choose tests by words for its own runner, after --")
        words = [*suite.piece(home, asked.piece), *words]
    chosen = asked.system or SYSTEMS
    found: dict[str, Outcomes] = {}
    for name in (name for name in SYSTEMS if name in chosen):
        found[name] = outcomes_on(systems[name], suite, home, words)
        if asked.keep:
            kept.add(asked.keep, suite, name, found[name])
    print(table(suite, found))
    return 1 if len(found) > 1 and regretted(found) else 0


if __name__ == "__main__":
    sys.exit(main())
