"""`python -m bench.interop.suites NAME`: runs the tests that a client's authors wrote against a broker, as published
with a version of it, on a node of Kafka and then on one of Mainstem, and prints how many passed and which differ.

Ends with 1 when a test passed on Kafka and not on Mainstem. Words after `--` are for the suite's own runner: `-k join`
for pytest, `-run Join` for Go. The output of each run stays in the cache beside the sources.
"""

from __future__ import annotations

import argparse
import enum
import json
import os
import signal
import subprocess
import sys
import tempfile
import venv
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from bench.errors import BenchError
from bench.interop import languages
from bench.interop.languages import Words
from bench.systems import all_systems
from bench.systems.kafka_jars import VERSION
from bench.systems.system import Durability, Setup, System

SUITE_SECONDS_MAX = 3600.0
TEST_SECONDS_MAX = 60
SYSTEMS = ("kafka", "mainstem")
SETTINGS = {"kafka.auto.create.topics.enable": "true"}
"""Kafka's own default, which suites count on."""
HEAP = "768m"


class Outcome(enum.Enum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


Outcomes = Mapping[str, Outcome]
"""By test."""


class Suite(NamedTuple):
    name: str
    version: str
    fetched: Callable[[], Path]
    """Fetches what is missing, and returns where the suite is. It raises CalledProcessError or BenchError."""
    run: Callable[[Path, str, Words, Path], Outcomes]
    """Takes what was fetched, the address of a node, words for the runner, and the file for the output."""


def suites() -> Sequence[Suite]:
    return (
        Suite("kafka-python", KAFKA_PYTHON, _kafka_python, _run_kafka_python),
        Suite("franz-go", languages.go_version(FRANZ_GO), _franz_go, _run_franz_go),
    )


KAFKA_PYTHON = "3.0.11"
KAFKA_PYTHON_SOURCE = "https://github.com/dpkp/kafka-python"
"""The archive at PyPI leaves out some of the tests."""


def _kafka_python() -> Path:
    def build(home: Path) -> None:
        venv.create(home / "venv", with_pip=True)
        pip = [str(home / "venv" / "bin" / "python"), "-m", "pip", "-q", "--disable-pip-version-check"]
        languages.call([*pip, "install", "pytest", "pytest-mock", "pytest-timeout", *languages.CODECS])
        clone = ["git", "clone", "-q", "--depth", "1", "--branch", KAFKA_PYTHON]
        languages.call([*clone, KAFKA_PYTHON_SOURCE, str(home / "source")])

    return languages.once(f"suite-kafka-python-{KAFKA_PYTHON}", build)


def _run_kafka_python(home: Path, address: str, words: Words, output: Path) -> Outcomes:
    report = output.with_suffix(".xml")
    report.unlink(missing_ok=True)
    command = [
        str(home / "venv" / "bin" / "python"), "-m", "pytest", "test/integration", "-q", "-p", "no:cacheprovider",
        "--timeout", str(TEST_SECONDS_MAX), "--timeout-method=signal", "--tb=short",
        "--log-level=WARNING", f"--junitxml={report}", *words,
    ]  # fmt: skip
    environment = {"KAFKA_VERSION": VERSION, "KAFKA_URI": f"kafka://{address}", "KAFKA_ROOT": "/", "PYTHONPATH": "."}
    _run(command, home / "source", environment, output)
    if not report.exists():
        raise BenchError(f"the suite ended before its first test: {output}")
    return outcomes_of_pytest(report.read_text())


FRANZ_GO = "github.com/twmb/franz-go"
FRANZ_GO_RECORDS = 50_000
"""Of each test that copies; its authors take ten times as many, for an hour."""


def _franz_go() -> Path:
    found = subprocess.run(
        ["go", "mod", "download", "-json", f"{FRANZ_GO}@v{languages.go_version(FRANZ_GO)}"],
        capture_output=True, text=True, check=True, timeout=languages.BUILD_SECONDS_MAX,
    )  # fmt: skip
    return Path(json.loads(found.stdout)["Dir"])


def _run_franz_go(home: Path, address: str, words: Words, output: Path) -> Outcomes:
    command = ["go", "test", "-json", "-count=1", "-timeout", f"{SUITE_SECONDS_MAX:.0f}s", "./pkg/kgo", *words]
    environment = {"KGO_SEEDS": address, "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": str(FRANZ_GO_RECORDS)}
    _run(command, home, environment, output)
    return outcomes_of_go(output.read_text(errors="replace"))


def outcomes_of_pytest(report: str) -> Outcomes:
    """Of a report in JUnit's format. A test that passed and failed to clean up has failed."""
    outcomes: dict[str, Outcome] = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        test = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        tags = {child.tag for child in case}
        failed, skipped = tags & {"failure", "error"}, "skipped" in tags
        if outcomes.get(test) is not Outcome.FAILED:
            outcomes[test] = Outcome.FAILED if failed else Outcome.SKIPPED if skipped else Outcome.PASSED
    return outcomes


def outcomes_of_go(output: str) -> Outcomes:
    """Of the lines of `go test -json`, among which others may be. A test that did not come to its end has failed."""
    outcomes: dict[str, Outcome] = {}
    verdicts = {"run": Outcome.FAILED, "pass": Outcome.PASSED, "fail": Outcome.FAILED, "skip": Outcome.SKIPPED}
    for line in output.splitlines():
        if line.startswith("{"):
            told = json.loads(line)
            if "Test" in told and told["Action"] in verdicts:
                outcomes[told["Test"]] = verdicts[told["Action"]]
    return outcomes


def _run(command: Words, directory: Path, environment: Mapping[str, str], output: Path) -> None:
    """Tests that fail are told by the outcomes. Raises BenchError."""
    with output.open("w") as file:
        try:
            subprocess.run(
                command, cwd=directory, env=os.environ | environment, stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, timeout=SUITE_SECONDS_MAX,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"the suite did not end within {SUITE_SECONDS_MAX:.0f} s: {output}") from error


def outcomes_on(system: System, suite: Suite, home: Path, words: Words) -> Outcomes:
    system.prepare()
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    output = languages.CACHE / "interop" / f"suite-{suite.name}-{suite.version}-{system.name}.out"
    with tempfile.TemporaryDirectory(prefix="suite-") as directory:
        setup = Setup(
            directory=Path(directory), cpus=cpus, cores_count=len(cpus), durability=Durability.ASYNC,
            settings=SETTINGS, heap=HEAP,
        )  # fmt: skip
        node = system.start(setup)
        try:
            outcomes = suite.run(home, node.address, words, output)
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


def main() -> int:
    known = {suite.name: suite for suite in suites()}
    parser = argparse.ArgumentParser(prog="python -m bench.interop.suites", description=__doc__)
    parser.add_argument("suite", choices=sorted(known), help="whose tests to run")
    parser.add_argument("--system", choices=SYSTEMS, action="append", help="only on this one of both")
    arguments, words = split_words(sys.argv[1:])
    asked = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no node is left behind
    suite, systems = known[asked.suite], all_systems(languages.CACHE)
    home = suite.fetched()
    chosen = asked.system or SYSTEMS
    found = {name: outcomes_on(systems[name], suite, home, words) for name in SYSTEMS if name in chosen}
    print(table(suite, found))
    return 1 if len(found) > 1 and regretted(found) else 0


if __name__ == "__main__":
    sys.exit(main())
