"""The suite of librdkafka, in C and C++: its own runner, which plays the tests that need a broker.

Its sources come with a package of npm that is built on them, tests included. Those of them that call Kafka's command
line tools find those here as scripts. There are three variants: quick mode with groups by the classic protocol, the
same with groups by the new one, and the tests of share groups whole, as quick mode leaves out nearly all of them.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.errors import BenchError
from bench.interop import languages
from bench.interop.languages import Words
from bench.interop.suites.suite import RULED, Outcome, Outcomes, Piece, Suite, Wanted, run
from bench.systems import kafka_jars
from bench.systems.system import Node

PACKAGE = "@confluentinc/kafka-javascript"
PACKAGE_VERSION = "1.10.1"
VERSION = "2.15.1"
"""Of librdkafka, in that version of the package."""
NUMBER = 4
"""Digits of a test's number, with which its file's name begins."""
AT_ONCE = 3
"""As many tests as its authors let run side by side in their own continuous integration."""
TOOLS = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
}
_OUTCOMES = {"PASSED": Outcome.PASSED, "SKIPPED": Outcome.SKIPPED}


class Variant(NamedTuple):
    protocol: str
    flags: Words = ("-Q",)
    files: str = ""
    """Only the tests of the files that this pattern finds."""
    patient: bool = False
    """Tests have more time, as in the continuous integration of its authors."""


VARIANTS = {
    "librdkafka": Variant("classic"),
    "librdkafka-consumer": Variant("consumer"),
    "librdkafka-share": Variant("classic", (), "01*-share_consumer_*[!k].c", patient=True),
}
"""The last leaves out those files whose names end with `mock`: they bring a broker of their own."""


def suites() -> list[Suite]:
    settings = {
        "kafka.auto.create.topics.enable": "true", "kafka.num.partitions": "4", "broker.num_partitions": "4",
        "kafka.group.share.min.record.lock.duration.ms": "1000",
    }  # fmt: skip
    wanted = Wanted(settings | RULED)
    return [
        Suite(name, VERSION, _built, partial(_run, one), wanted, partial(_piece, one)) for name, one in VARIANTS.items()
    ]


def _built() -> Path:
    def build(home: Path) -> None:
        languages.call(["npm", "pack", "--silent", "--pack-destination", str(home), f"{PACKAGE}@{PACKAGE_VERSION}"])
        with tarfile.open(next(home.glob("*.tgz"))) as archive:
            archive.extractall(home, filter="data")
        sources = _sources(home)
        languages.call(["./configure", "--disable-curl", "--disable-gssapi"], sources)
        for folder, target in (("src", "all"), ("src-cpp", "all"), ("tests", "build")):
            languages.call(["make", "-j2", "-C", folder, target], sources)

    return languages.once(f"suite-librdkafka-{VERSION}", build)


def _sources(home: Path) -> Path:
    return home / "package" / "deps" / "librdkafka"


def _run(variant: Variant, home: Path, node: Node, words: Words, output: Path) -> Outcomes:
    tests, report = _sources(home) / "tests", output.with_suffix(".json")
    report.unlink(missing_ok=True)
    configuration = output.with_suffix(".conf")
    configuration.write_text(f"metadata.broker.list={node.address}\ntest.topic.random=true\n")
    libraries = (str(_sources(home) / folder) for folder in ("src", "src-cpp"))
    environment = {
        "RDKAFKA_TEST_CONF": str(configuration), "TEST_REPORT": str(report), "TEST_KAFKA_VERSION": kafka_jars.VERSION,
        "TEST_CONSUMER_GROUP_PROTOCOL": variant.protocol, "LD_LIBRARY_PATH": ":".join(libraries),
        "KAFKA_PATH": str(_tools(home)), "BROKERS": node.address,
    }  # fmt: skip
    if variant.patient:
        environment["CI"] = "true"
    asked = list(words)
    if variant.files and not asked:
        asked = [",".join(_numbers(tests, variant.files))]
    run(["./test-runner", "-L", *variant.flags, f"-p{AT_ONCE}", *asked], tests, environment, output)
    if not report.exists() or not report.stat().st_size:
        raise BenchError(f"the suite ended before it told of its tests: {output}")
    outcomes = outcomes_of_librdkafka(report.read_text(errors="replace"))
    numbers = {number for word in asked for number in word.split(",")}
    return {test: outcome for test, outcome in outcomes.items() if not numbers or test[:NUMBER] in numbers}


def _piece(variant: Variant, home: Path, piece: Piece) -> Words:
    return [",".join(piece.dealt(_numbers(_sources(home) / "tests", variant.files or "0*.c*")))]


def _numbers(tests: Path, files: str) -> Sequence[str]:
    return sorted({file.name[:NUMBER] for file in tests.glob(files)})


def _tools(home: Path) -> Path:
    """A directory as that of Kafka, with those of its tools that the tests call."""
    scripts = home / "kafka" / "bin"
    scripts.mkdir(parents=True, exist_ok=True)
    jars = kafka_jars.fetch(languages.CACHE)
    for script, main in TOOLS.items():
        file = scripts / script
        file.write_text(f"#!/bin/sh\nexec {' '.join(languages.JAVA)} '{jars}/*' {main} \"$@\"\n")
        file.chmod(0o755)
    return scripts.parent


def outcomes_of_librdkafka(report: str) -> Outcomes:
    """Of the report that its runner writes. Tests that were not asked for are left out; one that its authors know to
    fail counts as skipped when it does."""
    outcomes: dict[str, Outcome] = {}
    for test, told in json.loads(report, strict=False)["tests"].items():
        if test == "<MAIN>" or told["state"] == "DNS":
            continue
        outcome = _OUTCOMES.get(told["state"], Outcome.FAILED)
        outcomes[test] = Outcome.SKIPPED if told["known_issue"] and outcome is Outcome.FAILED else outcome
    return outcomes
