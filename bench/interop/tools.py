"""kcat, and the command line tools that Apache Kafka brings along: each scenario is one call, or two."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from bench.interop.programs.scenario import SECONDS_MAX, new_name

TOOL_SECONDS_MAX = 3 * SECONDS_MAX
"""A JVM that starts on a busy machine included."""
LINES = b"one\ntwo\nthree\n"


ALICE, ALICE_PASSWORD = "alice", "the password of alice"


class Call(NamedTuple):
    """`says`: what its output must have, somewhere; `lacks`: what it must not have. Names in capitals, as `ADDRESS`,
    stand for what `run` is given."""

    words: Sequence[str]
    stdin: bytes = b""
    says: str = ""
    lacks: str = ""
    refused: bool = False
    """The node must not do it, so that the tool may end with any code."""


KCAT: Mapping[str, Sequence[Call]] = {
    "produce, consume": [
        Call(["kcat", "-b", "ADDRESS", "-P", "-t", "TOPIC", "-p", "0", "-z", "lz4"], LINES),
        Call(["kcat", "-b", "ADDRESS", "-C", "-t", "TOPIC", "-p", "0", "-o", "beginning", "-e", "-q"], says="three"),
    ],
    "metadata": [Call(["kcat", "-b", "ADDRESS", "-L", "-J"], says="TOPIC")],
    "offset by time": [Call(["kcat", "-b", "ADDRESS", "-Q", "-t", "TOPIC:0:-1"], says="offset")],
}

_GROUP = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
_SHARE_GROUP = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
_AT = ["--bootstrap-server", "ADDRESS"]
_TOPIC = ["--topic", "TOPIC"]

_METRICS = "org.apache.kafka.tools.ClientMetricsCommand"
_STREAMS_GROUP = "org.apache.kafka.tools.streams.StreamsGroupCommand"
_ACLS = "org.apache.kafka.tools.AclCommand"
_TOPICS = "org.apache.kafka.tools.TopicCommand"
_CONFIGS = "kafka.admin.ConfigCommand"


def _acls(at: Sequence[str]) -> Sequence[Call]:
    """A rule comes, is listed, goes, and is listed no more."""
    rule = ["--allow-principal", "User:bob", "--operation", "Read", *_TOPIC]
    return [
        Call([_ACLS, *at, "--add", *rule], says="User:bob"),
        Call([_ACLS, *at, "--list", *_TOPIC], says="principal=User:bob, host=*, operation=READ, permissionType=ALLOW"),
        Call([_ACLS, *at, "--remove", "--force", *rule]),
        Call([_ACLS, *at, "--list", *_TOPIC], lacks="User:bob"),
    ]


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
    "kafka-configs of brokers, loggers and groups": [
        Call([_CONFIGS, *_AT, "--entity-type", "brokers", "--entity-default", "--alter", "--add-config",
              "num.io.threads=9"], says="Completed"),
        Call([_CONFIGS, *_AT, "--entity-type", "brokers", "--entity-default", "--alter", "--delete-config",
              "num.io.threads"], says="Completed"),
        Call([_CONFIGS, *_AT, "--entity-type", "broker-loggers", "--entity-name", "1", "--alter", "--add-config",
              "root=ERROR"], says="Completed"),
        Call([_CONFIGS, *_AT, "--entity-type", "groups", "--entity-name", "GROUP", "--alter", "--add-config",
              "consumer.session.timeout.ms=50000"], says="Completed"),
        Call([_CONFIGS, *_AT, "--entity-type", "groups", "--entity-name", "GROUP", "--describe"],
             says="consumer.session.timeout.ms=50000"),
    ],
    "kafka-configs, all of a broker": [
        Call([_CONFIGS, *_AT, "--entity-type", "brokers", "--entity-name", "1", "--describe", "--all"],
             says="transaction.max.timeout.ms=900000 sensitive=false"),
        Call([_CONFIGS, *_AT, "--entity-type", "brokers", "--entity-name", "1", "--alter", "--add-config",
              "max.connections.per.ip=9000,max.connections.per.ip.overrides=[10.0.0.1:7,10.0.0.2:8]"],
             says="Completed"),
        Call([_CONFIGS, *_AT, "--entity-type", "brokers", "--entity-name", "1", "--describe"],
             says="max.connections.per.ip.overrides=10.0.0.1:7,10.0.0.2:8"),
        Call([_CONFIGS, *_AT, "--entity-type", "brokers", "--entity-name", "1", "--alter", "--delete-config",
              "max.connections.per.ip,max.connections.per.ip.overrides"], says="Completed"),
    ],
    "kafka-get-offsets": [Call(["org.apache.kafka.tools.GetOffsetShell", *_AT, *_TOPIC], says="TOPIC:0:3")],
    "kafka-client-metrics": [
        Call([_METRICS, *_AT, "--alter", "--name", "GROUP", "--metrics", "org.apache.kafka.producer.", "--interval",
              "1000", "--match", "client_id=nobody.*"], says="Altered"),
        Call([_METRICS, *_AT, "--describe", "--name", "GROUP"], says="interval.ms=1000"),
        Call([_METRICS, *_AT, "--delete", "--name", "GROUP"], says="Deleted"),
        Call([_METRICS, *_AT, "--list"], lacks="GROUP"),
    ],
    "kafka-log-dirs": [Call(["org.apache.kafka.tools.LogDirsCommand", *_AT, "--describe"], says="TOPIC")],
    "kafka-broker-api-versions": [Call(["org.apache.kafka.tools.BrokerApiVersionsCommand", *_AT], says="Produce(0)")],
    "kafka-producer-perf-test": [
        Call(["org.apache.kafka.tools.ProducerPerformance", *_TOPIC, "--num-records", "1000", "--record-size", "100",
              "--throughput", "-1", "--producer-props", "bootstrap.servers=ADDRESS"], says="1000 records sent"),
    ],
    "kafka-producer-perf-test, transactions; get-offsets": [
        Call(["org.apache.kafka.tools.ProducerPerformance", *_TOPIC, "--num-records", "100", "--record-size", "100",
              "--throughput", "-1", "--transactional-id", "GROUP-perf", "--transaction-duration-ms", "50",
              "--bootstrap-server", "ADDRESS"], says="100 records sent"),
        Call(["org.apache.kafka.tools.GetOffsetShell", *_AT, *_TOPIC, "--time", "max-timestamp"], says="TOPIC:0:"),
    ],
    "kafka-verifiable-producer": [
        Call(["org.apache.kafka.tools.VerifiableProducer", *_AT, *_TOPIC, "--max-messages", "50"], says="\"sent\":50"),
    ],
    "kafka-consumer-perf-test": [
        Call(["org.apache.kafka.tools.ConsumerPerformance", *_AT, *_TOPIC, "--num-records", "3", "--group",
              "GROUP-perf"], says="data.consumed.in.MB"),
    ],
    "kafka-verifiable-consumer": [
        Call(["org.apache.kafka.tools.VerifiableConsumer", *_AT, *_TOPIC, "--group-id", "GROUP-verifiable",
              "--max-messages", "3", "--reset-policy", "earliest"], says="records_consumed"),
    ],
    "kafka-e2e-latency": [
        Call(["org.apache.kafka.tools.EndToEndLatency", *_AT, *_TOPIC, "--num-records", "20", "--producer-acks",
              "all", "--record-size", "10"], says="Percentiles"),
    ],
    "kafka-streams-application-reset": [
        Call(["org.apache.kafka.tools.StreamsResetter", *_AT, "--application-id", "GROUP-app", "--input-topics",
              "TOPIC"], says="Reset-offsets for input topics"),
    ],
    "kafka-delete-records": [
        Call(["org.apache.kafka.tools.DeleteRecordsCommand", *_AT, "--offset-json-file", "OFFSETS"],
             says="low_watermark: 1"),
    ],
    "kafka-cluster": [Call(["org.apache.kafka.tools.ClusterTool", "cluster-id", *_AT], says="Cluster ID")],
    "kafka-share-groups, console-share-consumer": [
        Call([_SHARE_GROUP, *_AT, "--group", "GROUP-share", "--reset-offsets", "--to-earliest", *_TOPIC, "--execute"],
             says="NEW-OFFSET"),
        Call(["org.apache.kafka.tools.consumer.ConsoleShareConsumer", *_AT, *_TOPIC, "--group", "GROUP-share",
              "--max-messages", "3", "--timeout-ms", "40000"], says="three"),
        Call([_SHARE_GROUP, *_AT, "--list"], says="GROUP-share"),
        Call([_SHARE_GROUP, *_AT, "--group", "GROUP-share", "--describe", "--offsets"], says="START-OFFSET"),
        Call([_SHARE_GROUP, *_AT, "--group", "GROUP-share", "--delete-offsets", *_TOPIC], says="Successful"),
        Call([_SHARE_GROUP, *_AT, "--group", "GROUP-share", "--delete"], says="successful"),
    ],
    "kafka-share-consumer-perf-test, verifiable-share-consumer": [
        Call([_CONFIGS, *_AT, "--entity-type", "groups", "--entity-name", "GROUP-many", "--alter", "--add-config",
              "share.auto.offset.reset=earliest"], says="Completed"),
        Call(["org.apache.kafka.tools.ShareConsumerPerformance", *_AT, *_TOPIC, "--num-records", "3", "--group",
              "GROUP-many"], says="data.consumed.in.MB"),
        Call(["org.apache.kafka.tools.VerifiableShareConsumer", *_AT, *_TOPIC, "--group-id", "GROUP-verified",
              "--max-messages", "3", "--offset-reset-strategy", "earliest"], says="records_consumed"),
    ],
    "kafka-transactions": [Call(["org.apache.kafka.tools.TransactionsCommand", *_AT, "list"], says="TransactionalId")],
    "kafka-transactions, producers": [
        Call(["org.apache.kafka.tools.TransactionsCommand", *_AT, "describe-producers", *_TOPIC, "--partition", "0"],
             says="ProducerId"),
    ],
    "kafka-transactions, hanging": [
        Call(["org.apache.kafka.tools.TransactionsCommand", *_AT, "find-hanging", *_TOPIC, "--partition", "0"]),
    ],
    "kafka-streams-groups": [
        Call([_STREAMS_GROUP, *_AT, "--list"]),
        Call([_STREAMS_GROUP, *_AT, "--describe", "--group", "GROUP-none"], says="not found", refused=True),
    ],
    "kafka-groups": [Call(["org.apache.kafka.tools.GroupsCommand", *_AT, "--list"])],
    "kafka-features": [
        Call(["org.apache.kafka.tools.FeatureCommand", *_AT, "describe"], says="transaction.version"),
        Call(["org.apache.kafka.tools.FeatureCommand", *_AT, "upgrade", "--release-version", "4.3"],
             says="metadata.version was upgraded to 30"),
    ],
    "kafka-leader-election": [
        Call(["org.apache.kafka.tools.LeaderElectionCommand", *_AT, "--election-type", "preferred",
              "--all-topic-partitions"]),
    ],
    "kafka-reassign-partitions": [
        Call(["org.apache.kafka.tools.reassign.ReassignPartitionsCommand", *_AT, "--list"],
             says="No partition reassignments"),
        Call(["org.apache.kafka.tools.reassign.ReassignPartitionsCommand", *_AT, "--reassignment-json-file", "PLAN",
              "--execute"], says="Successfully started"),
        Call(["org.apache.kafka.tools.reassign.ReassignPartitionsCommand", *_AT, "--reassignment-json-file", "PLAN",
              "--verify"], says="is completed"),
    ],
    "kafka-acls": _acls(_AT),
    "kafka-metadata-quorum": [
        Call(["org.apache.kafka.tools.MetadataQuorumCommand", *_AT, "describe", "--status"], says="LeaderId"),
    ],
}  # fmt: skip
"""In this order: some read what those before them wrote."""


_GUARDED = ["--bootstrap-server", "GUARDED", "--command-config", "SETTINGS"]
_AS_ALICE = ["--bootstrap-server", "GUARDED", "--command-config", "ALICE"]
_ALICE = ["--entity-type", "users", "--entity-name", ALICE]

GUARDED: Mapping[str, Sequence[Call]] = {
    "kafka-topics over SASL_SSL": [Call([_TOPICS, *_GUARDED, *_TOPIC, "--describe"], says="PartitionCount: 1")],
    "kafka-acls over SASL_SSL": _acls(_GUARDED),
    "console clients over SASL_SSL": [
        Call(["org.apache.kafka.tools.ConsoleProducer", *_GUARDED, *_TOPIC], LINES),
        Call(["org.apache.kafka.tools.consumer.ConsoleConsumer", *_GUARDED, *_TOPIC, "--from-beginning",
              "--max-messages", "3", "--group", "GROUP", "--timeout-ms", "40000"], says="three"),
    ],
    "kafka-configs, SCRAM of users": [
        Call([_TOPICS, *_AS_ALICE, *_TOPIC, "--describe"], says="uthentication", refused=True),
        Call([_CONFIGS, *_GUARDED, "--alter", *_ALICE, "--add-config", f"SCRAM-SHA-512=[password={ALICE_PASSWORD}]"],
             says="Completed"),
        Call([_CONFIGS, *_GUARDED, "--describe", *_ALICE], says="SCRAM-SHA-512=iterations=4096"),
    ],
    "kafka-configs, quotas of users": [
        Call([_CONFIGS, *_GUARDED, "--alter", *_ALICE, "--add-config", "producer_byte_rate=1048576"],
             says="Completed"),
        Call([_CONFIGS, *_GUARDED, "--describe", *_ALICE], says="producer_byte_rate=1048576"),
        Call([_CONFIGS, *_GUARDED, "--alter", *_ALICE, "--delete-config", "producer_byte_rate"], says="Completed"),
        Call([_CONFIGS, *_GUARDED, "--describe", *_ALICE], lacks="producer_byte_rate"),
    ],
    "a rule lets a user in": [
        Call([_TOPICS, *_AS_ALICE, *_TOPIC, "--describe"], says="Error while executing topic command",
             lacks="PartitionCount", refused=True),
        Call([_ACLS, *_GUARDED, "--add", "--allow-principal", f"User:{ALICE}", "--consumer", *_TOPIC, "--group", "*"]),
        Call(["org.apache.kafka.tools.consumer.ConsoleConsumer", *_AS_ALICE, *_TOPIC, "--from-beginning",
              "--max-messages", "3", "--group", "GROUP-alice", "--timeout-ms", "40000"], says="three"),
        Call([_ACLS, *_AS_ALICE, "--list"], says="uthoriz", refused=True),
    ],
    "a user that is removed": [
        Call([_CONFIGS, *_GUARDED, "--alter", *_ALICE, "--delete-config", "SCRAM-SHA-512"], says="Completed"),
        Call([_TOPICS, *_AS_ALICE, *_TOPIC, "--describe"], says="uthentication", refused=True),
    ],
}  # fmt: skip
"""Over a listener with TLS and SCRAM, of a node with an authorizer. `SETTINGS` are those of the first user."""


def plan(topic: str) -> str:
    """The plan that kafka-reassign-partitions reads: the one partition of the topic, on the node that there is."""
    return f'{{"version":1,"partitions":[{{"topic":"{topic}","partition":0,"replicas":[1]}}]}}'


def offsets(topic: str) -> str:
    """The file that kafka-delete-records reads: the first record of the topic is to go."""
    return f'{{"version":1,"partitions":[{{"topic":"{topic}","partition":0,"offset":1}}]}}'


SETS = ("kcat", "Kafka's tools", "Kafka's tools, secured")
"""The names of `KCAT`, `KAFKA` and `GUARDED` among the clients."""


def kcat_version() -> str:
    said = subprocess.run(["kcat", "-V"], capture_output=True, text=True, timeout=TOOL_SECONDS_MAX)
    return next((word for word in (said.stdout + said.stderr).split() if word[:1].isdigit() and "." in word), "?")


def run(calls: Sequence[Call], stands_for: Mapping[str, str], command: Callable[[str], Sequence[str]]) -> str:
    """Why the scenario failed; empty when it did not. `stands_for`: what names in capitals mean; `command`: how a tool
    of this name is called."""

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
        if (done.returncode != 0 and not call.refused) or filled(call.says) not in said:
            return _reason(said) or f"{tool.rpartition('.')[2]} ended with code {done.returncode}"
        if call.lacks and call.lacks in said:
            return f"{tool.rpartition('.')[2]} still says {call.lacks}"
    return ""


def names() -> tuple[str, str]:
    """A new topic and consumer group."""
    return new_name("topic"), new_name("group")


def _reason(said: str) -> str:
    """The line that tells most: the first that names an exception or an error, else the last."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith(("SLF4J", "\tat "))]
    telling = [line for line in lines if "Exception" in line or "rror" in line]
    return (telling or lines or [""])[0 if telling else -1]
