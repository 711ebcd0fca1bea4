"""kcat, and the command line tools that Apache Kafka brings along: each scenario is one call, or two."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from bench.interop.programs.scenario import SECONDS_MAX, new_name

TOOL_SECONDS_MAX = 3 * SECONDS_MAX
"""A JVM that starts on a busy machine included."""
LINES = b"one\ntwo\nthree\n"


class Call(NamedTuple):
    """`says`: what its output must have, somewhere. `ADDRESS` and `TOPIC` stand for themselves in the words."""

    words: Sequence[str]
    stdin: bytes = b""
    says: str = ""


KCAT: Mapping[str, Sequence[Call]] = {
    "produce, consume": [
        Call(["kcat", "-b", "ADDRESS", "-P", "-t", "TOPIC", "-p", "0", "-z", "lz4"], LINES),
        Call(["kcat", "-b", "ADDRESS", "-C", "-t", "TOPIC", "-p", "0", "-o", "beginning", "-e", "-q"], says="three"),
    ],
    "metadata": [Call(["kcat", "-b", "ADDRESS", "-L", "-J"], says="TOPIC")],
    "offset by time": [Call(["kcat", "-b", "ADDRESS", "-Q", "-t", "TOPIC:0:-1"], says="offset")],
}

_GROUP = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
_AT = ["--bootstrap-server", "ADDRESS"]
_TOPIC = ["--topic", "TOPIC"]

KAFKA: Mapping[str, Sequence[Call]] = {
    "kafka-topics": [
        Call(["org.apache.kafka.tools.TopicCommand", *_AT, *_TOPIC, "--describe"], says="PartitionCount: 1"),
    ],
    "kafka-console-producer, -consumer": [
        Call(["org.apache.kafka.tools.ConsoleProducer", *_AT, *_TOPIC], LINES),
        Call(["org.apache.kafka.tools.consumer.ConsoleConsumer", *_AT, *_TOPIC, "--from-beginning",
              "--max-messages", "3", "--group", "GROUP", "--timeout-ms", "40000"], says="three"),
    ],
    "kafka-consumer-groups": [
        Call([_GROUP, *_AT, "--list"], says="GROUP"),
        Call([_GROUP, *_AT, "--group", "GROUP", "--describe"], says="TOPIC"),
        Call([_GROUP, *_AT, "--group", "GROUP", "--reset-offsets", "--to-earliest", *_TOPIC, "--execute"],
             says="TOPIC"),
        Call([_GROUP, *_AT, "--group", "GROUP", "--delete"], says="success"),
    ],
    "kafka-configs": [
        Call(["kafka.admin.ConfigCommand", *_AT, "--alter", *_TOPIC, "--add-config", "retention.ms=7200000"]),
        Call(["kafka.admin.ConfigCommand", *_AT, "--describe", *_TOPIC], says="retention.ms=7200000"),
    ],
    "kafka-get-offsets": [Call(["org.apache.kafka.tools.GetOffsetShell", *_AT, *_TOPIC], says="TOPIC:0:3")],
    "kafka-log-dirs": [Call(["org.apache.kafka.tools.LogDirsCommand", *_AT, "--describe"], says="TOPIC")],
    "kafka-broker-api-versions": [Call(["org.apache.kafka.tools.BrokerApiVersionsCommand", *_AT], says="Produce(0)")],
    "kafka-producer-perf-test": [
        Call(["org.apache.kafka.tools.ProducerPerformance", *_TOPIC, "--num-records", "1000", "--record-size", "100",
              "--throughput", "-1", "--producer-props", "bootstrap.servers=ADDRESS"], says="1000 records sent"),
    ],
    "kafka-verifiable-producer": [
        Call(["org.apache.kafka.tools.VerifiableProducer", *_AT, *_TOPIC, "--max-messages", "50"], says="\"sent\":50"),
    ],
    "kafka-cluster": [Call(["org.apache.kafka.tools.ClusterTool", "cluster-id", *_AT], says="Cluster ID")],
    "kafka-share-groups": [
        Call(["org.apache.kafka.tools.consumer.group.ShareGroupCommand", *_AT, "--list"]),
    ],
    "kafka-transactions": [Call(["org.apache.kafka.tools.TransactionsCommand", *_AT, "list"], says="TransactionalId")],
    "kafka-acls": [Call(["org.apache.kafka.tools.AclCommand", *_AT, "--list"])],
    "kafka-metadata-quorum": [
        Call(["org.apache.kafka.tools.MetadataQuorumCommand", *_AT, "describe", "--status"], says="LeaderId"),
    ],
}  # fmt: skip
"""In this order: some read what those before them wrote."""


def kcat_version() -> str:
    said = subprocess.run(["kcat", "-V"], capture_output=True, text=True, timeout=TOOL_SECONDS_MAX)
    return next((word for word in (said.stdout + said.stderr).split() if word[:1].isdigit() and "." in word), "?")


def run(calls: Sequence[Call], address: str, topic: str, group: str, command: Callable[[str], Sequence[str]]) -> str:
    """Why the scenario failed; empty when it did not. `command`: how a tool of this name is called."""
    stands_for = {"ADDRESS": address, "TOPIC": topic, "GROUP": group}

    def filled(text: str) -> str:
        for name, value in stands_for.items():
            text = text.replace(name, value)
        return text

    for call in calls:
        tool, *words = map(filled, call.words)
        try:
            done = subprocess.run(
                [*command(tool), *words], input=call.stdin, capture_output=True, timeout=TOOL_SECONDS_MAX
            )
        except subprocess.TimeoutExpired:
            return f"{tool.rpartition('.')[2]} did not end within {TOOL_SECONDS_MAX:.0f} s"
        said = (done.stdout + done.stderr).decode(errors="replace")
        if done.returncode != 0 or filled(call.says) not in said:
            return _reason(said) or f"{tool.rpartition('.')[2]} ended with code {done.returncode}"
    return ""


def names() -> tuple[str, str]:
    """A new topic and consumer group."""
    return new_name("topic"), new_name("group")


def _reason(said: str) -> str:
    """The line that tells most: the first that names an exception or an error, else the last."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith(("SLF4J", "\tat "))]
    telling = [line for line in lines if "Exception" in line or "rror" in line]
    return (telling or lines or [""])[0 if telling else -1]
