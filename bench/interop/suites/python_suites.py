"""The suites of clients in Python, which pytest runs."""

from __future__ import annotations

import tarfile
import venv
from pathlib import Path
from xml.etree import ElementTree

from bench.errors import BenchError
from bench.interop import languages
from bench.interop.languages import Words
from bench.interop.suites.suite import TEST_SECONDS_MAX, Outcome, Outcomes, Suite, Wanted, run
from bench.systems.kafka_jars import VERSION
from bench.systems.system import Node

KAFKA_PYTHON = "3.0.12"
_SERVICE = '''"""Stands in for a module that the published archive leaves out: these tests start no services."""


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    def close(self):
        pass

    def dump_logs(self):
        pass


class SpawnedService:
    def __init__(self, args=None, env=None):
        raise RuntimeError("these tests take the node that they are given")
'''


def suites() -> list[Suite]:
    settings = {
        "kafka.auto.create.topics.enable": "true",
        "kafka.num.partitions": "4", "broker.num_partitions": "4",
        "kafka.group.min.session.timeout.ms": "1000", "groups.session_timeout_ms_min": "1000",
    }  # fmt: skip
    return [Suite("kafka-python", KAFKA_PYTHON, _kafka_python, _run_kafka_python, Wanted(settings))]


def _kafka_python() -> Path:
    """The sources as PyPI has them."""

    def build(home: Path) -> None:
        venv.create(home / "venv", with_pip=True)
        pip = [str(home / "venv" / "bin" / "python"), "-m", "pip", "-q", "--disable-pip-version-check"]
        languages.call([*pip, "install", "py", "pytest", "pytest-mock", "pytest-timeout", *languages.CODECS])
        wanted = f"kafka-python=={KAFKA_PYTHON}"
        languages.call([*pip, "download", "--no-binary", ":all:", "--no-deps", "-d", str(home), wanted])
        with tarfile.open(next(home.glob("kafka_python-*.tar.gz"))) as archive:
            archive.extractall(home, filter="data")
        tests = home / f"kafka_python-{KAFKA_PYTHON}" / "test"
        (tests / "service.py").write_text(_SERVICE)
        (tests / "__init__.py").touch()  # else Python's own package `test` comes before it

    return languages.once(f"suite-kafka-python-{KAFKA_PYTHON}", build)


def _run_kafka_python(home: Path, node: Node, words: Words, output: Path) -> Outcomes:
    report = output.with_suffix(".xml")
    report.unlink(missing_ok=True)
    command = [
        str(home / "venv" / "bin" / "python"), "-m", "pytest", "test/integration", "-q", "-p", "no:cacheprovider",
        "--timeout", str(TEST_SECONDS_MAX), "--timeout-method=signal", "--tb=short",
        "--log-level=WARNING", f"--junitxml={report}", *words,
    ]  # fmt: skip
    uri = f"kafka://{node.address}"
    environment = {"KAFKA_VERSION": VERSION, "KAFKA_URI": uri, "KAFKA_ROOT": "/", "PYTHONPATH": "."}
    run(command, home / f"kafka_python-{KAFKA_PYTHON}", environment, output)
    if not report.exists():
        raise BenchError(f"the suite ended before its first test: {output}")
    return outcomes_of_pytest(report.read_text())


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
