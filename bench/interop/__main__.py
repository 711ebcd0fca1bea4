"""`python -m bench.interop`: prints one row per client and scenario; `--client` names some clients only,
`--scenario` some scenarios, so that the table can be made in pieces.

Ends with 1 when a scenario went well with Kafka and not with Mainstem. Scenarios that fail with Kafka prove nothing
about Mainstem; they are named at the end. So are tools that are missing (javac, go, npm): clients of their language are
left out then.

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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic

from bench.interop import connect, languages, tools
from bench.interop.languages import ROOT, Words
from bench.interop.programs.scenario import NOT_OFFERED, SECONDS_MAX
from bench.systems import all_systems
from bench.systems.guard import Guard
from bench.systems.kafka import Kafka
from bench.systems.kafka_jars import VERSION
from bench.systems.system import Durability, Node, Setup

SCENARIO_SECONDS_MAX = 4 * SECONDS_MAX
REASON_CHARACTERS_MAX = 160
"""Of what a client says; all of it is in the lines that come while it runs."""

SCENARIOS = (
    "round trip", "idempotent producer", "consumer group", "two members", "new group protocol", "offsets by time",
    "topics and configs", "groups administered", "delete records", "transactions", "transactional copy",
    "zombie fenced", "share group", "share group, locks renewed", "Streams, exactly once",
    "Streams, the new group protocol",
)  # fmt: skip


SETTINGS = {"kafka.group.share.min.record.lock.duration.ms": "1000"}
"""Locks of less than 15 seconds are a matter of the group's configs here; Kafka has to be told."""

CONNECT = "Kafka Connect"


class Row(NamedTuple):
    client: str
    version: str
    scenario: str
    outcomes: Mapping[str, str | None]
    """Per system why it failed: empty when it did not, None where the client has no such thing."""

    def regrets(self) -> bool:
        """Whether Mainstem fails a client that Kafka serves."""
        return self.outcomes["kafka"] == "" and bool(self.outcomes["mainstem"])

    def proves_nothing(self) -> bool:
        """Whether Kafka itself fails the client."""
        return bool(self.outcomes["kafka"])


def outcome_of(words: Words, scenario: str, address: str) -> str | None:
    try:
        done = subprocess.run(
            [*words, scenario, address], cwd=ROOT, capture_output=True, text=True, timeout=SCENARIO_SECONDS_MAX
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {SCENARIO_SECONDS_MAX:.0f} s"
    if done.returncode == NOT_OFFERED:
        return None
    if done.returncode == 0:
        return ""
    return (done.stdout.strip() or done.stderr.strip() or f"code {done.returncode}").splitlines()[-1]


def rows(nodes: Mapping[str, Node], kafka: Kafka, chosen: list[str], wanted: list[str]) -> Iterator[Row]:
    """Of the `chosen` clients, or of all; of scenarios, those that have one of the `wanted` words in their names."""

    def is_wanted(scenario: str) -> bool:
        return not wanted or any(word in scenario for word in wanted)

    for library in languages.clients():
        if not chosen or library.name in chosen:
            words = library.built()
            for scenario in filter(is_wanted, SCENARIOS):
                found = {system: outcome_of(words, scenario, node.address) for system, node in nodes.items()}
                if any(outcome is not None for outcome in found.values()):
                    yield Row(library.name, library.version, scenario, found)
    if (not chosen or CONNECT in chosen) and is_wanted(connect.SCENARIO):
        found = {system: connect.outcome(node.address) for system, node in nodes.items()}
        yield Row(CONNECT, VERSION, connect.SCENARIO, found)
    java = [*languages.JAVA, kafka.class_path]
    sets = (
        (tools.kcat_version() if shutil.which("kcat") else "", tools.KCAT, lambda tool: [tool]),
        (VERSION, tools.KAFKA, lambda tool: [*java, tool]),
        (VERSION, tools.GUARDED, lambda tool: [*java, tool]),
    )
    for client, (version, scenarios, command) in zip(tools.SETS, sets, strict=True):
        if version and (not chosen or client in chosen):
            surroundings = {system: _words(node) for system, node in nodes.items()}
            for scenario, calls in scenarios.items():
                if not is_wanted(scenario):
                    continue
                yield Row(client, version, scenario, {
                    system: tools.run(calls, surroundings[system], command) for system in nodes
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
    plan = node.setup.directory / f"plan-of-{topic}.json"
    plan.write_text(tools.plan(topic))
    offsets = node.setup.directory / f"offsets-of-{topic}.json"
    offsets.write_text(tools.offsets(topic))
    return {
        "ADDRESS": node.address, "TOPIC": topic, "PLAN": str(plan), "OFFSETS": str(offsets),
        "GROUP": group, "GUARDED": node.guarded,
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
        reasons = [
            f"{who}: {outcome[:REASON_CHARACTERS_MAX]}"
            for who, outcome in (("kafka", kafka), ("mainstem", mainstem))
            if outcome
        ]
        why = "; ".join(reasons).replace("|", "\\|")
        cells = (row.client, row.version, row.scenario, said(kafka), said(mainstem), why)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.interop", description=__doc__)
    parser.add_argument("--client", action="append", default=[], help="only this one; repeatable")
    parser.add_argument(
        "--scenario", action="append", default=[], help="only those that have this in their names; repeatable"
    )
    asked = parser.parse_args()
    if unknown := set(asked.client) - (names := {*(it.name for it in languages.clients()), CONNECT, *tools.SETS}):
        parser.error(f"there is no client {', '.join(sorted(unknown))} here; there are {', '.join(sorted(names))}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no node is left behind
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    found: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="interop-") as directory:
        systems = all_systems(languages.CACHE)
        nodes = {}
        try:
            for name, system in systems.items():
                system.prepare()
                home = Path(directory) / name
                setup = Setup(
                    directory=home, cpus=cpus, cores_count=len(cpus), durability=Durability.ASYNC,
                    guard=Guard(home / "guard", users=True), settings=SETTINGS,
                )  # fmt: skip
                nodes[name] = system.start(setup)
            kafka = systems["kafka"]
            assert isinstance(kafka, Kafka)
            for row in rows(nodes, kafka, asked.client, asked.scenario):
                found.append(row)
                print(f"{row.client} {row.version}, {row.scenario}: {dict(row.outcomes)}", file=sys.stderr, flush=True)
        finally:
            for node in nodes.values():
                node.stop()
    print(table(found))
    regretted = [row for row in found if row.regrets()]
    print(f"\n{len(found)} rows; Kafka serves and Mainstem does not: {len(regretted)}")
    for row in found:
        if row.proves_nothing():
            print(f"Kafka fails, so that the row proves nothing: {row.client} {row.version}, {row.scenario}")
    for tool in languages.absent_tools():
        print(f"Clients that need {tool} were left out: it is not on the PATH")
    return 1 if regretted else 0


if __name__ == "__main__":
    sys.exit(main())
