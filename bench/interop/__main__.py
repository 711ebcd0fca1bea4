"""`python -m bench.interop`: prints one row per client and scenario; `--client` names some clients only.

Environments are made in `~/.cache/mainstem-bench/interop`, once per client and version. Ends with 1 when a scenario
went well with Kafka and not with Mainstem, but for those that fail as a limit of this version says they do (`LIMITS`).
Scenarios that fail with Kafka prove nothing about Mainstem; they are named at the end.

Both nodes have an authorizer, and a listener for TLS and SASL beside the plain one, whose clients are super users.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic

from bench.interop import tools
from bench.interop.programs.scenario import NOT_OFFERED, SECONDS_MAX
from bench.systems import all_systems
from bench.systems.guard import Guard
from bench.systems.kafka import Kafka
from bench.systems.kafka_jars import VERSION
from bench.systems.system import Durability, Node, Setup

ROOT = Path(__file__).parent.parent.parent
CACHE = Path.home() / ".cache" / "mainstem-bench"
SCENARIO_SECONDS_MAX = 4 * SECONDS_MAX
INSTALL_SECONDS_MAX = 300.0
REASON_CHARACTERS_MAX = 160
"""Of what a client says; all of it is in the lines that come while it runs."""


class Limit(NamedTuple):
    reason: str
    shown_by: Sequence[str]
    """The text of a failure, one of them, that comes of the limit. Any other failure counts."""


_NO_TRANSACTIONS = Limit(
    "no transactions in this version",
    ("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "TransactionalIdAuthorizationFailed", "not support LIST_TRANSACTIONS"),
)
"""A coordinator of transactions is asked for and refused, by whichever name the client has for that."""

LIMITS: Mapping[str, Limit] = {
    "transactions": _NO_TRANSACTIONS,
    "kafka-transactions": _NO_TRANSACTIONS,
    "kafka-metadata-quorum": Limit(
        "Mainstem's metadata quorum is its own: mainstem cluster status", ("not support DESCRIBE_QUORUM",)
    ),
}
"""Scenarios that need what this version has not (docs/operations.md, limits)."""

SCENARIOS = (
    "round trip", "idempotent producer", "consumer group", "two members", "offsets by time", "topics and configs",
    "groups administered", "delete records", "transactions",
)  # fmt: skip


class Library(NamedTuple):
    """A client that PyPI has, at one version; `requirements` may name what it needs besides."""

    name: str
    version: str
    program: str
    requirements: tuple[str, ...] = ()


CODECS = ("lz4", "python-snappy", "zstandard", "crc32c")
LIBRARIES = (
    Library("confluent-kafka", "2.16.1", "confluent"),
    Library("confluent-kafka", "2.4.0", "confluent"),
    Library("kafka-python", "3.0.12", "kafka_python", CODECS),
    Library("kafka-python", "2.2.15", "kafka_python", CODECS),
    Library("kafka-python-ng", "2.2.3", "kafka_python", CODECS),
    Library("aiokafka", "0.14.0", "asyncio_kafka", ("cramjam",)),
    Library("aiokafka", "0.11.0", "asyncio_kafka", ("cramjam",)),
)
"""The newest of each, and older ones that are still met."""


class Row(NamedTuple):
    client: str
    version: str
    scenario: str
    outcomes: Mapping[str, str | None]
    """Per system why it failed: empty when it did not, None where the client has no such thing."""

    @property
    def limit(self) -> Limit | None:
        """That which Mainstem's failure shows."""
        limit, failure = LIMITS.get(self.scenario), self.outcomes["mainstem"]
        if limit is None or not failure or not any(words in failure for words in limit.shown_by):
            return None
        return limit

    def regrets(self) -> bool:
        """Whether Mainstem fails a client that Kafka serves, for no reason that is known."""
        return self.outcomes["kafka"] == "" and bool(self.outcomes["mainstem"]) and self.limit is None

    def proves_nothing(self) -> bool:
        """Whether Kafka itself fails the client."""
        return bool(self.outcomes["kafka"])


def python_of(library: Library) -> Path:
    """The interpreter of the library's own environment, made first if need be. Raises CalledProcessError."""
    home = CACHE / "interop" / f"{library.name}-{library.version}"
    python = home / "bin" / "python"
    if not (home / "complete").exists():
        shutil.rmtree(home, ignore_errors=True)
        venv.create(home, with_pip=True)
        wanted = [f"{library.name}=={library.version}", *library.requirements]
        subprocess.run(
            [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *wanted],
            check=True, capture_output=True, timeout=INSTALL_SECONDS_MAX,
        )  # fmt: skip
        (home / "complete").touch()
    return python


def outcome_of(library: Library, scenario: str, address: str) -> str | None:
    command = [str(python_of(library)), "-m", f"bench.interop.programs.{library.program}", scenario, address]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SCENARIO_SECONDS_MAX
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {SCENARIO_SECONDS_MAX:.0f} s"
    if done.returncode == NOT_OFFERED:
        return None
    if done.returncode == 0:
        return ""
    return (done.stdout.strip() or done.stderr.strip() or f"code {done.returncode}").splitlines()[-1]


def rows(nodes: Mapping[str, Node], kafka: Kafka, chosen: list[str]) -> Iterator[Row]:
    for library in LIBRARIES:
        if not chosen or library.name in chosen:
            for scenario in SCENARIOS:
                found = {system: outcome_of(library, scenario, node.address) for system, node in nodes.items()}
                if any(outcome is not None for outcome in found.values()):
                    yield Row(library.name, library.version, scenario, found)
    java = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", kafka.class_path]
    sets = (
        ("kcat", tools.kcat_version() if shutil.which("kcat") else "", tools.KCAT, lambda tool: [tool]),
        ("Kafka's tools", VERSION, tools.KAFKA, lambda tool: [*java, tool]),
        ("Kafka's tools, secured", VERSION, tools.GUARDED, lambda tool: [*java, tool]),
    )
    for client, version, scenarios, command in sets:
        if version and (not chosen or client in chosen):
            words = {system: _words(node) for system, node in nodes.items()}
            for scenario, calls in scenarios.items():
                yield Row(client, version, scenario, {
                    system: tools.run(calls, words[system], command) for system in nodes
                })  # fmt: skip


def _words(node: Node) -> Mapping[str, str]:
    """The surroundings of a set of scenarios: a topic without messages, a consumer group's name, and who connects
    how."""
    guard = node.setup.guard
    assert guard is not None
    assert node.guarded is not None
    topic, group = tools.names()
    admin = AdminClient({"bootstrap.servers": node.address})  # it must live until the answer is there
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(SECONDS_MAX)
    return {
        "ADDRESS": node.address, "TOPIC": topic, "GROUP": group, "GUARDED": node.guarded,
        "SETTINGS": str(guard.java_properties(node.guarded)),
        "ALICE": str(guard.java_properties_of(tools.ALICE, tools.ALICE_PASSWORD, node.guarded)),
    }  # fmt: skip


def table(found: list[Row]) -> str:
    """Markdown."""

    def said(outcome: str | None) -> str:
        return "not offered" if outcome is None else "yes" if outcome == "" else "**no**"

    lines = ["| client | version | scenario | Kafka | Mainstem | why |", "| --- | --- | --- | --- | --- | --- |"]
    for row in found:
        kafka, mainstem = (row.outcomes[system] for system in ("kafka", "mainstem"))
        who_failed = "mainstem" if row.limit is None else row.limit.reason
        reasons = [
            f"{who}: {outcome[:REASON_CHARACTERS_MAX]}"
            for who, outcome in (("kafka", kafka), (who_failed, mainstem))
            if outcome
        ]
        why = "; ".join(reasons).replace("|", "\\|")
        cells = (row.client, row.version, row.scenario, said(kafka), said(mainstem), why)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.interop", description=__doc__)
    parser.add_argument("--client", action="append", default=[], help="only this one; repeatable")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no node is left behind
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    found: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="interop-") as directory:
        systems = all_systems(CACHE)
        nodes = {}
        try:
            for name, system in systems.items():
                system.prepare()
                home = Path(directory) / name
                setup = Setup(
                    directory=home, cpus=cpus, cores_count=len(cpus), durability=Durability.ASYNC,
                    guard=Guard(home / "guard", users=True),
                )  # fmt: skip
                nodes[name] = system.start(setup)
            kafka = systems["kafka"]
            assert isinstance(kafka, Kafka)
            for row in rows(nodes, kafka, asked.client):
                found.append(row)
                print(f"{row.client} {row.version}, {row.scenario}: {dict(row.outcomes)}", file=sys.stderr, flush=True)
        finally:
            for node in nodes.values():
                node.stop()
    print(table(found))
    regretted = [row for row in found if row.regrets()]
    print(f"\n{len(found)} rows; Kafka serves and Mainstem does not, for no known reason: {len(regretted)}")
    for row in found:
        if row.proves_nothing():
            print(f"Kafka fails, so that the row proves nothing: {row.client} {row.version}, {row.scenario}")
    return 1 if regretted else 0


if __name__ == "__main__":
    sys.exit(main())
