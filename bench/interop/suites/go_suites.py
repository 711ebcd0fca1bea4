"""The suites of clients in Go, as their modules carry them, which `go test` runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from bench.interop import languages
from bench.interop.languages import Words
from bench.interop.suites.compose import Compose
from bench.interop.suites.fault_proxy import FaultProxy
from bench.interop.suites.suite import (
    OPEN_AUTHORIZER,
    SUITE_SECONDS_MAX,
    Outcome,
    Outcomes,
    Piece,
    Suite,
    Wanted,
    run,
)
from bench.systems.kafka_jars import VERSION
from bench.systems.system import OWN_NUMBER, Node

FRANZ_GO = "github.com/twmb/franz-go"
FRANZ_GO_RECORDS = 50_000
"""Of each test that copies; its authors take ten times as many, for an hour."""

SARAMA = "github.com/IBM/sarama"
SARAMA_PORTS = range(29091, 29096)
"""Written in its tests: where they meet the five nodes, through a proxy that they tell to fail."""
KAFKA_GO = "github.com/segmentio/kafka-go"
KAFKA_GO_PORT = 9092
"""Written in its tests."""
OWN_TESTS = "*_test.go"
BROKER_TESTS = "functional_*_test.go"
"""Of Sarama: those that meet a broker."""


def suites() -> list[Suite]:
    creating = {"kafka.auto.create.topics.enable": "true"}
    sarama = Wanted(
        {
            "kafka.broker.rack": OWN_NUMBER, "rack": OWN_NUMBER,
            "kafka.replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
            "broker.rack_aware_reads": "true",
            "kafka.default.replication.factor": "2", "kafka.min.insync.replicas": "1",
            "kafka.offsets.topic.replication.factor": "2",
            "kafka.transaction.state.log.replication.factor": "2", "kafka.transaction.state.log.min.isr": "1",
            "broker.auto_create_topics": "false",
        },
        nodes=len(SARAMA_PORTS), advertised=[f"127.0.0.1:{port}" for port in SARAMA_PORTS], heap="384m",
    )  # fmt: skip
    kafka_go = Wanted(creating | OPEN_AUTHORIZER, ports=[KAFKA_GO_PORT], advertised=[f"localhost:{KAFKA_GO_PORT}"])
    return [
        _suite("franz-go", FRANZ_GO, _run_franz_go, Wanted(creating), f"pkg/kgo/{OWN_TESTS}"),
        _suite("sarama", SARAMA, _run_sarama, sarama, BROKER_TESTS),
        Suite(
            "kafka-go", languages.go_version(KAFKA_GO), _tidy_kafka_go, _run_kafka_go, kafka_go,
            partial(_piece, OWN_TESTS),
        ),
    ]  # fmt: skip


def _suite(
    name: str, module: str, runner: Callable[[Path, Node, Words, Path], Outcomes], wanted: Wanted, files: str
) -> Suite:
    version, fetched = languages.go_version(module), partial(_sources, module)
    return Suite(name, version, fetched, runner, wanted, partial(_piece, files))


def _piece(files: str, home: Path, piece: Piece) -> Words:
    return ["-run", pattern_of(piece.dealt(names_of_tests(home.glob(files))))]


def _sources(module: str) -> Path:
    found = subprocess.run(
        ["go", "mod", "download", "-json", f"{module}@v{languages.go_version(module)}"],
        capture_output=True, text=True, check=True, timeout=languages.BUILD_SECONDS_MAX,
    )  # fmt: skip
    return Path(json.loads(found.stdout)["Dir"])


def _tidy_kafka_go() -> Path:
    """A copy: its `go.mod` lacks something, and sources in Go's own cache cannot be changed."""

    def build(home: Path) -> None:
        shutil.copytree(_sources(KAFKA_GO), home, dirs_exist_ok=True, copy_function=shutil.copyfile)
        for directory, _, _ in os.walk(home):
            Path(directory).chmod(0o755)
        languages.call(["go", "mod", "tidy"], home)

    return languages.once(f"suite-kafka-go-{languages.go_version(KAFKA_GO)}", build)


def _run_franz_go(home: Path, node: Node, words: Words, output: Path) -> Outcomes:
    environment = {"KGO_SEEDS": node.address, "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": str(FRANZ_GO_RECORDS)}
    return _tested(home, ["./pkg/kgo", *words], environment, output)


def _run_sarama(home: Path, node: Node, words: Words, output: Path) -> Outcomes:
    """Without words those tests that meet a broker."""
    chosen = words or ["-run", pattern_of(names_of_tests(home.glob(BROKER_TESTS)))]
    proxied = {f"kafka{number}": pair for number, pair in enumerate(zip(SARAMA_PORTS, node.addresses, strict=True), 1)}
    with FaultProxy(proxied) as proxy, Compose(node) as compose:
        environment = {"TOXIPROXY_ADDR": proxy.url, "KAFKA_VERSION": VERSION, "PATH": compose.path}
        return _tested(home, ["-tags", "functional", ".", *chosen], environment, output)


def _run_kafka_go(home: Path, _node: Node, words: Words, output: Path) -> Outcomes:
    environment = {"KAFKA_VERSION": VERSION, "KAFKA_SKIP_NETTEST": "1"}
    return _tested(home, [".", *words], environment, output)


def _tested(home: Path, words: Words, environment: Mapping[str, str], output: Path) -> Outcomes:
    timeout = f"{SUITE_SECONDS_MAX - 60:.0f}s"
    run(["go", "test", "-json", "-count=1", "-timeout", timeout, *words], home, environment, output)
    return outcomes_of_go(output.read_text(errors="replace"))


def names_of_tests(files: Iterable[Path]) -> Sequence[str]:
    """The names of the tests of some files."""
    return re.findall(r"^func (Test\w+)\(t \*testing", "".join(file.read_text() for file in sorted(files)), re.M)


def pattern_of(tests: Sequence[str]) -> str:
    """A pattern of `go test` for these."""
    return f"^({'|'.join(tests)})$"


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
