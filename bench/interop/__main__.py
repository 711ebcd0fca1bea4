"""`python -m bench.interop`: prints one row per client and scenario; `--client` names some clients only.

Environments are made in `~/.cache/mainstem-bench/interop`, once per client and version. Ends with 1 when a scenario
went well with Kafka and not with Mainstem, but for those that are limits of this version (`LIMITS`).
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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic

from bench.interop import tools
from bench.interop.programs.scenario import NOT_OFFERED, SECONDS_MAX
from bench.systems import all_systems
from bench.systems.kafka import Kafka
from bench.systems.kafka_jars import VERSION
from bench.systems.system import Durability, Setup

ROOT = Path(__file__).parent.parent.parent
CACHE = Path.home() / ".cache" / "mainstem-bench"
SCENARIO_SECONDS_MAX = 4 * SECONDS_MAX
INSTALL_SECONDS_MAX = 300.0
REASON_CHARACTERS_MAX = 160
"""Of what a client says; all of it is in the lines that come while it runs."""

LIMITS = {
    "transactions": "no transactions in this version",
    "kafka-transactions": "no transactions in this version",
    "kafka-acls": "no access control in this version",
    "kafka-metadata-quorum": "Mainstem's metadata quorum is its own: mainstem cluster status",
}
"""Scenarios that need what this version has not (docs/operations.md, limits), and the word for it."""

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

    def regrets(self) -> bool:
        """Whether Mainstem fails a client that Kafka serves, for no reason that is known."""
        return self.outcomes["kafka"] == "" and bool(self.outcomes["mainstem"]) and self.scenario not in LIMITS


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


def rows(addresses: Mapping[str, str], kafka: Kafka, chosen: list[str]) -> Iterator[Row]:
    for library in LIBRARIES:
        if not chosen or library.name in chosen:
            for scenario in SCENARIOS:
                found = {system: outcome_of(library, scenario, address) for system, address in addresses.items()}
                if any(outcome is not None for outcome in found.values()):
                    yield Row(library.name, library.version, scenario, found)
    named = {system: tools.names() for system in addresses}
    for system, address in addresses.items():
        admin = AdminClient({"bootstrap.servers": address})
        topic = named[system][0]
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(SECONDS_MAX)
    java = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", kafka.class_path]
    sets = (
        ("kcat", tools.kcat_version() if shutil.which("kcat") else "", tools.KCAT, lambda tool: [tool]),
        ("Kafka's tools", VERSION, tools.KAFKA, lambda tool: [*java, tool]),
    )
    for client, version, scenarios, command in sets:
        if version and (not chosen or client in chosen):
            for system, (topic, group) in named.items():  # each set begins with a topic without messages
                named[system] = _topic_anew(addresses[system], topic), group
            for scenario, calls in scenarios.items():
                yield Row(client, version, scenario, {
                    system: tools.run(calls, address, *named[system], command)
                    for system, address in addresses.items()
                })  # fmt: skip


def _topic_anew(address: str, old: str) -> str:
    name = f"{old}-again"
    admin = AdminClient({"bootstrap.servers": address})  # it must live until the answer is there
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(SECONDS_MAX)
    return name


def table(found: list[Row]) -> str:
    """Markdown."""

    def said(outcome: str | None) -> str:
        return "not offered" if outcome is None else "yes" if outcome == "" else "**no**"

    lines = ["| client | version | scenario | Kafka | Mainstem | why |", "| --- | --- | --- | --- | --- | --- |"]
    for row in found:
        kafka, mainstem = (row.outcomes[system] for system in ("kafka", "mainstem"))
        limit = LIMITS.get(row.scenario, "mainstem")
        reasons = [
            f"{who}: {outcome[:REASON_CHARACTERS_MAX]}"
            for who, outcome in (("kafka", kafka), (limit, mainstem))
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
                setup = Setup(
                    directory=Path(directory) / name, cpus=cpus, cores_count=len(cpus), durability=Durability.ASYNC
                )
                nodes[name] = system.start(setup)
            kafka = systems["kafka"]
            assert isinstance(kafka, Kafka)
            for row in rows({name: node.address for name, node in nodes.items()}, kafka, asked.client):
                found.append(row)
                print(f"{row.client} {row.version}, {row.scenario}: {dict(row.outcomes)}", file=sys.stderr, flush=True)
        finally:
            for node in nodes.values():
                node.stop()
    print(table(found))
    regretted = [row for row in found if row.regrets()]
    print(f"\n{len(found)} rows; Kafka serves and Mainstem does not, for no known reason: {len(regretted)}")
    return 1 if regretted else 0


if __name__ == "__main__":
    sys.exit(main())
